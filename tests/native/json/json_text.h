/* A C string as a JSON string. */
#ifndef VGPU_JSON_TEXT_H
#define VGPU_JSON_TEXT_H

#include <stdio.h>

/* Quoted and escaped; bytes above 0x7F go out as they are. */
void json_put_string(FILE *out, const char *text);

#endif
