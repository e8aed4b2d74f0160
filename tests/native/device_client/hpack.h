/* Header compression: a decoder for what a server may send, and the plainest encoding for what we send. Source: RFC 7541. */
#ifndef VGPU_HPACK_H
#define VGPU_HPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    STATIC_HEADERS = 61,
    DYNAMIC_TABLE_BYTES = 4096, /* what we announce: the default */
    DYNAMIC_HEADERS = DYNAMIC_TABLE_BYTES / 32,
    MAX_HEADER_LIST = 256 * 1024, /* decoded; the same measure as SETTINGS_MAX_HEADER_LIST_SIZE */
    MAX_HEADER_TEXT = 64 * 1024,
};

struct static_header {
    const char *name, *value;
};

extern const struct static_header static_headers[STATIC_HEADERS];

struct header_entry {
    char *name, *value; /* one allocation, at `name` */
    size_t size;        /* name + value + 32 */
};

struct hpack_decoder {
    struct header_entry entries[DYNAMIC_HEADERS]; /* newest first */
    size_t count, size, limit;
    size_t list_size; /* of the list being decoded */
};

typedef void (*header_callback)(const char *name, const char *value, void *context);

void hpack_decoder_init(struct hpack_decoder *decoder);
void hpack_decoder_free(struct hpack_decoder *decoder);

/* Decodes one whole header block; a NULL result is success, else a sentence: the connection cannot be used any more. */
const char *hpack_decode(struct hpack_decoder *decoder, const uint8_t *block, size_t length, header_callback found, void *context);

/* Appends a header as a literal without indexing or Huffman code; false when it does not fit. */
bool hpack_encode(uint8_t *block, size_t room, size_t *used, const char *name, const char *value);

#endif
