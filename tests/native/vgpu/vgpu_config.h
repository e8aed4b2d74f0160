/* vgpu.config, the limits file of the enforcement library: little endian, 8192 bytes of which 2560 are this struct.
 *
 * Written by us from the offsets; source of those: vgpu-manager library/include/hook.h, pkg/config/vgpu/vgpu_config.go.
 */
#ifndef VGPU_CONFIG_H
#define VGPU_CONFIG_H

#include <stddef.h>
#include <stdint.h>

enum {
    VGPU_CONFIG_MAGIC = 0x56474346, /* "VGCF" */
    VGPU_CONFIG_LAYOUT = 1,
    VGPU_CONFIG_FILE_BYTES = 8192,
    VGPU_SLOTS = 16,
    VGPU_MODE_CLIENT = 200, /* compatibility modes are decimal numbers that are OR-ed: test with (mode & 200) == 200 */
};

/* One GPU; the index of its slot is its index in NVML on the host. */
struct vgpu_slot {
    uint32_t seq; /* odd while a writer is at it */
    uint32_t pad;
    char uuid[48];
    uint64_t total_memory; /* bytes, what may be allocated */
    uint64_t real_memory;  /* bytes, the physical part of it */
    int32_t hard_core;     /* percent */
    int32_t soft_core;     /* percent */
    int32_t core_limit;    /* 1: compute is limited */
    int32_t hard_limit;    /* 1: never above hard_core; 0: up to soft_core when the GPU is idle */
    int32_t memory_limit;  /* 1: memory is limited */
    int32_t memory_oversold;
    int32_t activate; /* 1: the slot is in use */
    int32_t reserved[7];
};

struct vgpu_config {
    uint32_t magic;
    uint32_t layout_version;
    uint32_t region_size;
    uint32_t device_count;
    int32_t cuda_major, cuda_minor;
    char driver_version[32];
    uint8_t reserved1[72];
    char pod_uid[48];
    char pod_name[64];
    char pod_namespace[64];
    char container_name[64];
    char register_uuid[48];
    int32_t compatibility_mode;
    int32_t sm_watcher;
    int32_t vmem_node;
    uint8_t reserved2[84];
    struct vgpu_slot slots[VGPU_SLOTS];
};

#define VGPU_AT(type, member, offset) _Static_assert(offsetof(struct type, member) == (offset), #type "." #member)

VGPU_AT(vgpu_slot, seq, 0);
VGPU_AT(vgpu_slot, pad, 4);
VGPU_AT(vgpu_slot, uuid, 8);
VGPU_AT(vgpu_slot, total_memory, 56);
VGPU_AT(vgpu_slot, real_memory, 64);
VGPU_AT(vgpu_slot, hard_core, 72);
VGPU_AT(vgpu_slot, soft_core, 76);
VGPU_AT(vgpu_slot, core_limit, 80);
VGPU_AT(vgpu_slot, hard_limit, 84);
VGPU_AT(vgpu_slot, memory_limit, 88);
VGPU_AT(vgpu_slot, memory_oversold, 92);
VGPU_AT(vgpu_slot, activate, 96);
VGPU_AT(vgpu_slot, reserved, 100);
_Static_assert(sizeof(struct vgpu_slot) == 128, "size of a slot");

VGPU_AT(vgpu_config, magic, 0);
VGPU_AT(vgpu_config, layout_version, 4);
VGPU_AT(vgpu_config, region_size, 8);
VGPU_AT(vgpu_config, device_count, 12);
VGPU_AT(vgpu_config, cuda_major, 16);
VGPU_AT(vgpu_config, cuda_minor, 20);
VGPU_AT(vgpu_config, driver_version, 24);
VGPU_AT(vgpu_config, reserved1, 56);
VGPU_AT(vgpu_config, pod_uid, 128);
VGPU_AT(vgpu_config, pod_name, 176);
VGPU_AT(vgpu_config, pod_namespace, 240);
VGPU_AT(vgpu_config, container_name, 304);
VGPU_AT(vgpu_config, register_uuid, 368);
VGPU_AT(vgpu_config, compatibility_mode, 416);
VGPU_AT(vgpu_config, sm_watcher, 420);
VGPU_AT(vgpu_config, vmem_node, 424);
VGPU_AT(vgpu_config, reserved2, 428);
VGPU_AT(vgpu_config, slots, 512);
_Static_assert(sizeof(struct vgpu_config) == 2560, "size of the region");

#undef VGPU_AT

#endif
