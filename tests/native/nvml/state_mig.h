/* The part of the state that is about MIG: the profiles of the board and the devices that exist. */
#ifndef VGPU_NVML_STATE_MIG_H
#define VGPU_NVML_STATE_MIG_H

#include "fields.h"
#include "state.h"

bool read_mig_profiles(const struct json *root, struct state *state, struct problem *why);

/* Needs the profiles, and the GPU's own fields. */
bool read_mig_devices(const struct json *node, const struct state *state, struct gpu *gpu, struct problem *why);

#endif
