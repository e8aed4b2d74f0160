/* A recursive-descent JSON reader; every failure carries the byte offset. */
#include "json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

struct reader {
    const char *text;
    size_t length;
    size_t at;
    unsigned depth;
    const char *problem; /* first failure, NULL while all is well */
};

static struct json *read_value(struct reader *reader);

static int peek(const struct reader *reader)
{
    return reader->at < reader->length ? (unsigned char)reader->text[reader->at] : -1;
}

static void skip_space(struct reader *reader)
{
    int c;
    while ((c = peek(reader)) == ' ' || c == '\t' || c == '\n' || c == '\r')
        reader->at++;
}

static void *fail(struct reader *reader, const char *problem)
{
    if (reader->problem == NULL)
        reader->problem = problem;
    return NULL;
}

static struct json *new_node(struct reader *reader, enum json_kind kind)
{
    struct json *node = calloc(1, sizeof *node);
    if (node == NULL)
        return fail(reader, "out of memory");
    node->kind = kind;
    return node;
}

static bool read_hex4(struct reader *reader, unsigned *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++) {
        int c = peek(reader);
        if (c < 0 || !isxdigit(c))
            return false;
        unsigned digit = isdigit(c) ? (unsigned)c - '0' : (unsigned)tolower(c) - 'a' + 10;
        *code = *code << 4 | digit;
        reader->at++;
    }
    return true;
}

static size_t put_utf8(char *out, unsigned code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* The code point behind \u, two escapes for one beyond the basic plane; 0 marks a bad one. */
static unsigned read_code_point(struct reader *reader)
{
    unsigned high, low;
    if (!read_hex4(reader, &high) || (high >= 0xDC00 && high <= 0xDFFF))
        return 0;
    if (high < 0xD800 || high > 0xDBFF)
        return high;
    if (reader->length - reader->at < 6 || strncmp(reader->text + reader->at, "\\u", 2) != 0)
        return 0;
    reader->at += 2;
    if (!read_hex4(reader, &low) || low < 0xDC00 || low > 0xDFFF)
        return 0;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

static bool read_escape(struct reader *reader, char *out, size_t *used)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = peek(reader);
    reader->at++;
    if (c == 'u') {
        unsigned code = read_code_point(reader);
        *used += put_utf8(out + *used, code);
        return code != 0;
    }
    const char *name = c > 0 ? strchr(names, c) : NULL;
    if (name == NULL)
        return false;
    out[(*used)++] = values[name - names];
    return true;
}

static char *read_string(struct reader *reader)
{
    reader->at++;
    char *out = malloc(reader->length - reader->at + 1); /* no escape grows when decoded */
    if (out == NULL)
        return fail(reader, "out of memory");
    size_t used = 0;
    for (int c; (c = peek(reader)) != '"';) {
        bool good = c >= 0x20;
        reader->at++;
        if (good && c == '\\')
            good = read_escape(reader, out, &used);
        else if (good)
            out[used++] = (char)c;
        if (!good) {
            free(out);
            return fail(reader, "bad string");
        }
    }
    reader->at++;
    out[used] = '\0';
    char *fitting = realloc(out, used + 1);
    return fitting == NULL ? out : fitting;
}

static struct json *read_text(struct reader *reader)
{
    struct json *node = new_node(reader, JSON_STRING);
    if (node != NULL)
        node->string = read_string(reader);
    return node;
}

static void skip_digits(struct reader *reader)
{
    if (!isdigit(peek(reader)))
        fail(reader, "digit expected");
    while (isdigit(peek(reader)))
        reader->at++;
}

static struct json *read_number(struct reader *reader)
{
    size_t start = reader->at;
    if (peek(reader) == '-')
        reader->at++;
    if (peek(reader) == '0')
        reader->at++;
    else
        skip_digits(reader);
    if (peek(reader) == '.') {
        reader->at++;
        skip_digits(reader);
    }
    if (peek(reader) == 'e' || peek(reader) == 'E') {
        reader->at++;
        if (peek(reader) == '+' || peek(reader) == '-')
            reader->at++;
        skip_digits(reader);
    }
    char digits[64] = "";
    if (reader->problem != NULL || reader->at - start >= sizeof digits)
        return fail(reader, "bad number");
    memcpy(digits, reader->text + start, reader->at - start);
    struct json *node = new_node(reader, JSON_NUMBER);
    if (node != NULL)
        node->number = strtod(digits, NULL);
    return node;
}

static struct json *read_word(struct reader *reader)
{
    static const struct {
        const char *word;
        enum json_kind kind;
        bool boolean;
    } words[] = {{"null", JSON_NULL, false}, {"true", JSON_BOOL, true}, {"false", JSON_BOOL, false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i].word);
        if (reader->length - reader->at < length || memcmp(reader->text + reader->at, words[i].word, length) != 0)
            continue;
        reader->at += length;
        struct json *node = new_node(reader, words[i].kind);
        if (node != NULL)
            node->boolean = words[i].boolean;
        return node;
    }
    return fail(reader, "value expected");
}

static char *read_key(struct reader *reader, const struct json *object)
{
    if (peek(reader) != '"')
        return fail(reader, "name expected");
    char *key = read_string(reader);
    if (key != NULL && json_member(object, key) != NULL)
        fail(reader, "name given twice");
    skip_space(reader);
    if (reader->problem == NULL && peek(reader) != ':')
        fail(reader, "':' expected");
    reader->at++;
    return key;
}

static void read_members(struct reader *reader, struct json *node, int closer)
{
    struct json **tail = &node->first;
    for (;;) {
        skip_space(reader);
        char *key = node->kind == JSON_OBJECT ? read_key(reader, node) : NULL;
        *tail = reader->problem == NULL ? read_value(reader) : NULL;
        if (*tail == NULL) {
            free(key);
            return;
        }
        (*tail)->key = key;
        tail = &(*tail)->next;
        skip_space(reader);
        int c = peek(reader);
        reader->at++;
        if (c == closer)
            return;
        if (c != ',') {
            fail(reader, "',' or end expected");
            return;
        }
    }
}

static struct json *read_container(struct reader *reader, enum json_kind kind, int closer)
{
    struct json *node = new_node(reader, kind);
    if (node == NULL || ++reader->depth > MAX_DEPTH) {
        fail(reader, "nested too deep");
        return node;
    }
    reader->at++;
    skip_space(reader);
    if (peek(reader) == closer)
        reader->at++;
    else
        read_members(reader, node, closer);
    reader->depth--;
    return node;
}

static struct json *read_value(struct reader *reader)
{
    skip_space(reader);
    int c = peek(reader);
    if (c == '{')
        return read_container(reader, JSON_OBJECT, '}');
    if (c == '[')
        return read_container(reader, JSON_ARRAY, ']');
    if (c == '"')
        return read_text(reader);
    if (c == '-' || isdigit(c))
        return read_number(reader);
    return read_word(reader);
}

struct json *json_parse(const char *text, size_t length, char *why, size_t why_size)
{
    struct reader reader = {.text = text, .length = length};
    struct json *root = read_value(&reader);
    skip_space(&reader);
    if (reader.problem == NULL && reader.at != length)
        fail(&reader, "text after the value");
    if (reader.problem == NULL)
        return root;
    snprintf(why, why_size, "%s at byte %zu", reader.problem, reader.at);
    json_free(root);
    return NULL;
}

void json_free(struct json *node)
{
    while (node != NULL) {
        struct json *next = node->next;
        json_free(node->first);
        free(node->string);
        free(node->key);
        free(node);
        node = next;
    }
}

const struct json *json_member(const struct json *object, const char *key)
{
    if (object == NULL || object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json *member = object->first; member != NULL; member = member->next)
        if (member->key != NULL && strcmp(member->key, key) == 0)
            return member;
    return NULL;
}

bool json_as_uint(const struct json *node, uint64_t *value)
{
    if (node == NULL || node->kind != JSON_NUMBER || node->number < 0 || node->number > 9007199254740992.0)
        return false;
    *value = (uint64_t)node->number;
    return (double)*value == node->number;
}
