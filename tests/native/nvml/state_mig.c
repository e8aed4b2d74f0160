#include "state_mig.h"

#include <string.h>

static bool read_profile(const struct json *node, struct mig_profile *profile, struct problem *why)
{
#define AT(member) offsetof(struct mig_profile, member)
    static const struct field fields[] = {
        {"profile", UINT, true, AT(profile), 0},
        {"id", UINT, true, AT(id), 0},
        {"slices", UINT, true, AT(slices), 0},
        {"size", UINT, true, AT(size), 0},
        {"instances", UINT, true, AT(instances), 0},
        {"memory_mib", UINT, true, AT(memory_mib), 0},
        {"multiprocessors", UINT, true, AT(multiprocessors), 0},
        {"copy_engines", UINT, true, AT(copy_engines), 0},
        {"decoders", UINT, true, AT(decoders), 0},
        {"encoders", UINT, false, AT(encoders), 0}, /* 0 */
        {"jpeg_engines", UINT, true, AT(jpeg_engines), 0},
        {"ofa_engines", UINT, true, AT(ofa_engines), 0},
        {0},
    };
#undef AT
    if (!read_fields(node, fields, nowhere, profile, why))
        return false;
    if (profile->profile >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return complain(why, "profile", "no such GPU instance profile");
    return profile->size > 0 || complain(why, "size", "no memory slice");
}

bool read_mig_profiles(const struct json *root, struct state *state, struct problem *why)
{
    for (const struct json *item = elements(root, "mig_profiles", why); item != NULL; item = item->next) {
        if (state->mig_profile_count == MAX_MIG_PROFILES)
            return complain(why, "mig_profiles", "too many");
        if (!read_profile(item, &state->mig_profiles[state->mig_profile_count++], why))
            return false;
    }
    return why->text[0] == '\0';
}

/* Two devices of one GPU instance share all of its memory slices, two of different ones none. */
static bool fits(const struct mig_device *one, const struct mig_device *other)
{
    bool same_place = one->start == other->start && one->profile_id == other->profile_id;
    if (one->gpu_instance == other->gpu_instance)
        return same_place && one->compute_instance != other->compute_instance;
    return one->start + one->profile.size <= other->start || other->start + other->profile.size <= one->start;
}

static bool read_device(const struct json *node, const struct state *state, struct mig_device *device, struct problem *why)
{
#define AT(member) offsetof(struct mig_device, member)
    static const struct field fields[] = {
        {"uuid", TEXT, true, AT(uuid), 0},
        {"profile_id", UINT, true, AT(profile_id), 0},
        {"start", UINT, true, AT(start), 0},
        {"gpu_instance", UINT, true, AT(gpu_instance), 0},
        {"compute_instance", UINT, false, AT(compute_instance), 0}, /* 0 */
        {"compute_slices", UINT, false, AT(compute_slices), 0},     /* the profile's */
        {"multiprocessors", UINT, false, AT(multiprocessors), 0},   /* the profile's */
        {0},
    };
#undef AT
    if (!read_fields(node, fields, nowhere, device, why))
        return false;
    for (unsigned i = 0; i < state->mig_profile_count; i++)
        if (state->mig_profiles[i].id == device->profile_id)
            device->profile = state->mig_profiles[i];
    if (device->profile.size == 0)
        return complain(why, device->uuid, "a profile that the board does not have");
    if (device->compute_slices == 0)
        device->compute_slices = device->profile.slices;
    if (device->multiprocessors == 0)
        device->multiprocessors = device->profile.multiprocessors;
    return true;
}

bool read_mig_devices(const struct json *node, const struct state *state, struct gpu *gpu, struct problem *why)
{
    for (const struct json *item = elements(node, "mig_devices", why); item != NULL; item = item->next) {
        struct mig_device *device = &gpu->mig_devices[gpu->mig_device_count];
        if (gpu->mig_device_count == MAX_MIG_DEVICES || gpu->mig_device_count == gpu->max_mig_devices)
            return complain(why, "mig_devices", "too many");
        if (!read_device(item, state, device, why))
            return false;
        for (unsigned i = 0; i < gpu->mig_device_count; i++)
            if (!fits(&gpu->mig_devices[i], device))
                return complain(why, device->uuid, "its place is taken");
        gpu->mig_device_count++;
    }
    if (gpu->mig_device_count > 0 && !(gpu->has_mig && gpu->mig_mode == 1))
        return complain(why, gpu->uuid, "MIG devices without MIG mode");
    return why->text[0] == '\0';
}
