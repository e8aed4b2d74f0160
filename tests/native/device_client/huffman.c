/* The Huffman code of HPACK.
 *
 * The code is canonical: within one length the codes count up in the order of their symbols, and the first code of the next
 * length is one more, shifted. So the lengths alone say everything. Source: RFC 7541, appendix B.
 */
#include "huffman.h"

#include <stdbool.h>

enum { EOS = 256, LONGEST = 30 };

static const uint8_t lengths[EOS + 1] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28,
    28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13,
    6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6,
    6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23,
    23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23,
    22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21,
    22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};

/* For each length its lowest code and how many codes there are. */
struct numbering {
    uint32_t first[LONGEST + 1], count[LONGEST + 1];
};

static void number_codes(struct numbering *codes)
{
    *codes = (struct numbering){0};
    for (int symbol = 0; symbol <= EOS; symbol++)
        codes->count[lengths[symbol]]++;
    for (unsigned length = 1; length <= LONGEST; length++)
        codes->first[length] = (codes->first[length - 1] + codes->count[length - 1]) << 1;
}

/* The symbol that has `code` of `length` bits, or -1. */
static int symbol_of(const struct numbering *codes, unsigned length, uint32_t code)
{
    if (code < codes->first[length] || code - codes->first[length] >= codes->count[length])
        return -1;
    uint32_t skip = code - codes->first[length];
    int symbol = 0;
    while (lengths[symbol] != length || skip-- > 0)
        symbol++;
    return symbol;
}

ptrdiff_t huffman_decode(const uint8_t *in, size_t length, char *out, size_t room)
{
    struct numbering codes;
    number_codes(&codes);
    size_t used = 0;
    uint32_t code = 0;
    unsigned bits = 0;
    bool all_ones = true;
    for (size_t at = 0; at < length * 8; at++) {
        unsigned bit = in[at / 8] >> (7 - at % 8) & 1;
        code = code << 1 | bit;
        all_ones = all_ones && bit == 1;
        if (++bits > LONGEST)
            return -1;
        int symbol = symbol_of(&codes, bits, code);
        if (symbol < 0)
            continue;
        if (symbol == EOS || used == room)
            return -1;
        out[used++] = (char)symbol;
        code = bits = 0;
        all_ones = true;
    }
    return bits < 8 && all_ones ? (ptrdiff_t)used : -1; /* padding is the beginning of EOS, shorter than a byte */
}
