/* The command line the enforcement library uses. Source: vgpu-manager cmd/device-client/main.go, library/src/register.c. */
#ifndef VGPU_ARGUMENTS_H
#define VGPU_ARGUMENTS_H

#include <stdbool.h>

struct arguments {
    const char *address, *pod_uid, *container_name, *register_uuid; /* never NULL; without space at the ends */
    int timeout_s; /* for the dial, and again for the call */
    bool version;
};

/* Reads `--name value` and `--name=value`; the strings of `argv` are trimmed in place. NULL, or what is wrong with them. */
const char *arguments_read(int argc, char **argv, struct arguments *arguments);

#endif
