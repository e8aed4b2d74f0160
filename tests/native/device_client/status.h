/* What the headers and trailers of a response say about the outcome. */
#ifndef VGPU_STATUS_H
#define VGPU_STATUS_H

#include "call.h"

struct response {
    bool has_headers;
    int http_status;
    bool is_grpc; /* its content-type */
    int grpc_status; /* -1: not given */
    char grpc_message[STATUS_TEXT]; /* percent-encoded */
    bool has_message; /* one whole gRPC message arrived */
};

enum grpc_code { OK = 0, UNKNOWN = 2, DEADLINE_EXCEEDED = 4, RESOURCE_EXHAUSTED = 8, INTERNAL = 13, UNAVAILABLE = 14 };

/* Takes one header of a response; a header_callback whose context is a struct response. */
void response_take_header(const char *name, const char *value, void *response);

/* The status of a stream that ended. */
void response_judge(const struct response *response, struct status *status);

/* Whether the headers are those of a gRPC response; if not, says what they are. */
bool response_is_grpc(const struct response *response, struct status *status);

/* Sets both; returns false, so that a failure can be returned in one line. */
bool status_set(struct status *status, int code, const char *text);

#endif
