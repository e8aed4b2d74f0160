/* What a GPU says of its own health beside its error counters. */
#include "gate.h"

#include <string.h>

/* Each field has a status of its own; the mock knows one field. */
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, values, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    for (int i = 0; i < count; i++) {
        bool known = values[i].field_id == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION && gpu.has_recovery_action;
        values[i].status = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.ui = known ? (unsigned)gpu.recovery_action : 0;
    }
    return NVML_SUCCESS;
}

/* A GPU of the mock has no remapped row, only some that wait for a reset. */
EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                              unsigned *failed)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, pending, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (corrected == NULL || uncorrected == NULL || failed == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu.has_remapper)
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = *uncorrected = *failed = 0;
    *pending = gpu.remaps_pending != 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, pending, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (!gpu.has_page_retirement)
        return NVML_ERROR_NOT_SUPPORTED;
    *pending = gpu.retirements_pending != 0;
    return NVML_SUCCESS;
}
