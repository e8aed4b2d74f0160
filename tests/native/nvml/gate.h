/* What every NVML call goes through first: is the library initialised, what does the file say at this moment, is this call to
 * fail or to hang.
 *
 * The one lock lives here. It is held while state is read and copied, never while a call hangs or waits for an event, so one
 * hanging call does not stop the others: the real driver's locks are finer than one per process too.
 */
#ifndef VGPU_NVML_GATE_H
#define VGPU_NVML_GATE_H

#include "abi.h"
#include "state.h"

/* What the callers of NVML name: a GPU, one of its MIG devices or GPU instances. A MIG device's handle is no GPU's, and the other way
 * round, except for BY_EITHER_HANDLE. */
struct selector {
    enum { BY_HANDLE, BY_MIG_HANDLE, BY_EITHER_HANDLE, BY_INSTANCE, BY_INDEX, BY_UUID, BY_BUS_ID } by;
    nvmlDevice_t handle; /* or an nvmlGpuInstance_t */
    unsigned index;
    const char *uuid;
    const char *bus_id;
};

/* Passes a call that concerns no GPU: NVML_SUCCESS, or what `function` must answer. Hangs as long as the file says so. */
nvmlReturn_t gate_system(const char *function);

/* Passes a call about one GPU, whose state at this moment is copied to `gpu`. */
nvmlReturn_t gate_gpu(const char *function, const struct selector *selector, struct gpu *gpu);

/* gate_gpu that also copies the MIG device, or the first of the GPU instance, that was named; an empty UUID when it was the GPU. */
nvmlReturn_t gate_mig(const char *function, const struct selector *selector, struct gpu *gpu, struct mig_device *mig);

/* gate_gpu for a handle, and the check that the caller's result pointer is there. */
nvmlReturn_t gate_device(const char *function, nvmlDevice_t device, const void *result, struct gpu *gpu);

/* The handle of a GPU or MIG device: one per UUID for the life of the process, so it stays valid when the file changes. */
nvmlDevice_t handle_of(const char *uuid);

/* The handle of a GPU instance of the GPU `uuid`, as lasting. */
nvmlGpuInstance_t instance_handle_of(const char *uuid, uint64_t gpu_instance);

/* With the lock held, `use` sees the state of this moment and may change what it shares with other calls. The lock and a fresh
 * state are what it gets; init and faults are checked before. */
nvmlReturn_t gate_locked(const char *function, nvmlReturn_t (*use)(const struct state *state, void *context), void *context);

/* Within gate_locked: the fault that `function` meets on the GPU `uuid`, or NULL. */
const struct fault *fault_of_gpu(const struct state *state, const char *function, const char *uuid);

/* Copies text to a caller's buffer, or says that it does not fit. */
nvmlReturn_t put_text(const char *text, char *buffer, unsigned size);

#endif
