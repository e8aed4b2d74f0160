/* One HTTP/2 connection with one stream: frames, settings, pings and flow control. What the stream means is call.c's.
 *
 * Source: RFC 9113. Prior knowledge, no TLS.
 */
#ifndef VGPU_HTTP2_H
#define VGPU_HTTP2_H

#include "hpack.h"
#include "wire.h"

enum { MAX_FRAME = 16384, MAX_HEADER_BLOCK = 64 * 1024, STREAM = 1 };

enum frame_type {
    DATA = 0,
    HEADERS = 1,
    RST_STREAM = 3,
    SETTINGS = 4,
    PUSH_PROMISE = 5,
    PING = 6,
    GOAWAY = 7,
    WINDOW_UPDATE = 8,
    CONTINUATION = 9,
};

enum frame_flag { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8, PRIORITY = 32 };

/* Why nothing further can be read; `text` of FAULT says it. */
enum end { OPEN, LATE, CLOSED, FAULT };

struct http2 {
    int fd;
    int64_t deadline_us;
    enum end end;
    char text[256];
    struct hpack_decoder decoder;
    int64_t connection_window, stream_window; /* bytes we may still send */
    uint32_t peer_stream_window, peer_max_frame;
    uint8_t block[MAX_HEADER_BLOCK];
    size_t block_size;
};

/* What the stream received. */
enum news_kind { NEWS_HEADERS, NEWS_DATA, NEWS_RESET, NEWS_SETTINGS, NEWS_WINDOW, NEWS_REFUSED /* GOAWAY before our stream */ };

struct news {
    enum news_kind kind;
    bool end_stream;
    uint8_t *data; /* of NEWS_DATA, valid until the next http2_next */
    size_t size;
    uint32_t error; /* HTTP/2 error code of NEWS_RESET and NEWS_REFUSED */
};

/* Connects and sends the preface and our settings, in that order. */
bool http2_open(struct http2 *connection, const char *path, int64_t deadline_us);

/* Says goodbye and closes; harmless on a connection that was never open. */
void http2_close(struct http2 *connection);

bool http2_send_frame(struct http2 *connection, enum frame_type type, unsigned flags, const void *payload, size_t size);

/* Sends what the windows and the largest frame allow of a body; adds what was sent to `*sent`. END_STREAM goes with the last. */
bool http2_send_data(struct http2 *connection, const uint8_t *body, size_t size, size_t *sent);

/* Reads frames until one concerns the stream; headers go to `found`. false: see `end`. */
bool http2_next(struct http2 *connection, struct news *news, header_callback found, void *context);

#endif
