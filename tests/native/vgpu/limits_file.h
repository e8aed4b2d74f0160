/* The limits file mapped and checked as the enforcement library does it. */
#ifndef VGPU_LIMITS_FILE_H
#define VGPU_LIMITS_FILE_H

#include "vgpu_config.h"

#include <stdbool.h>

/* The file mapped read-only for the life of the process; NULL and a sentence in `*why` when it is missing or malformed. Allocates
 * nothing and leaves no file open. */
const struct vgpu_config *limits_map(const char *path, const char **why);

/* A copy of a slot that no writer was at meanwhile; false when one was at it all the time. */
bool limits_slot(const struct vgpu_config *config, unsigned index, struct vgpu_slot *slot);

#endif
