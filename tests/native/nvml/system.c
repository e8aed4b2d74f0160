/* Calls about the driver as a whole. */
#include "gate.h"

struct versions {
    char driver[TEXT_SIZE], nvml[TEXT_SIZE];
    int cuda;
    unsigned gpu_count;
};

static nvmlReturn_t copy_versions(const struct state *state, void *context)
{
    struct versions *versions = context;
    put_text(state->driver_version, versions->driver, sizeof versions->driver);
    put_text(state->nvml_version, versions->nvml, sizeof versions->nvml);
    versions->cuda = (int)state->cuda_driver_version;
    versions->gpu_count = state->gpu_count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    struct versions now;
    nvmlReturn_t status = gate_locked(__func__, copy_versions, &now);
    return status == NVML_SUCCESS ? put_text(now.driver, version, length) : status;
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    struct versions now;
    nvmlReturn_t status = gate_locked(__func__, copy_versions, &now);
    return status == NVML_SUCCESS ? put_text(now.nvml, version, length) : status;
}

static nvmlReturn_t cuda_version(const char *function, int *version)
{
    struct versions now;
    nvmlReturn_t status = gate_locked(function, copy_versions, &now);
    if (status != NVML_SUCCESS)
        return status;
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = now.cuda;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(__func__, version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(__func__, version);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    struct versions now;
    nvmlReturn_t status = gate_locked(__func__, copy_versions, &now);
    if (status != NVML_SUCCESS)
        return status;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = now.gpu_count;
    return NVML_SUCCESS;
}

/* The one call that needs no init and meets no fault, as in the real library. */
EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "The operating system has blocked the request.",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "The requested vgpu operation is not available on target device, because ECC is enabled",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated", "System is not ready",
        "No GPUs found", "Invalid state", "Reset type not supported",
    };
    return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "Unknown Error";
}
