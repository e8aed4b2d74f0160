#include "http2.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct frame {
    uint8_t type, flags;
    uint32_t stream;
    size_t size;
    uint8_t payload[MAX_FRAME];
};

static bool fault(struct http2 *connection, const char *text)
{
    connection->end = FAULT;
    snprintf(connection->text, sizeof connection->text, "%s", text);
    return false;
}

static bool check(struct http2 *connection, enum wire_result result)
{
    switch (result) {
    case WIRE_OK:
        return true;
    case WIRE_LATE:
        connection->end = LATE;
        return false;
    case WIRE_CLOSED:
        connection->end = CLOSED;
        return false;
    case WIRE_FAILED:
        return fault(connection, strerror(errno));
    }
    return false;
}

static uint32_t get32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void put32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

static bool send_frame_on(struct http2 *connection, const struct frame *frame)
{
    uint8_t bytes[9 + MAX_FRAME];
    put32(bytes, (uint32_t)frame->size << 8 | frame->type);
    bytes[4] = frame->flags;
    put32(bytes + 5, frame->stream);
    memcpy(bytes + 9, frame->payload, frame->size);
    return check(connection, wire_write(connection->fd, bytes, 9 + frame->size, connection->deadline_us));
}

static bool is_of_stream(enum frame_type type)
{
    return type == DATA || type == HEADERS || type == RST_STREAM || type == CONTINUATION;
}

bool http2_send_frame(struct http2 *connection, enum frame_type type, unsigned flags, const void *payload, size_t size)
{
    struct frame frame = {.type = (uint8_t)type, .flags = (uint8_t)flags, .stream = is_of_stream(type) ? STREAM : 0, .size = size};
    if (size > MAX_FRAME)
        return fault(connection, "frame too large");
    if (size > 0)
        memcpy(frame.payload, payload, size);
    return send_frame_on(connection, &frame);
}

bool http2_open(struct http2 *connection, const char *path, int64_t deadline_us)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    memset(connection, 0, sizeof *connection);
    connection->fd = -1;
    connection->deadline_us = deadline_us;
    connection->connection_window = connection->stream_window = connection->peer_stream_window = 65535;
    connection->peer_max_frame = MAX_FRAME;
    hpack_decoder_init(&connection->decoder);
    return check(connection, wire_connect(path, deadline_us, &connection->fd)) &&
           check(connection, wire_write(connection->fd, preface, sizeof preface - 1, deadline_us)) &&
           http2_send_frame(connection, SETTINGS, 0, NULL, 0);
}

void http2_close(struct http2 *connection)
{
    static const uint8_t no_error[8] = {0};
    connection->deadline_us = wire_now_us() + 100000;
    if (connection->fd >= 0 && connection->end == OPEN)
        http2_send_frame(connection, GOAWAY, 0, no_error, sizeof no_error);
    if (connection->fd >= 0)
        close(connection->fd);
    hpack_decoder_free(&connection->decoder);
}

bool http2_send_data(struct http2 *connection, const uint8_t *body, size_t size, size_t *sent)
{
    while (*sent < size) {
        int64_t part = (int64_t)(size - *sent);
        if (part > connection->peer_max_frame)
            part = connection->peer_max_frame;
        if (part > connection->connection_window)
            part = connection->connection_window;
        if (part > connection->stream_window)
            part = connection->stream_window;
        if (part <= 0)
            return true;
        bool last = *sent + (size_t)part == size;
        if (!http2_send_frame(connection, DATA, last ? END_STREAM : 0, body + *sent, (size_t)part))
            return false;
        *sent += (size_t)part;
        connection->connection_window -= part;
        connection->stream_window -= part;
    }
    return true;
}

static bool read_frame(struct http2 *connection, struct frame *frame)
{
    uint8_t head[9];
    if (!check(connection, wire_read(connection->fd, head, sizeof head, connection->deadline_us)))
        return false;
    frame->size = get32(head) >> 8;
    frame->type = head[3];
    frame->flags = head[4];
    frame->stream = get32(head + 5) & 0x7FFFFFFF;
    if (frame->size > MAX_FRAME)
        return fault(connection, "frame larger than announced");
    return check(connection, wire_read(connection->fd, frame->payload, frame->size, connection->deadline_us));
}

static bool apply_settings(struct http2 *connection, const struct frame *frame)
{
    enum { INITIAL_WINDOW_SIZE = 4, MAX_FRAME_SIZE = 5 };
    if (frame->size % 6 != 0)
        return fault(connection, "bad SETTINGS");
    for (size_t at = 0; at < frame->size; at += 6) {
        unsigned name = (unsigned)frame->payload[at] << 8 | frame->payload[at + 1];
        uint32_t value = get32(frame->payload + at + 2);
        if (name == INITIAL_WINDOW_SIZE) {
            connection->stream_window += (int64_t)value - connection->peer_stream_window;
            connection->peer_stream_window = value;
        }
        if (name == MAX_FRAME_SIZE)
            connection->peer_max_frame = value > MAX_FRAME ? MAX_FRAME : value;
    }
    return http2_send_frame(connection, SETTINGS, ACK, NULL, 0);
}

static bool apply_window_update(struct http2 *connection, const struct frame *frame)
{
    if (frame->size != 4)
        return fault(connection, "bad WINDOW_UPDATE");
    uint32_t more = get32(frame->payload) & 0x7FFFFFFF;
    *(frame->stream == 0 ? &connection->connection_window : &connection->stream_window) += more;
    return true;
}

/* Leaves the padding and the priority out. false: they are longer than the frame. */
static bool unwrap(struct http2 *connection, const struct frame *frame, const uint8_t **start, size_t *size)
{
    size_t before = (frame->flags & PADDED) ? 1 : 0;
    size_t after = before == 1 && frame->size > 0 ? frame->payload[0] : 0;
    if (frame->type == HEADERS && (frame->flags & PRIORITY))
        before += 5;
    if (before + after > frame->size)
        return fault(connection, "padding longer than the frame");
    *start = frame->payload + before;
    *size = frame->size - before - after;
    return true;
}

static bool add_to_block(struct http2 *connection, const uint8_t *part, size_t size)
{
    if (size > MAX_HEADER_BLOCK - connection->block_size)
        return fault(connection, "header list too large");
    memcpy(connection->block + connection->block_size, part, size);
    connection->block_size += size;
    return true;
}

/* The rest of a header block, which nothing may interrupt, then its decoding. */
static bool read_headers(struct http2 *connection, struct frame *frame, header_callback found, void *context)
{
    const uint8_t *part;
    size_t size;
    connection->block_size = 0;
    if (!unwrap(connection, frame, &part, &size) || !add_to_block(connection, part, size))
        return false;
    while ((frame->flags & END_HEADERS) == 0) {
        if (!read_frame(connection, frame))
            return false;
        if (frame->type != CONTINUATION || frame->stream != STREAM)
            return fault(connection, "header block interrupted");
        if (!add_to_block(connection, frame->payload, frame->size))
            return false;
    }
    const char *why = hpack_decode(&connection->decoder, connection->block, connection->block_size, found, context);
    return why == NULL || fault(connection, why);
}

static bool read_stream_frame(struct http2 *connection, struct frame *frame, struct news *news, header_callback found, void *context)
{
    const uint8_t *start;
    news->end_stream = (frame->flags & END_STREAM) != 0;
    switch (frame->type) {
    case HEADERS:
        news->kind = NEWS_HEADERS;
        return read_headers(connection, frame, found, context);
    case DATA:
        news->kind = NEWS_DATA;
        if (!unwrap(connection, frame, &start, &news->size))
            return false;
        news->data = (uint8_t *)start;
        return true;
    case RST_STREAM:
        news->kind = NEWS_RESET;
        news->error = frame->size == 4 ? get32(frame->payload) : 1;
        return true;
    default:
        return fault(connection, "unexpected frame");
    }
}

/* Frames of the connection; `concerns` tells whether the stream is to hear of it. */
static bool read_connection_frame(struct http2 *connection, const struct frame *frame, struct news *news, bool *concerns)
{
    *concerns = true;
    switch (frame->type) {
    case SETTINGS:
        news->kind = NEWS_SETTINGS;
        *concerns = (frame->flags & ACK) == 0;
        return !*concerns || apply_settings(connection, frame);
    case WINDOW_UPDATE:
        news->kind = NEWS_WINDOW;
        return apply_window_update(connection, frame);
    case PING:
        *concerns = false;
        return (frame->flags & ACK) || http2_send_frame(connection, PING, ACK, frame->payload, frame->size);
    case GOAWAY:
        if (frame->size < 8)
            return fault(connection, "bad GOAWAY");
        news->kind = NEWS_REFUSED;
        news->error = get32(frame->payload + 4);
        *concerns = (get32(frame->payload) & 0x7FFFFFFF) < STREAM;
        return true;
    default:
        *concerns = false;
        return true;
    }
}

bool http2_next(struct http2 *connection, struct news *news, header_callback found, void *context)
{
    static struct frame frame; /* 16 KiB; the data of the news point into it */
    for (bool concerns = false; !concerns;) {
        *news = (struct news){0};
        if (!read_frame(connection, &frame))
            return false;
        if (frame.type == PUSH_PROMISE || (frame.type == CONTINUATION))
            return fault(connection, "unexpected frame");
        bool of_stream = is_of_stream(frame.type);
        if (of_stream && frame.stream != STREAM)
            return fault(connection, "frame of a stream that is not open");
        concerns = true;
        bool good = of_stream ? read_stream_frame(connection, &frame, news, found, context)
                              : read_connection_frame(connection, &frame, news, &concerns);
        if (!good)
            return false;
    }
    return true;
}
