/* The Huffman code of HPACK strings. */
#ifndef VGPU_HUFFMAN_H
#define VGPU_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>

/* Decodes to `out`; the number of bytes, or -1 when the code is bad or does not fit into `room`. */
ptrdiff_t huffman_decode(const uint8_t *in, size_t length, char *out, size_t room);

#endif
