#include "fields.h"

#include "state.h"

#include <stdio.h>
#include <string.h>

const char *const nowhere[] = {NULL};

bool complain(struct problem *why, const char *where, const char *what)
{
    if (why->text[0] == '\0')
        snprintf(why->text, why->size, "%s: %s", where, what);
    return false;
}

static bool copy_text(const struct json *node, char *out)
{
    if (node->kind != JSON_STRING || node->string[0] == '\0' || strlen(node->string) >= TEXT_SIZE)
        return false;
    strcpy(out, node->string);
    return true;
}

static bool store_pair(const struct json *node, uint64_t *out)
{
    return node->kind == JSON_ARRAY && json_as_uint(node->first, &out[0]) && json_as_uint(node->first->next, &out[1]) &&
           node->first->next->next == NULL;
}

static bool store(const struct json *node, const struct field *field, char *target)
{
    void *out = target + field->at;
    switch (field->type) {
    case TEXT:
        return copy_text(node, out);
    case UINT:
        return json_as_uint(node, out);
    case BUS_ID:
        return node->kind == JSON_STRING && parse_bus_id(node->string, out);
    case PAIR:
        return store_pair(node, out);
    case NULLABLE:
        *(bool *)(target + field->flag) = node->kind != JSON_NULL;
        return node->kind == JSON_NULL || json_as_uint(node, out);
    }
    return false;
}

static const struct field *find_field(const struct field *fields, const char *name)
{
    for (; fields->name != NULL; fields++)
        if (strcmp(fields->name, name) == 0)
            return fields;
    return NULL;
}

bool read_fields(const struct json *object, const struct field *fields, const char *const *elsewhere, void *target,
                 struct problem *why)
{
    if (object->kind != JSON_OBJECT)
        return complain(why, "element", "not an object");
    for (const struct field *field = fields; field->name != NULL; field++)
        if (field->required && json_member(object, field->name) == NULL)
            return complain(why, field->name, "missing");
    for (const struct json *member = object->first; member != NULL; member = member->next) {
        const struct field *field = find_field(fields, member->key);
        const char *const *other = elsewhere;
        while (*other != NULL && strcmp(*other, member->key) != 0)
            other++;
        if (field == NULL && *other == NULL)
            return complain(why, member->key, "unknown name");
        if (field != NULL && !store(member, field, target))
            return complain(why, member->key, "wrong type or out of range");
    }
    return true;
}

const struct json *elements(const struct json *root, const char *key, struct problem *why)
{
    const struct json *list = json_member(root, key);
    if (list == NULL)
        return NULL;
    if (list->kind != JSON_ARRAY)
        complain(why, key, "not an array");
    return list->first;
}
