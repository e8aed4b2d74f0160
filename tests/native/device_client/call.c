#include "call.h"

#include "http2.h"
#include "status.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX = 5, MAX_RESPONSE = 64 * 1024 };

/* A response message as far as it has come: compressed flag, length, bytes. */
struct body {
    uint8_t prefix[PREFIX];
    size_t size;
};

/* Tells a status what ended the connection. */
static bool explain(const struct http2 *connection, struct status *status)
{
    switch (connection->end) {
    case LATE:
        return status_set(status, DEADLINE_EXCEEDED, "context deadline exceeded");
    case CLOSED:
        return status_set(status, UNAVAILABLE, "error reading from server: EOF");
    case FAULT:
        return status_set(status, UNAVAILABLE, connection->text);
    case OPEN:
        break;
    }
    return false;
}

static void ignore_header(const char *name, const char *value, void *context)
{
    (void)name;
    (void)value;
    (void)context;
}

/* grpc-go's blocking dial is done when the server's settings are there. */
static bool dial(struct http2 *connection, const struct arguments *arguments, struct status *status)
{
    struct news news = {0};
    int64_t deadline_us = wire_now_us() + (int64_t)arguments->timeout_s * 1000000;
    if (!http2_open(connection, arguments->address, deadline_us))
        return explain(connection, status);
    do {
        if (!http2_next(connection, &news, ignore_header, NULL))
            return explain(connection, status);
        if (news.kind == NEWS_REFUSED)
            return status_set(status, UNAVAILABLE, "the server is going away");
    } while (news.kind != NEWS_SETTINGS);
    return true;
}

/* Source: grpc-go clientconn.go, encodeAuthority: unreserved characters, sub-delimiters and ":[]@" stay. */
static char *escape_authority(const char *path)
{
    char *out = malloc(3 * strlen(path) + 1), *end = out;
    for (; out != NULL && *path != '\0'; path++) {
        if (isalnum((unsigned char)*path) || strchr("-_.~!$&'()*+,;=:[]@", *path) != NULL)
            *end++ = *path;
        else
            end += sprintf(end, "%%%02X", (unsigned char)*path);
    }
    if (out != NULL)
        *end = '\0';
    return out;
}

/* Source: grpc-go internal/grpcutil/encode_duration.go: the finest unit that needs at most 8 digits, rounded up. */
static void format_timeout(int64_t left_us, char *out, size_t size)
{
    static const struct {
        int64_t us;
        char unit;
    } units[] = {{1, 'u'}, {1000, 'm'}, {1000000, 'S'}};
    size_t i = 0;
    if (left_us * 1000 <= 99999999) {
        snprintf(out, size, "%lldn", (long long)left_us * 1000);
        return;
    }
    while (i < 2 && (left_us + units[i].us - 1) / units[i].us > 99999999)
        i++;
    snprintf(out, size, "%lld%c", (long long)((left_us + units[i].us - 1) / units[i].us), units[i].unit);
}

static bool send_headers(struct http2 *connection, const char *authority)
{
    uint8_t block[4096];
    size_t used = 0;
    char timeout[32];
    format_timeout(connection->deadline_us - wire_now_us(), timeout, sizeof timeout);
    const char *const headers[][2] = {
        {":method", "POST"},
        {":scheme", "http"},
        {":path", "/registry.VDeviceRegistry/RegisterContainerDevice"},
        {":authority", authority},
        {"content-type", "application/grpc"},
        {"user-agent", "grpc-go/1.83.0"},
        {"te", "trailers"},
        {"grpc-timeout", timeout},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        if (!hpack_encode(block, sizeof block, &used, headers[i][0], headers[i][1]))
            return false;
    return http2_send_frame(connection, HEADERS, END_HEADERS, block, used);
}

static size_t put_varint(uint8_t *out, size_t value)
{
    size_t used = 0;
    for (; value >= 128; value >>= 7)
        out[used++] = (uint8_t)(value | 0x80);
    out[used++] = (uint8_t)value;
    return used;
}

/* A string field of protobuf; proto3 leaves an empty one out. */
static size_t put_string(uint8_t *out, unsigned number, const char *text)
{
    size_t length = strlen(text), used = 0;
    if (length == 0)
        return 0;
    out[used++] = (uint8_t)(number << 3 | 2);
    used += put_varint(out + used, length);
    memcpy(out + used, text, length);
    return used + length;
}

/* The request with its gRPC prefix; NULL without memory. */
static uint8_t *encode_request(const struct arguments *arguments, size_t *size)
{
    size_t room = PREFIX + strlen(arguments->pod_uid) + strlen(arguments->container_name) + strlen(arguments->register_uuid);
    uint8_t *body = malloc(room + 3 * 11);
    if (body == NULL)
        return NULL;
    *size = PREFIX;
    *size += put_string(body + *size, 1, arguments->pod_uid);
    *size += put_string(body + *size, 2, arguments->container_name);
    *size += put_string(body + *size, 3, arguments->register_uuid);
    size_t length = *size - PREFIX;
    body[0] = 0;
    for (int i = 0; i < 4; i++)
        body[1 + i] = (uint8_t)(length >> (24 - 8 * i));
    return body;
}

static bool take_data(struct body *body, const struct news *news, struct response *response, struct status *status)
{
    for (size_t i = 0; i < news->size && body->size + i < PREFIX; i++)
        body->prefix[body->size + i] = news->data[i];
    body->size += news->size;
    if (body->size < PREFIX)
        return true;
    size_t length = (size_t)body->prefix[1] << 24 | (size_t)body->prefix[2] << 16 | (size_t)body->prefix[3] << 8 | body->prefix[4];
    if (body->prefix[0] != 0)
        return status_set(status, INTERNAL, "compressed response without a compressor");
    if (length > MAX_RESPONSE - PREFIX)
        return status_set(status, RESOURCE_EXHAUSTED, "received message larger than max");
    if (body->size > PREFIX + length)
        return status_set(status, INTERNAL, "more than one response message");
    response->has_message = body->size == PREFIX + length;
    return true;
}

/* Answers to one piece of news; false when the call is over. */
static bool take_news(const struct news *news, struct response *response, struct body *body, struct status *status)
{
    char text[64];
    switch (news->kind) {
    case NEWS_HEADERS:
        if (!response->has_headers && response->http_status / 100 == 1 && !news->end_stream)
            return true;
        if (!response->has_headers && !response_is_grpc(response, status))
            return false;
        response->has_headers = true;
        break;
    case NEWS_DATA:
        if (!take_data(body, news, response, status))
            return false;
        break;
    case NEWS_RESET:
        snprintf(text, sizeof text, "stream terminated by RST_STREAM with error code: %u", news->error);
        return status_set(status, news->error == 11 ? RESOURCE_EXHAUSTED : news->error == 7 ? UNAVAILABLE : INTERNAL, text);
    case NEWS_REFUSED:
        snprintf(text, sizeof text, "the server is going away, error code: %u", news->error);
        return status_set(status, UNAVAILABLE, text);
    case NEWS_SETTINGS:
    case NEWS_WINDOW:
        return true;
    }
    if (news->end_stream)
        response_judge(response, status);
    return !news->end_stream;
}

/* The call on a connection that is up. */
static void exchange(struct http2 *connection, const uint8_t *request, size_t size, struct status *status)
{
    struct response response = {.grpc_status = -1};
    struct body body = {0};
    struct news news = {0};
    size_t sent = 0;
    do {
        if (!http2_send_data(connection, request, size, &sent) ||
            !http2_next(connection, &news, response_take_header, &response)) {
            explain(connection, status);
            return;
        }
    } while (take_news(&news, &response, &body, status));
}

/* What grpc-go sends when the deadline of a call passes. */
static void cancel(struct http2 *connection)
{
    static const uint8_t cancelled[4] = {0, 0, 0, 8};
    connection->deadline_us = wire_now_us() + 100000;
    http2_send_frame(connection, RST_STREAM, 0, cancelled, sizeof cancelled);
}

static void call(struct http2 *connection, const struct arguments *arguments, struct status *status)
{
    size_t size = 0;
    char *authority = escape_authority(arguments->address);
    uint8_t *request = encode_request(arguments, &size);
    connection->deadline_us = wire_now_us() + (int64_t)arguments->timeout_s * 1000000;
    if (authority == NULL || request == NULL)
        status_set(status, RESOURCE_EXHAUSTED, "out of memory");
    else if (!send_headers(connection, authority))
        explain(connection, status);
    else
        exchange(connection, request, size, status);
    if (connection->end == LATE)
        cancel(connection);
    free(authority);
    free(request);
}

void call_register(const struct arguments *arguments, struct status *status)
{
    static struct http2 connection; /* 64 KiB of header block */
    status_set(status, UNKNOWN, "");
    if (dial(&connection, arguments, status))
        call(&connection, arguments, status);
    http2_close(&connection);
}
