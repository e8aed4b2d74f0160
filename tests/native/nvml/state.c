/* JSON to state. */
#include "state.h"

#include "fields.h"
#include "state_mig.h"

#include <stdio.h>
#include <string.h>

static bool read_process(const struct json *node, nvmlProcessInfo_t *process, struct problem *why)
{
    struct {
        uint64_t pid, used_mib;
    } raw = {0};
    const struct field fields[] = {{"pid", UINT, true, 0, 0}, {"used_mib", UINT, true, sizeof raw.pid, 0}, {0}};
    if (!read_fields(node, fields, nowhere, &raw, why))
        return false;
    *process = (nvmlProcessInfo_t){(unsigned)raw.pid, raw.used_mib << 20, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
    return true;
}

static bool read_gpu(const struct json *node, const struct state *state, struct gpu *gpu, struct problem *why)
{
#define AT(member) offsetof(struct gpu, member)
    static const struct field fields[] = {
        {"uuid", TEXT, true, AT(uuid), 0},
        {"name", TEXT, true, AT(name), 0},
        {"minor", UINT, true, AT(minor), 0},
        {"memory_mib", UINT, true, AT(memory_mib), 0},
        {"pci_bus_id", BUS_ID, true, AT(bus), 0},
        {"compute_capability", PAIR, true, AT(cc_major), 0},
        {"architecture", UINT, true, AT(architecture), 0},
        {"used_mib", UINT, false, AT(used_mib), 0},         /* 0 */
        {"reserved_mib", UINT, false, AT(reserved_mib), 0}, /* 0 */
        {"brand", UINT, false, AT(brand), 0},               /* 14, NVML_BRAND_NVIDIA */
        {"serial", TEXT, false, AT(serial), 0},             /* not supported */
        {"pci_device_id", UINT, false, AT(pci_device_id), 0},
        {"pci_subsystem_id", UINT, false, AT(pci_subsystem_id), 0},
        {"mig_mode", NULLABLE, false, AT(mig_mode), AT(has_mig)},             /* null, not supported */
        {"max_mig_devices", UINT, false, AT(max_mig_devices), 0},             /* 7 */
        {"numa_node", NULLABLE, false, AT(numa_node), AT(has_numa)},          /* null, not supported */
        {"ecc_corrected", NULLABLE, false, AT(ecc_corrected), AT(has_ecc)},   /* null, not supported */
        {"ecc_uncorrected", NULLABLE, false, AT(ecc_uncorrected), AT(has_ecc)},
        {"recovery_action", NULLABLE, false, AT(recovery_action), AT(has_recovery_action)},          /* null, not supported */
        {"remaps_pending", NULLABLE, false, AT(remaps_pending), AT(has_remapper)},                   /* null, not supported */
        {"retirements_pending", NULLABLE, false, AT(retirements_pending), AT(has_page_retirement)},  /* null, not supported */
        {"gpu_percent", UINT, false, AT(gpu_percent), 0},
        {"memory_percent", UINT, false, AT(memory_percent), 0},
        {"temperature_c", UINT, false, AT(temperature_c), 0},
        {"power_mw", UINT, false, AT(power_mw), 0},
        {"supported_events", UINT, false, AT(supported_events), 0}, /* ECC, P-state, XID, clock and MIG changes */
        {0},
    };
#undef AT
    static const char *const elsewhere[] = {"processes", "mig_devices", NULL};
    gpu->brand = 14;
    gpu->max_mig_devices = 7;
    gpu->supported_events = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100;
    if (!read_fields(node, fields, elsewhere, gpu, why))
        return false;
    if (gpu->used_mib + gpu->reserved_mib > gpu->memory_mib)
        return complain(why, gpu->uuid, "more memory used than there is");
    const struct json *list = json_member(node, "processes");
    for (const struct json *item = list == NULL ? NULL : list->first; item != NULL; item = item->next) {
        if (gpu->process_count == MAX_PROCESSES)
            return complain(why, "processes", "too many");
        if (!read_process(item, &gpu->processes[gpu->process_count++], why))
            return false;
    }
    return read_mig_devices(node, state, gpu, why);
}

static bool read_fault(const struct json *node, struct fault *fault, struct problem *why)
{
    static const struct field fields[] = {
        {"function", TEXT, true, offsetof(struct fault, function), 0},
        {"gpu", TEXT, false, offsetof(struct fault, gpu), 0},
        {"error", UINT, false, offsetof(struct fault, error), 0},
        {0},
    };
    static const char *const elsewhere[] = {"hang", NULL};
    if (!read_fields(node, fields, elsewhere, fault, why))
        return false;
    const struct json *hang = json_member(node, "hang");
    fault->hang = hang != NULL && hang->kind == JSON_BOOL && hang->boolean;
    if (fault->hang == (fault->error != 0))
        return complain(why, fault->function, "a fault has an error or hangs");
    return true;
}

static bool read_event(const struct json *node, struct event *event, struct problem *why)
{
    static const struct field fields[] = {
        {"id", UINT, true, offsetof(struct event, id), 0},
        {"gpu", TEXT, true, offsetof(struct event, gpu), 0},
        {"type", UINT, true, offsetof(struct event, type), 0},
        {"data", UINT, true, offsetof(struct event, data), 0},
        {"gpu_instance", UINT, false, offsetof(struct event, gpu_instance), 0},
        {"compute_instance", UINT, false, offsetof(struct event, compute_instance), 0},
        {0},
    };
    event->gpu_instance = event->compute_instance = NVML_NO_INSTANCE;
    if (!read_fields(node, fields, nowhere, event, why))
        return false;
    return event->id > 0 || complain(why, "events", "ids start at 1");
}

static bool read_lists(const struct json *root, struct state *state, struct problem *why)
{
    if (!read_mig_profiles(root, state, why))
        return false;
    for (const struct json *item = elements(root, "gpus", why); item != NULL; item = item->next) {
        if (state->gpu_count == MAX_GPUS)
            return complain(why, "gpus", "too many");
        state->gpus[state->gpu_count].index = state->gpu_count;
        if (!read_gpu(item, state, &state->gpus[state->gpu_count++], why))
            return false;
    }
    for (const struct json *item = elements(root, "faults", why); item != NULL; item = item->next) {
        if (state->fault_count == MAX_FAULTS)
            return complain(why, "faults", "too many");
        if (!read_fault(item, &state->faults[state->fault_count++], why))
            return false;
    }
    for (const struct json *item = elements(root, "events", why); item != NULL; item = item->next) {
        if (state->event_count == MAX_EVENTS)
            return complain(why, "events", "too many");
        if (!read_event(item, &state->events[state->event_count++], why))
            return false;
    }
    return why->text[0] == '\0';
}

bool state_parse(const char *text, size_t length, struct state *state, char *why, size_t why_size)
{
    static const struct field fields[] = {
        {"driver_version", TEXT, true, offsetof(struct state, driver_version), 0},
        {"nvml_version", TEXT, true, offsetof(struct state, nvml_version), 0},
        {"cuda_driver_version", UINT, true, offsetof(struct state, cuda_driver_version), 0},
        {0},
    };
    static const char *const elsewhere[] = {"gpus", "mig_profiles", "faults", "events", NULL};
    struct problem problem = {why, why_size};
    memset(state, 0, sizeof *state);
    why[0] = '\0';
    struct json *root = json_parse(text, length, why, why_size);
    bool good = root != NULL && read_fields(root, fields, elsewhere, state, &problem) && read_lists(root, state, &problem);
    json_free(root);
    return good;
}

bool parse_bus_id(const char *text, struct bus_address *bus)
{
    char rest;
    return sscanf(text, "%8x:%2x:%2x.%1x%c", &bus->domain, &bus->bus, &bus->device, &bus->function, &rest) == 4;
}
