/* Bytes to and from a unix socket, before a deadline. */
#ifndef VGPU_WIRE_H
#define VGPU_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum wire_result { WIRE_OK, WIRE_LATE, WIRE_CLOSED, WIRE_FAILED /* errno says why */ };

/* CLOCK_MONOTONIC, microseconds. */
int64_t wire_now_us(void);

/* A connected non-blocking socket in `fd`. */
enum wire_result wire_connect(const char *path, int64_t deadline_us, int *fd);

/* All `length` bytes, or not WIRE_OK. */
enum wire_result wire_read(int fd, void *bytes, size_t length, int64_t deadline_us);
enum wire_result wire_write(int fd, const void *bytes, size_t length, int64_t deadline_us);

#endif
