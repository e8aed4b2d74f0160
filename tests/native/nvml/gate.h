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

/* A GPU as the callers of NVML name it. */
struct selector {
    enum { BY_HANDLE, BY_INDEX, BY_UUID, BY_BUS_ID } by;
    nvmlDevice_t handle;
    unsigned index;
    const char *uuid;
    const char *bus_id;
};

/* Passes a call that concerns no GPU: NVML_SUCCESS, or what `function` must answer. Hangs as long as the file says so. */
nvmlReturn_t gate_system(const char *function);

/* Passes a call about one GPU, whose state at this moment is copied to `gpu`. */
nvmlReturn_t gate_gpu(const char *function, const struct selector *selector, struct gpu *gpu);

/* gate_gpu for a handle, and the check that the caller's result pointer is there. */
nvmlReturn_t gate_device(const char *function, nvmlDevice_t device, const void *result, struct gpu *gpu);

/* The handle of a GPU: one per UUID for the life of the process, so it stays valid when the file changes. */
nvmlDevice_t handle_of(const char *uuid);

/* With the lock held, `use` sees the state of this moment and may change what it shares with other calls. The lock and a fresh
 * state are what it gets; init and faults are checked before. */
nvmlReturn_t gate_locked(const char *function, nvmlReturn_t (*use)(const struct state *state, void *context), void *context);

/* Within gate_locked: the fault that `function` meets on the GPU `uuid`, or NULL. */
const struct fault *fault_of_gpu(const struct state *state, const char *function, const char *uuid);

/* Copies text to a caller's buffer, or says that it does not fit. */
nvmlReturn_t put_text(const char *text, char *buffer, unsigned size);

#endif
