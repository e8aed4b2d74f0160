#include "status.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *status_name(int code)
{
    static const char *const names[] = {
        "OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
        "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
        "DataLoss", "Unauthenticated",
    };
    return code >= 0 && (size_t)code < sizeof names / sizeof *names ? names[code] : "Code";
}

bool status_set(struct status *status, int code, const char *text)
{
    status->code = code;
    snprintf(status->text, sizeof status->text, "%s", text);
    return false;
}

void response_take_header(const char *name, const char *value, void *context)
{
    struct response *response = context;
    if (strcmp(name, ":status") == 0)
        response->http_status = atoi(value);
    else if (strcmp(name, "content-type") == 0)
        response->is_grpc = strncasecmp(value, "application/grpc", 16) == 0;
    else if (strcmp(name, "grpc-status") == 0)
        response->grpc_status = isdigit((unsigned char)value[0]) ? atoi(value) : UNKNOWN;
    else if (strcmp(name, "grpc-message") == 0)
        snprintf(response->grpc_message, sizeof response->grpc_message, "%s", value);
}

/* grpc-message is percent-encoded UTF-8; a bad escape stands for itself. Control characters become spaces: one line. */
static void decode_message(const char *in, char *out)
{
    for (; *in != '\0'; in++) {
        unsigned byte = (unsigned char)*in;
        if (*in == '%' && isxdigit((unsigned char)in[1]) && isxdigit((unsigned char)in[2])) {
            sscanf(in + 1, "%2x", &byte);
            in += 2;
        }
        *out++ = (char)(byte < 0x20 || byte == 0x7F ? ' ' : byte);
    }
    *out = '\0';
}

/* Source: grpc-go internal/transport/http_util.go, HTTPStatusConvTab. */
static int code_of_http(int http_status)
{
    switch (http_status) {
    case 400:
        return INTERNAL;
    case 401:
        return 16;
    case 403:
        return 7;
    case 404:
        return 12;
    case 429:
    case 502:
    case 503:
    case 504:
        return UNAVAILABLE;
    default:
        return UNKNOWN;
    }
}

bool response_is_grpc(const struct response *response, struct status *status)
{
    char text[128];
    if (response->http_status != 200) {
        snprintf(text, sizeof text, "unexpected HTTP status code received from server: %d", response->http_status);
        return status_set(status, code_of_http(response->http_status), text);
    }
    if (!response->is_grpc)
        return status_set(status, UNKNOWN, "malformed header: missing HTTP content-type");
    return true;
}

void response_judge(const struct response *response, struct status *status)
{
    if (response->grpc_status < 0) {
        status_set(status, INTERNAL, "server closed the stream without sending trailers");
        return;
    }
    status->code = response->grpc_status;
    decode_message(response->grpc_message, status->text);
    if (status->code == OK && !response->has_message)
        status_set(status, INTERNAL, "cardinality violation: received no response message from non-server-streaming RPC");
}
