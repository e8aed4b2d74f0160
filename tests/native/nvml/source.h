/* Where the state comes from: the JSON file, read again whenever it is another file than last time. */
#ifndef VGPU_NVML_SOURCE_H
#define VGPU_NVML_SOURCE_H

#include "state.h"

/* The state the file holds at this moment, or NULL (with the reason on stderr, once per file) when it is missing or invalid.
 * The result lasts until the next call; callers hold the lock of gate.c. */
const struct state *source_state(void);

/* The driver version in the name of the library's file, "" when the file has none: the real library serves one driver only. */
const char *source_library_version(void);

#endif
