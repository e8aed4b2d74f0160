#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int64_t wire_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static enum wire_result wait_for(int fd, short events, int64_t deadline_us)
{
    for (;;) {
        int64_t left_us = deadline_us - wire_now_us();
        if (left_us <= 0)
            return WIRE_LATE;
        struct pollfd ready = {.fd = fd, .events = events};
        int count = poll(&ready, 1, (int)(left_us / 1000 + 1));
        if (count > 0)
            return WIRE_OK;
        if (count < 0 && errno != EINTR)
            return WIRE_FAILED;
    }
}

/* A full backlog answers EAGAIN at once on a unix socket, and poll does not tell when there is room: try again until late. */
static enum wire_result connect_until(int fd, const struct sockaddr_un *address, int64_t deadline_us)
{
    while (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
        if (errno != EAGAIN && errno != EINTR)
            return WIRE_FAILED;
        if (wire_now_us() >= deadline_us)
            return WIRE_LATE;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return WIRE_OK;
}

enum wire_result wire_connect(const char *path, int64_t deadline_us, int *fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return WIRE_FAILED;
    }
    strcpy(address.sun_path, path);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return *fd < 0 ? WIRE_FAILED : connect_until(*fd, &address, deadline_us);
}

enum wire_result wire_read(int fd, void *bytes, size_t length, int64_t deadline_us)
{
    for (size_t used = 0; used < length;) {
        enum wire_result result = wait_for(fd, POLLIN, deadline_us);
        if (result != WIRE_OK)
            return result;
        ssize_t got = recv(fd, (char *)bytes + used, length - used, 0);
        if (got == 0)
            return WIRE_CLOSED;
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return WIRE_FAILED;
        used += got > 0 ? (size_t)got : 0;
    }
    return WIRE_OK;
}

enum wire_result wire_write(int fd, const void *bytes, size_t length, int64_t deadline_us)
{
    for (size_t used = 0; used < length;) {
        enum wire_result result = wait_for(fd, POLLOUT, deadline_us);
        if (result != WIRE_OK)
            return result;
        ssize_t put = send(fd, (const char *)bytes + used, length - used, MSG_NOSIGNAL);
        if (put < 0 && errno != EAGAIN && errno != EINTR)
            return WIRE_FAILED;
        used += put > 0 ? (size_t)put : 0;
    }
    return WIRE_OK;
}
