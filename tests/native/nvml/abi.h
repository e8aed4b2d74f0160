/* The NVML types and constants the mock answers with.
 *
 * Source: NVIDIA's nvml.h as transcribed by nvidia-ml-py (pynvml.py); layouts are those of x86_64 and aarch64.
 */
#ifndef VGPU_NVML_ABI_H
#define VGPU_NVML_ABI_H

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
} nvmlReturn_t;

typedef struct nvml_handle *nvmlDevice_t;
typedef struct nvml_handle *nvmlGpuInstance_t;
typedef struct nvml_event_set *nvmlEventSet_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

#define NVML_MEMORY_V2 0x02000028u
_Static_assert((sizeof(nvmlMemory_v2_t) | 2u << 24) == NVML_MEMORY_V2, "layout of nvmlMemory_v2_t");

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "layout of nvmlPciInfo_t");

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned pid;
    unsigned long long used_gpu_memory;
    unsigned gpu_instance_id, compute_instance_id;
} nvmlProcessInfo_t;
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "layout of nvmlProcessInfo_v2_t, which _v3 calls use too");

typedef struct {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance_id, compute_instance_id;
} nvmlEventData_t;
_Static_assert(sizeof(nvmlEventData_t) == 32, "layout of nvmlEventData_t");

enum { NVML_GPU_INSTANCE_PROFILE_COUNT = 18 };

typedef struct {
    unsigned id, is_p2p_supported, slice_count, instance_count, multiprocessor_count, copy_engine_count, decoder_count, encoder_count,
        jpeg_count, ofa_count;
    unsigned long long memory_size_mb;
} nvmlGpuInstanceProfileInfo_t;
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48, "layout of nvmlGpuInstanceProfileInfo_t");

typedef struct {
    nvmlDevice_t device;
    unsigned id, profile_id, start, size;
} nvmlGpuInstanceInfo_t;
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "layout of nvmlGpuInstanceInfo_t");

typedef struct {
    unsigned multiprocessor_count, shared_copy_engine_count, shared_decoder_count, shared_encoder_count, shared_jpeg_count,
        shared_ofa_count, gpu_instance_slice_count, compute_instance_slice_count;
    unsigned long long memory_size_mb;
} nvmlDeviceAttributes_t;
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "layout of nvmlDeviceAttributes_t");

typedef struct {
    unsigned field_id, scope_id;
    long long timestamp, latency_us;
    unsigned value_type;
    nvmlReturn_t status;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
    } value;
} nvmlFieldValue_t;
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "layout of nvmlFieldValue_t");

#define NVML_VALUE_TYPE_UNSIGNED_INT 1u
#define NVML_FI_DEV_GET_GPU_RECOVERY_ACTION 230u

#define NVML_NO_INSTANCE 0xFFFFFFFFu

#endif
