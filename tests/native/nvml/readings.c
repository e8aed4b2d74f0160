/* What a GPU is doing: memory, load, processes, errors. */
#include "gate.h"

#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, memory, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    /* This version of the call knows no reserve and counts it as used. */
    memory->total = gpu.memory_mib << 20;
    memory->used = (gpu.used_mib + gpu.reserved_mib) << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, memory, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = gpu.memory_mib << 20;
    memory->reserved = gpu.reserved_mib << 20;
    memory->used = gpu.used_mib << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, utilization, &gpu);
    if (status == NVML_SUCCESS)
        *utilization = (nvmlUtilization_t){(unsigned)gpu.gpu_percent, (unsigned)gpu.memory_percent};
    return status;
}

/* As NVML does it: a list that does not fit answers its size and INSUFFICIENT_SIZE, an empty one always fits. */
static nvmlReturn_t put_processes(const struct gpu *gpu, unsigned *count, nvmlProcessInfo_t *processes)
{
    unsigned room = *count;
    *count = gpu->process_count;
    if (room < gpu->process_count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (gpu->process_count > 0 && processes == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->process_count > 0)
        memcpy(processes, gpu->processes, gpu->process_count * sizeof *processes);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, count, &gpu);
    return status == NVML_SUCCESS ? put_processes(&gpu, count, processes) : status;
}

/* Every process of the mock is a compute process. */
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)
{
    (void)processes;
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, count, &gpu);
    if (status == NVML_SUCCESS)
        *count = 0;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, current, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu.has_ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

/* The volatile and the aggregate counter (0 and 1) are the same number here. */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error_type, unsigned counter_type,
                                                unsigned long long *count)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, count, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (error_type > 1 || counter_type > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu.has_ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = error_type == 0 ? gpu.ecc_corrected : gpu.ecc_uncorrected;
    return NVML_SUCCESS;
}

/* Only sensor 0, the GPU itself, exists. */
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, celsius, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned)gpu.temperature_c;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, milliwatts, &gpu);
    if (status == NVML_SUCCESS)
        *milliwatts = (unsigned)gpu.power_mw;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, mode, &gpu);
    if (status == NVML_SUCCESS)
        *mode = 1;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, mode, &gpu);
    if (status == NVML_SUCCESS)
        *mode = 0;
    return status;
}
