#include "gate.h"

#include "source.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct nvml_handle {
    struct nvml_handle *next;
    char uuid[TEXT_SIZE];
    bool is_instance; /* of a GPU instance of the GPU `uuid` */
    uint64_t gpu_instance;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvml_handle *handles; /* only ever grows */
static unsigned initialised;

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static struct nvml_handle *find_or_add(const struct nvml_handle *wanted)
{
    for (struct nvml_handle *handle = handles; handle != NULL; handle = handle->next)
        if (strcmp(handle->uuid, wanted->uuid) == 0 && handle->is_instance == wanted->is_instance &&
            handle->gpu_instance == wanted->gpu_instance)
            return handle;
    struct nvml_handle *handle = malloc(sizeof *handle);
    if (handle == NULL)
        return NULL;
    *handle = *wanted;
    handle->next = handles;
    handles = handle;
    return handle;
}

static struct nvml_handle *intern(struct nvml_handle wanted, const char *uuid)
{
    strcpy(wanted.uuid, uuid);
    pthread_mutex_lock(&lock);
    struct nvml_handle *handle = find_or_add(&wanted);
    pthread_mutex_unlock(&lock);
    return handle;
}

nvmlDevice_t handle_of(const char *uuid)
{
    return intern((struct nvml_handle){0}, uuid);
}

nvmlGpuInstance_t instance_handle_of(const char *uuid, uint64_t gpu_instance)
{
    return intern((struct nvml_handle){.is_instance = true, .gpu_instance = gpu_instance}, uuid);
}

static const struct gpu *gpu_with_uuid(const struct state *state, const char *uuid)
{
    for (unsigned i = 0; i < state->gpu_count; i++)
        if (strcmp(state->gpus[i].uuid, uuid) == 0)
            return &state->gpus[i];
    return NULL;
}

/* What a call is about: a GPU, and of it a MIG device, NULL when the GPU itself is meant. */
struct target {
    const struct gpu *gpu;
    const struct mig_device *mig;
};

static nvmlReturn_t find_by_uuid(const struct state *state, const char *uuid, struct target *found)
{
    found->gpu = gpu_with_uuid(state, uuid);
    for (unsigned i = 0; found->gpu == NULL && i < state->gpu_count; i++)
        for (unsigned m = 0; m < state->gpus[i].mig_device_count; m++)
            if (strcmp(state->gpus[i].mig_devices[m].uuid, uuid) == 0)
                *found = (struct target){&state->gpus[i], &state->gpus[i].mig_devices[m]};
    return found->gpu == NULL ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

static nvmlReturn_t find_instance(const struct state *state, const struct nvml_handle *handle, struct target *found)
{
    found->gpu = gpu_with_uuid(state, handle->uuid);
    if (found->gpu == NULL)
        return NVML_ERROR_GPU_IS_LOST;
    for (unsigned m = 0; found->mig == NULL && m < found->gpu->mig_device_count; m++)
        if (found->gpu->mig_devices[m].gpu_instance == handle->gpu_instance)
            found->mig = &found->gpu->mig_devices[m];
    return found->mig == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

static nvmlReturn_t find_by_handle(const struct state *state, const struct selector *selector, struct target *found)
{
    const struct nvml_handle *handle = handles;
    while (handle != NULL && handle != selector->handle)
        handle = handle->next;
    if (handle == NULL || handle->is_instance != (selector->by == BY_INSTANCE))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (handle->is_instance)
        return find_instance(state, handle, found);
    if (find_by_uuid(state, handle->uuid, found) != NVML_SUCCESS)
        /* A MIG device that was removed leaves its handle meaning nothing; the GPU of another is off the bus. */
        return strncmp(handle->uuid, "MIG-", 4) == 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_GPU_IS_LOST;
    if (selector->by == BY_HANDLE && found->mig != NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    return selector->by == BY_MIG_HANDLE && found->mig == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
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

static nvmlReturn_t find_target(const struct state *state, const struct selector *selector, struct target *found)
{
    switch (selector->by) {
    case BY_HANDLE:
    case BY_MIG_HANDLE:
    case BY_EITHER_HANDLE:
    case BY_INSTANCE:
        return find_by_handle(state, selector, found);
    case BY_INDEX:
        if (selector->index >= state->gpu_count)
            return NVML_ERROR_INVALID_ARGUMENT;
        found->gpu = &state->gpus[selector->index];
        return NVML_SUCCESS;
    case BY_UUID:
        return selector->uuid == NULL ? NVML_ERROR_INVALID_ARGUMENT : find_by_uuid(state, selector->uuid, found);
    case BY_BUS_ID:
        return find_by_bus_id(state, selector->bus_id, &found->gpu);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* A fault that names a GPU meets only the calls about it and its MIG devices, one that names a MIG device those about that one; one
 * that names none meets them all. */
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
    struct mig_device *mig; /* NULL: nobody asks which */
    nvmlReturn_t (*use)(const struct state *state, void *context); /* NULL: nothing to do under the lock */
    void *context;
};

/* With the lock held: what the call answers, or true in `hangs`. */
static nvmlReturn_t judge(const struct pass *pass, bool *hangs)
{
    struct target target = {0};
    const struct state *state = source_state();
    if (initialised == 0 && !pass->opens)
        return NVML_ERROR_UNINITIALIZED;
    if (state == NULL)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (source_library_version()[0] != '\0' && strcmp(source_library_version(), state->driver_version) != 0)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (pass->selector != NULL) {
        nvmlReturn_t status = find_target(state, pass->selector, &target);
        if (status != NVML_SUCCESS)
            return status;
        *pass->gpu = *target.gpu;
        if (pass->mig != NULL)
            *pass->mig = target.mig == NULL ? (struct mig_device){0} : *target.mig;
    }
    const struct fault *fault = find_fault(state, pass->function, target.gpu == NULL ? NULL : target.gpu->uuid);
    if (fault == NULL && target.mig != NULL)
        fault = find_fault(state, pass->function, target.mig->uuid);
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

nvmlReturn_t gate_mig(const char *function, const struct selector *selector, struct gpu *gpu, struct mig_device *mig)
{
    return go_through(&(struct pass){.function = function, .selector = selector, .gpu = gpu, .mig = mig});
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
