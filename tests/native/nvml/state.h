/* The state of the fake driver: what one JSON file says.
 *
 * {"driver_version": "550.90.07", "nvml_version": "12.550.90.07", "cuda_driver_version": 12040,
 *  "gpus":   [{"uuid", "name", "minor", "memory_mib", "pci_bus_id", "compute_capability": [9, 0], "architecture": 9, ...}],
 *  "mig_profiles": [{"profile": 0, "id": 19, "slices": 1, "size": 1, "instances": 7, "memory_mib", "multiprocessors", ...}],
 *  "faults": [{"function": "nvmlDeviceGetCount_v2" or "*", "gpu": uuid of it or of a MIG device, or absent, "error": 15 or "hang": true}],
 *  "events": [{"id": 1, "gpu": uuid, "type": 8, "data": 79}]}
 *
 * A GPU with "mig_mode": 1 may have "mig_devices": [{"uuid", "profile_id": 19, "start": 0, "gpu_instance": 7}]; all GPUs are of one
 * board, whose profiles the file lists. "profile" is NVML's number for a shape, "id" the board's.
 *
 * The index of a GPU is its position. An unknown name, a missing one or a wrong type makes the whole file invalid, so that
 * a misspelt fault cannot pass for a healthy GPU. Optional fields of a GPU and their defaults are listed in state.c.
 */
#ifndef VGPU_NVML_STATE_H
#define VGPU_NVML_STATE_H

#include "abi.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_GPUS = 32, MAX_PROCESSES = 64, MAX_FAULTS = 64, MAX_EVENTS = 1024, TEXT_SIZE = 96 };
enum { MAX_MIG_PROFILES = 32, MAX_MIG_DEVICES = 16 };

struct bus_address {
    unsigned domain, bus, device, function;
};

struct mig_profile {
    uint64_t profile, id, slices, size, instances;
    uint64_t memory_mib, multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
};

/* A compute instance together with the GPU instance that it is in. */
struct mig_device {
    char uuid[TEXT_SIZE];
    uint64_t profile_id, start, gpu_instance;
    uint64_t compute_instance, compute_slices, multiprocessors;
    struct mig_profile profile;
};

struct gpu {
    unsigned index;
    char uuid[TEXT_SIZE];
    char name[TEXT_SIZE];
    char serial[TEXT_SIZE]; /* empty: not supported */
    uint64_t minor;
    uint64_t memory_mib, used_mib, reserved_mib;
    struct bus_address bus;
    uint64_t pci_device_id, pci_subsystem_id;
    uint64_t cc_major, cc_minor;
    uint64_t architecture, brand;
    bool has_mig, has_numa, has_ecc;
    uint64_t mig_mode, max_mig_devices, numa_node;
    uint64_t ecc_corrected, ecc_uncorrected;
    uint64_t gpu_percent, memory_percent;
    uint64_t temperature_c, power_mw;
    uint64_t supported_events;
    bool has_recovery_action, has_remapper, has_page_retirement;
    uint64_t recovery_action, remaps_pending, retirements_pending;
    unsigned process_count;
    nvmlProcessInfo_t processes[MAX_PROCESSES];
    unsigned mig_device_count;
    struct mig_device mig_devices[MAX_MIG_DEVICES];
};

struct fault {
    char function[TEXT_SIZE]; /* "*": every function */
    char gpu[TEXT_SIZE];      /* empty: whatever the GPU */
    bool hang;
    uint64_t error;
};

struct event {
    uint64_t id, type, data;
    uint64_t gpu_instance, compute_instance; /* NVML_NO_INSTANCE: of the GPU as a whole */
    char gpu[TEXT_SIZE];
};

struct state {
    char driver_version[TEXT_SIZE], nvml_version[TEXT_SIZE];
    uint64_t cuda_driver_version;
    unsigned gpu_count, mig_profile_count, fault_count, event_count;
    struct mig_profile mig_profiles[MAX_MIG_PROFILES];
    struct gpu gpus[MAX_GPUS];
    struct fault faults[MAX_FAULTS];
    struct event events[MAX_EVENTS];
};

/* Fills `state` from JSON text; false with a sentence in `why` leaves it unusable. */
bool state_parse(const char *text, size_t length, struct state *state, char *why, size_t why_size);

/* "0000:0F:00.0" or "00000000:0f:00.0" as numbers. */
bool parse_bus_id(const char *text, struct bus_address *bus);

#endif
