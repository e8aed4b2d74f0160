#include "hpack.h"

#include "huffman.h"

#include <stdlib.h>
#include <string.h>

struct block {
    const uint8_t *at, *end;
    char *name, *value; /* room for MAX_HEADER_TEXT and a NUL each */
};

static const char truncated[] = "truncated header block", bad_index[] = "header index out of range",
                  bad_string[] = "bad header string", too_large[] = "header list too large";

void hpack_decoder_init(struct hpack_decoder *decoder)
{
    *decoder = (struct hpack_decoder){.limit = DYNAMIC_TABLE_BYTES};
}

static void shrink(struct hpack_decoder *decoder, size_t limit)
{
    while (decoder->size > limit) {
        struct header_entry *oldest = &decoder->entries[--decoder->count];
        decoder->size -= oldest->size;
        free(oldest->name);
    }
}

void hpack_decoder_free(struct hpack_decoder *decoder)
{
    shrink(decoder, 0);
}

/* An entry larger than the whole table empties it and is not kept. */
static const char *remember(struct hpack_decoder *decoder, const char *name, const char *value)
{
    size_t name_size = strlen(name) + 1, value_size = strlen(value) + 1;
    size_t size = name_size + value_size + 30;
    if (size > decoder->limit) {
        shrink(decoder, 0);
        return NULL;
    }
    shrink(decoder, decoder->limit - size);
    char *text = malloc(name_size + value_size);
    if (text == NULL)
        return "out of memory";
    memcpy(text, name, name_size);
    memcpy(text + name_size, value, value_size);
    memmove(decoder->entries + 1, decoder->entries, decoder->count * sizeof *decoder->entries);
    decoder->entries[0] = (struct header_entry){text, text + name_size, size};
    decoder->count++;
    decoder->size += size;
    return NULL;
}

/* An integer whose first `bits` low bits are in the byte at hand; more than 2^28 is refused. */
static const char *read_integer(struct block *block, unsigned bits, size_t *value)
{
    size_t mask = ((size_t)1 << bits) - 1;
    *value = *block->at++ & mask;
    if (*value < mask)
        return NULL;
    for (unsigned shift = 0; shift < 28; shift += 7) {
        if (block->at == block->end)
            return truncated;
        uint8_t byte = *block->at++;
        *value += (size_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0)
            return NULL;
    }
    return "header integer too large";
}

static const char *read_string(struct block *block, char *out)
{
    size_t length;
    if (block->at == block->end)
        return truncated;
    bool coded = (*block->at & 0x80) != 0;
    const char *why = read_integer(block, 7, &length);
    if (why != NULL)
        return why;
    if (length > (size_t)(block->end - block->at))
        return truncated;
    if (!coded && length > MAX_HEADER_TEXT)
        return too_large;
    ptrdiff_t used = (ptrdiff_t)length;
    if (coded)
        used = huffman_decode(block->at, length, out, MAX_HEADER_TEXT);
    else
        memcpy(out, block->at, length);
    if (used < 0 || memchr(out, '\0', (size_t)used) != NULL)
        return bad_string;
    out[used] = '\0';
    block->at += length;
    return NULL;
}

static const char *copy_indexed(const struct hpack_decoder *decoder, size_t index, char *name, char *value)
{
    if (index == 0 || index > STATIC_HEADERS + decoder->count)
        return bad_index;
    bool is_static = index <= STATIC_HEADERS;
    const struct header_entry *entry = is_static ? NULL : &decoder->entries[index - STATIC_HEADERS - 1];
    strcpy(name, is_static ? static_headers[index - 1].name : entry->name);
    if (value != NULL)
        strcpy(value, is_static ? static_headers[index - 1].value : entry->value);
    return NULL;
}

/* A literal: its name by index or in full, then its value. */
static const char *read_literal(struct hpack_decoder *decoder, struct block *block, unsigned bits)
{
    size_t index;
    const char *why = read_integer(block, bits, &index);
    if (why == NULL)
        why = index == 0 ? read_string(block, block->name) : copy_indexed(decoder, index, block->name, NULL);
    return why == NULL ? read_string(block, block->value) : why;
}

static const char *resize(struct hpack_decoder *decoder, struct block *block)
{
    size_t limit;
    const char *why = read_integer(block, 5, &limit);
    if (why != NULL)
        return why;
    if (limit > DYNAMIC_TABLE_BYTES)
        return "header table larger than announced";
    decoder->limit = limit;
    shrink(decoder, limit);
    return NULL;
}

/* One field into the name and value of `block`. */
static const char *read_field(struct hpack_decoder *decoder, struct block *block)
{
    uint8_t first = *block->at;
    if (first & 0x80) {
        size_t index;
        const char *why = read_integer(block, 7, &index);
        return why == NULL ? copy_indexed(decoder, index, block->name, block->value) : why;
    }
    if (!(first & 0x40))
        return read_literal(decoder, block, 4);
    const char *why = read_literal(decoder, block, 6);
    return why == NULL ? remember(decoder, block->name, block->value) : why;
}

static const char *decode_block(struct hpack_decoder *decoder, struct block *block, header_callback found, void *context)
{
    decoder->list_size = 0;
    while (block->at < block->end) {
        bool is_resize = (*block->at & 0xE0) == 0x20;
        const char *why = is_resize ? resize(decoder, block) : read_field(decoder, block);
        if (why != NULL)
            return why;
        if (is_resize)
            continue;
        decoder->list_size += strlen(block->name) + strlen(block->value) + 32;
        if (decoder->list_size > MAX_HEADER_LIST)
            return too_large;
        found(block->name, block->value, context);
    }
    return NULL;
}

const char *hpack_decode(struct hpack_decoder *decoder, const uint8_t *bytes, size_t length, header_callback found, void *context)
{
    struct block block = {bytes, bytes + length, malloc(MAX_HEADER_TEXT + 1), malloc(MAX_HEADER_TEXT + 1)};
    const char *why = "out of memory";
    if (block.name != NULL && block.value != NULL)
        why = decode_block(decoder, &block, found, context);
    free(block.name);
    free(block.value);
    return why;
}

static bool put_string(uint8_t *block, size_t room, size_t *used, const char *text)
{
    size_t length = strlen(text);
    if (length + 6 > room - *used)
        return false;
    size_t rest = length;
    block[(*used)++] = rest < 127 ? (uint8_t)rest : 127;
    if (rest >= 127) {
        for (rest -= 127; rest >= 128; rest >>= 7)
            block[(*used)++] = (uint8_t)(rest | 0x80);
        block[(*used)++] = (uint8_t)rest;
    }
    memcpy(block + *used, text, length);
    *used += length;
    return true;
}

bool hpack_encode(uint8_t *block, size_t room, size_t *used, const char *name, const char *value)
{
    if (*used == room)
        return false;
    block[(*used)++] = 0;
    return put_string(block, room, used, name) && put_string(block, room, used, value);
}
