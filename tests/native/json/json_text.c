#include "json_text.h"

void json_put_string(FILE *out, const char *text)
{
    putc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fprintf(out, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    putc('"', out);
}
