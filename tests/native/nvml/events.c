/* Event sets: what a health watcher waits on.
 *
 * An event of the file reaches each set that registered its GPU and type once: when its id is above the last one that set
 * took. A set made after an event was written still gets it, so that a test need not know when the watcher began to listen
 * (the real driver drops what nobody listens to).
 */
#include "gate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct registration {
    struct registration *next;
    char uuid[TEXT_SIZE];
    unsigned long long types;
};

struct nvml_event_set {
    struct nvml_event_set *next;
    struct registration *registrations;
    uint64_t last_id;
    bool freed; /* never given back to malloc, so a waiter on a freed set reads a set */
};

static nvmlEventSet_t sets;

enum { POLL_MS = 5 };

static bool is_live(nvmlEventSet_t wanted)
{
    for (nvmlEventSet_t set = sets; set != NULL; set = set->next)
        if (set == wanted)
            return !set->freed;
    return false;
}

static nvmlReturn_t add_set(const struct state *state, void *context)
{
    (void)state;
    nvmlEventSet_t set = calloc(1, sizeof *set);
    if (set == NULL)
        return NVML_ERROR_MEMORY;
    set->next = sets;
    sets = set;
    *(nvmlEventSet_t *)context = set;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlEventSet_t made = NULL;
    nvmlReturn_t status = gate_locked(__func__, add_set, &made);
    if (status != NVML_SUCCESS)
        return status;
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *set = made;
    return NVML_SUCCESS;
}

static nvmlReturn_t free_set(const struct state *state, void *context)
{
    (void)state;
    nvmlEventSet_t set = context;
    if (!is_live(set))
        return NVML_ERROR_INVALID_ARGUMENT;
    set->freed = true;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    return gate_locked(__func__, free_set, set);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, types, &gpu);
    if (status == NVML_SUCCESS)
        *types = gpu.supported_events;
    return status;
}

struct register_call {
    nvmlEventSet_t set;
    const char *uuid;
    unsigned long long types;
};

static nvmlReturn_t add_registration(const struct state *state, void *context)
{
    (void)state;
    const struct register_call *call = context;
    if (!is_live(call->set))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct registration *registration = calloc(1, sizeof *registration);
    if (registration == NULL)
        return NVML_ERROR_MEMORY;
    strcpy(registration->uuid, call->uuid);
    registration->types = call->types;
    registration->next = call->set->registrations;
    call->set->registrations = registration;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    struct gpu gpu;
    nvmlReturn_t status = gate_device(__func__, device, set, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    if (types == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((types & ~gpu.supported_events) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return gate_locked(__func__, add_registration, &(struct register_call){set, gpu.uuid, types});
}

struct wait_call {
    nvmlEventSet_t set;
    nvmlEventData_t data;
    char uuid[TEXT_SIZE];
    bool hangs;
};

static bool wants(nvmlEventSet_t set, const struct event *event)
{
    for (const struct registration *r = set->registrations; r != NULL; r = r->next)
        if ((r->types & event->type) != 0 && strcmp(r->uuid, event->gpu) == 0)
            return true;
    return false;
}

static const struct event *next_event(const struct state *state, nvmlEventSet_t set)
{
    const struct event *next = NULL;
    for (unsigned i = 0; i < state->event_count; i++) {
        const struct event *event = &state->events[i];
        if (event->id > set->last_id && (next == NULL || event->id < next->id) && wants(set, event))
            next = event;
    }
    return next;
}

/* A wait ends with GPU_IS_LOST when a registered GPU is gone, but only after the events that tell of it. */
static nvmlReturn_t take_event(const struct state *state, void *context)
{
    struct wait_call *call = context;
    call->hangs = false;
    if (!is_live(call->set))
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct event *event = next_event(state, call->set);
    if (event != NULL) {
        call->set->last_id = event->id;
        call->data = (nvmlEventData_t){NULL, event->type, event->data, (unsigned)event->gpu_instance,
                                       (unsigned)event->compute_instance};
        strcpy(call->uuid, event->gpu);
        return NVML_SUCCESS;
    }
    for (const struct registration *r = call->set->registrations; r != NULL; r = r->next) {
        const struct fault *fault = fault_of_gpu(state, "nvmlEventSetWait_v2", r->uuid);
        if (fault != NULL && !fault->hang)
            return (nvmlReturn_t)fault->error;
        call->hangs = call->hangs || fault != NULL;
    }
    return NVML_ERROR_TIMEOUT;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    struct wait_call call = {.set = set};
    uint64_t deadline = now_ns() + (uint64_t)timeout_ms * 1000000;
    nvmlReturn_t status;
    while ((status = gate_locked(__func__, take_event, &call)) == NVML_ERROR_TIMEOUT && (call.hangs || now_ns() < deadline))
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000}, NULL);
    if (status != NVML_SUCCESS)
        return status;
    if (data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *data = call.data;
    data->device = handle_of(call.uuid);
    return NVML_SUCCESS;
}
