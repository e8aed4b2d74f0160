#include "gate.h"

#include "source.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct nvml_handle {
    struct nvml_handle *next;
    char uuid[TEXT_SIZE];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvml_handle *handles; /* only ever grows */
static unsigned initialised;

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static struct nvml_handle *intern(const char *uuid)
{
    for (struct nvml_handle *handle = handles; handle != NULL; handle = handle->next)
        if (strcmp(handle->uuid, uuid) == 0)
            return handle;
    struct nvml_handle *handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        return NULL;
    strcpy(handle->uuid, uuid);
    handle->next = handles;
    handles = handle;
    return handle;
}

nvmlDevice_t handle_of(const char *uuid)
{
    pthread_mutex_lock(&lock);
    nvmlDevice_t handle = intern(uuid);
    pthread_mutex_unlock(&lock);
    return handle;
}

static const struct gpu *gpu_with_uuid(const struct state *state, const char *uuid)
{
    for (unsigned i = 0; i < state->gpu_count; i++)
        if (strcmp(state->gpus[i].uuid, uuid) == 0)
            return &state->gpus[i];
    return NULL;
}

static nvmlReturn_t find_by_handle(const struct state *state, nvmlDevice_t wanted, const struct gpu **found)
{
    const struct nvml_handle *handle = handles;
    while (handle != NULL && handle != wanted)
        handle = handle->next;
    if (handle == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *found = gpu_with_uuid(state, handle->uuid);
    return *found == NULL ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static nvmlReturn_t find_by_bus_id(const struct state *state, const char *text, const struct gpu **found)
{
    struct bus_address bus;
    if (text == NULL || !parse_bus_id(text, &bus))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < state->gpu_count; i++)
        if (memcmp(&state->gpus[i].bus, &bus, sizeof bus) == 0)
            *found = &state->gpus[i];
    return *found == NULL ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

static nvmlReturn_t find_gpu(const struct state *state, const struct selector *selector, const struct gpu **found)
{
    *found = NULL;
    switch (selector->by) {
    case BY_HANDLE:
        return find_by_handle(state, selector->handle, found);
    case BY_INDEX:
        if (selector->index >= state->gpu_count)
            return NVML_ERROR_INVALID_ARGUMENT;
        *found = &state->gpus[selector->index];
        return NVML_SUCCESS;
    case BY_UUID:
        if (selector->uuid == NULL)
            return NVML_ERROR_INVALID_ARGUMENT;
        *found = gpu_with_uuid(state, selector->uuid);
        return *found == NULL ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
    case BY_BUS_ID:
        return find_by_bus_id(state, selector->bus_id, found);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* A fault that names a GPU meets only the calls about it; one that names none meets them all. */
static const struct fault *find_fault(const struct state *state, const char *function, const char *uuid)
{
    for (unsigned i = 0; i < state->fault_count; i++) {
        const struct fault *fault = &state->faults[i];
        bool here = strcmp(fault->function, "*") == 0 || strcmp(fault->function, function) == 0;
        if (here && (fault->gpu[0] == '\0' || (uuid != NULL && strcmp(fault->gpu, uuid) == 0)))
            return fault;
    }
    return NULL;
}

const struct fault *fault_of_gpu(const struct state *state, const char *function, const char *uuid)
{
    return find_fault(state, function, uuid);
}

struct pass {
    const char *function;
    bool opens;                      /* init: let through before there was an init, and counted when it succeeds */
    const struct selector *selector; /* NULL: no GPU */
    struct gpu *gpu;
    nvmlReturn_t (*use)(const struct state *state, void *context); /* NULL: nothing to do under the lock */
    void *context;
};

/* With the lock held: what the call answers, or true in `hangs`. */
static nvmlReturn_t judge(const struct pass *pass, bool *hangs)
{
    const struct gpu *gpu = NULL;
    const struct state *state = source_state();
    if (initialised == 0 && !pass->opens)
        return NVML_ERROR_UNINITIALIZED;
    if (state == NULL)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (pass->selector != NULL) {
        nvmlReturn_t status = find_gpu(state, pass->selector, &gpu);
        if (status != NVML_SUCCESS)
            return status;
        *pass->gpu = *gpu;
    }
    const struct fault *fault = find_fault(state, pass->function, gpu == NULL ? NULL : gpu->uuid);
    *hangs = fault != NULL && fault->hang;
    if (fault != NULL)
        return (nvmlReturn_t)fault->error;
    if (pass->opens)
        initialised++;
    return pass->use == NULL ? NVML_SUCCESS : pass->use(state, pass->context);
}

static nvmlReturn_t go_through(const struct pass *pass)
{
    for (;;) {
        bool hangs = false;
        pthread_mutex_lock(&lock);
        nvmlReturn_t status = judge(pass, &hangs);
        pthread_mutex_unlock(&lock);
        if (!hangs)
            return status;
        sleep_ms(20);
    }
}

nvmlReturn_t gate_system(const char *function)
{
    return go_through(&(struct pass){.function = function});
}

nvmlReturn_t gate_gpu(const char *function, const struct selector *selector, struct gpu *gpu)
{
    return go_through(&(struct pass){.function = function, .selector = selector, .gpu = gpu});
}

nvmlReturn_t gate_device(const char *function, nvmlDevice_t device, const void *result, struct gpu *gpu)
{
    struct selector selector = {.by = BY_HANDLE, .handle = device};
    nvmlReturn_t status = gate_gpu(function, &selector, gpu);
    return status == NVML_SUCCESS && result == NULL ? NVML_ERROR_INVALID_ARGUMENT : status;
}

nvmlReturn_t gate_locked(const char *function, nvmlReturn_t (*use)(const struct state *state, void *context), void *context)
{
    return go_through(&(struct pass){.function = function, .use = use, .context = context});
}

nvmlReturn_t put_text(const char *text, char *buffer, unsigned size)
{
    if (buffer == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t close_once(const struct state *state, void *context)
{
    (void)state;
    (void)context;
    initialised--;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return go_through(&(struct pass){.function = __func__, .opens = true});
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return go_through(&(struct pass){.function = __func__, .opens = true});
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    return gate_locked(__func__, close_once, NULL);
}
