/* One table of fields per kind of JSON object: what is read where, checked for type, range and unknown names. */
#ifndef VGPU_NVML_FIELDS_H
#define VGPU_NVML_FIELDS_H

#include "../json/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum field_type {
    TEXT,    /* string, fits TEXT_SIZE */
    UINT,    /* whole number */
    BUS_ID,  /* string */
    PAIR,    /* [UINT, UINT] into two neighbouring uint64_t */
    NULLABLE /* UINT or null; null clears the flag at `flag` */
};

struct field {
    const char *name;
    enum field_type type;
    bool required;
    size_t at;   /* offset of the value in the target */
    size_t flag; /* NULLABLE: offset of its bool */
};

struct problem {
    char *text;
    size_t size;
};

/* Notes the first problem of a file; false, so that a reader can return it. */
bool complain(struct problem *why, const char *where, const char *what);

/* Stores every member named in `fields`; members named in `elsewhere` (ends with NULL) are the caller's. */
bool read_fields(const struct json *object, const struct field *fields, const char *const *elsewhere, void *target,
                 struct problem *why);

/* The first element of the array `key`, NULL when the array is absent or empty. */
const struct json *elements(const struct json *root, const char *key, struct problem *why);

/* No member is anybody else's. */
extern const char *const nowhere[];

#endif
