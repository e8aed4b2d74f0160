/* Which GPU is which: handles, indexes, UUIDs, minors, bus addresses, what it can do. */
#include "gate.h"

#include <stdio.h>

static nvmlReturn_t find_handle(const char *function, const struct selector *selector, nvmlDevice_t *device)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = gate_mig(function, selector, &gpu, &mig);
    if (status != NVML_SUCCESS)
        return status;
    if (device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = handle_of(mig.uuid[0] == '\0' ? gpu.uuid : mig.uuid);
    return *device == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    return find_handle(__func__, &(struct selector){.by = BY_INDEX, .index = index}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return find_handle(__func__, &(struct selector){.by = BY_UUID, .uuid = uuid}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return find_handle(__func__, &(struct selector){.by = BY_BUS_ID, .bus_id = bus_id}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, index, &gpu);
    if (status == NVML_SUCCESS)
        *index = gpu.index;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    struct gpu gpu;
    struct mig_device mig;
    nvmlReturn_t status = gate_mig(__func__, &(struct selector){.by = BY_EITHER_HANDLE, .handle = device}, &gpu, &mig);
    if (status != NVML_SUCCESS)
        return status;
    return put_text(mig.uuid[0] == '\0' ? gpu.uuid : mig.uuid, uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, name, &gpu);
    return status == NVML_SUCCESS ? put_text(gpu.name, name, length) : status;
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, serial, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    return gpu.serial[0] == '\0' ? NVML_ERROR_NOT_SUPPORTED : put_text(gpu.serial, serial, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, minor, &gpu);
    if (status == NVML_SUCCESS)
        *minor = (unsigned)gpu.minor;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, pci, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    *pci = (nvmlPciInfo_t){
        .domain = gpu.bus.domain,
        .bus = gpu.bus.bus,
        .device = gpu.bus.device,
        .pci_device_id = (unsigned)gpu.pci_device_id,
        .pci_subsystem_id = (unsigned)gpu.pci_subsystem_id,
    };
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.%X", gpu.bus.domain & 0xFFFF, gpu.bus.bus & 0xFF,
             gpu.bus.device & 0xFF, gpu.bus.function & 0xF);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.%X", gpu.bus.domain, gpu.bus.bus & 0xFF, gpu.bus.device & 0xFF,
             gpu.bus.function & 0xF);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, major, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (minor == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)gpu.cc_major;
    *minor = (int)gpu.cc_minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, architecture, &gpu);
    if (status == NVML_SUCCESS)
        *architecture = (unsigned)gpu.architecture;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, brand, &gpu);
    if (status == NVML_SUCCESS)
        *brand = (unsigned)gpu.brand;
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, node, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (!gpu.has_numa)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)gpu.numa_node;
    return NVML_SUCCESS;
}
