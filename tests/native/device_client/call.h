/* One unary gRPC call, as grpc-go 1.83 makes it. */
#ifndef VGPU_CALL_H
#define VGPU_CALL_H

#include "arguments.h"

enum { STATUS_TEXT = 8192 };

struct status {
    int code;                /* gRPC status, 0 = OK */
    char text[STATUS_TEXT]; /* UTF-8, one line */
};

/* registry.VDeviceRegistry/RegisterContainerDevice with these arguments. */
void call_register(const struct arguments *arguments, struct status *status);

/* "PermissionDenied" for 7. */
const char *status_name(int code);

#endif
