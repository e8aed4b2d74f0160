/* MIG: whether a GPU is partitioned, and the devices that exist on it. Making and removing them is not ours, so there is no call. */
#include "gate.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, current, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu.has_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = (unsigned)gpu.mig_mode;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, count, &gpu);
    if (status == NVML_SUCCESS)
        *count = gpu.has_mig ? (unsigned)gpu.max_mig_devices : 0;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig_device)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = gate_mig(__func__, &(struct selector){.by = BY_EITHER_HANDLE, .handle = device}, &gpu, &mig);
    if (status != NVML_SUCCESS)
        return status;
    if (is_mig_device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *is_mig_device = mig.uuid[0] != '\0';
    return NVML_SUCCESS;
}

/* The devices stand at the first indexes; the others are free. */
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig_device)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, mig_device, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (!gpu.has_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= gpu.max_mig_devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (index >= gpu.mig_device_count)
        return NVML_ERROR_NOT_FOUND;
    *mig_device = handle_of(gpu.mig_devices[index].uuid);
    return *mig_device == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

/* A call that only a MIG device's handle answers. */
static nvmlReturn_t of_mig(const char *function, nvmlDevice_t device, const void *result, struct gpu *gpu, struct mig_device *mig)
{
    nvmlReturn_t status = gate_mig(function, &(struct selector){.by = BY_MIG_HANDLE, .handle = device}, gpu, mig);
    return status == NVML_SUCCESS && result == NULL ? NVML_ERROR_INVALID_ARGUMENT : status;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig_device, nvmlDevice_t *device)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = of_mig(__func__, mig_device, device, &gpu, &mig);
    if (status != NVML_SUCCESS)
        return status;
    *device = handle_of(gpu.uuid);
    return *device == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = of_mig(__func__, device, id, &gpu, &mig);
    if (status == NVML_SUCCESS)
        *id = (unsigned)mig.gpu_instance;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = of_mig(__func__, device, id, &gpu, &mig);
    if (status == NVML_SUCCESS)
        *id = (unsigned)mig.compute_instance;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = of_mig(__func__, device, attributes, &gpu, &mig);
    if (status != NVML_SUCCESS)
        return status;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessor_count = (unsigned)mig.multiprocessors,
        .shared_copy_engine_count = (unsigned)mig.profile.copy_engines,
        .shared_decoder_count = (unsigned)mig.profile.decoders,
        .shared_encoder_count = (unsigned)mig.profile.encoders,
        .shared_jpeg_count = (unsigned)mig.profile.jpeg_engines,
        .shared_ofa_count = (unsigned)mig.profile.ofa_engines,
        .gpu_instance_slice_count = (unsigned)mig.profile.slices,
        .compute_instance_slice_count = (unsigned)mig.compute_slices,
        .memory_size_mb = mig.profile.memory_mib,
    };
    return NVML_SUCCESS;
}

struct profile_call {
    unsigned wanted;
    struct mig_profile found;
};

static nvmlReturn_t copy_profile(const struct state *state, void *context)
{
    struct profile_call *call = context;
    for (unsigned i = 0; i < state->mig_profile_count; i++) {
        if (state->mig_profiles[i].profile != call->wanted)
            continue;
        call->found = state->mig_profiles[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile, nvmlGpuInstanceProfileInfo_t *info)
{
    struct gpu gpu;
    struct profile_call call = {.wanted = profile};
    nvmlReturn_t status = gate_device(__func__, device, info, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (profile >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu.has_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    status = gate_locked(__func__, copy_profile, &call);
    if (status != NVML_SUCCESS)
        return status;
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = (unsigned)call.found.id,
        .is_p2p_supported = 1,
        .slice_count = (unsigned)call.found.slices,
        .instance_count = (unsigned)call.found.instances,
        .multiprocessor_count = (unsigned)call.found.multiprocessors,
        .copy_engine_count = (unsigned)call.found.copy_engines,
        .decoder_count = (unsigned)call.found.decoders,
        .encoder_count = (unsigned)call.found.encoders,
        .jpeg_count = (unsigned)call.found.jpeg_engines,
        .ofa_count = (unsigned)call.found.ofa_engines,
        .memory_size_mb = call.found.memory_mib,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, instance, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (!gpu.has_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0; i < gpu.mig_device_count; i++) {
        if (gpu.mig_devices[i].gpu_instance != id)
            continue;
        *instance = instance_handle_of(gpu.uuid, id);
        return *instance == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = gate_mig(__func__, &(struct selector){.by = BY_INSTANCE, .handle = instance}, &gpu, &mig);
    if (status != NVML_SUCCESS)
        return status;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){
        .device = handle_of(gpu.uuid),
        .id = (unsigned)mig.gpu_instance,
        .profile_id = (unsigned)mig.profile_id,
        .start = (unsigned)mig.start,
        .size = (unsigned)mig.profile.size,
    };
    return NVML_SUCCESS;
}
