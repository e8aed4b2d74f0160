/* JSON text as a tree of nodes: what the NVML mock reads its state from.
 *
 * Strict RFC 8259, with two limits of ours: nesting of 32 and no NUL inside a string, since every string ends up as a C string.
 */
#ifndef VGPU_JSON_H
#define VGPU_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    bool boolean;
    double number;
    char *string;       /* JSON_STRING: decoded UTF-8 */
    char *key;          /* name of this node within its object, else NULL */
    struct json *first; /* first member or element */
    struct json *next;  /* next sibling */
};

/* The tree of `text`, or NULL with a sentence in `why`. The caller frees it with json_free. */
struct json *json_parse(const char *text, size_t length, char *why, size_t why_size);

void json_free(struct json *node);

/* The member `key` of an object, or NULL when there is none (or `object` is no object). */
const struct json *json_member(const struct json *object, const char *key);

/* Whether `node` is a whole number of 0..2^53; stores it. */
bool json_as_uint(const struct json *node, uint64_t *value);

#endif
