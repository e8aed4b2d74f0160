/* Ends the process before one chosen file-system call, or makes that call fail: preloaded into a daemon, it counts the calls that
 * change something below the folders of VGPU_CRASH_ROOTS (colon-separated, absolute, links resolved) and, at the one that the
 * control file names, sends the process SIGKILL or answers an errno. Calls that only read are passed on uncounted.
 *
 * The control file VGPU_CRASH_CONTROL (CONTROL_BYTES long, made by the test) is mapped shared, so that a test arms a running
 * process, and reads the log of what it counted after its death. Without both variables every call is passed on.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CONTROL_BYTES = 1 << 18, MAX_ROOTS = 8 };

/* Numbers in the machine's order; crash.py has the same table. */
struct control {
    uint32_t is_armed;
    uint32_t stop_at;  /* 1 is the first call; 0 counts and stops nothing */
    uint32_t error;    /* what the call answers instead of being made; 0: the process is killed before it */
    uint32_t lasting; /* which later calls fail too: 0 none, 1 those that need room (a disk stays full), 2 all (it is read-only) */
    uint32_t count;
    uint32_t log_bytes;
    char log[CONTROL_BYTES - 24]; /* "<call> <path>\n" for each counted call, the one that killed last */
};

static struct control *control;
static char *roots[MAX_ROOTS];
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

#define PUBLIC __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort(); /* the C library of this machine lacks what it declares */
    return found;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("VGPU_CRASH_CONTROL"), *list = getenv("VGPU_CRASH_ROOTS");
    if (path == NULL || list == NULL)
        return;
    int fd = REAL(open)(path, O_RDWR | O_CLOEXEC);
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        perror("crash_point: control file");
        _exit(127);
    }
    close(fd);
    char *rest = strdup(list), *one;
    for (int i = 0; i < MAX_ROOTS && (one = strsep(&rest, ":")) != NULL; i++)
        roots[i] = one;
    control = mapped;
}

static int is_below_a_root(const char *path)
{
    for (int i = 0; i < MAX_ROOTS && roots[i] != NULL; i++) {
        size_t length = strlen(roots[i]);
        if (strncmp(path, roots[i], length) == 0 && (path[length] == '/' || path[length] == '\0'))
            return 1;
    }
    return 0;
}

/* Whether the call needs room on the disk: a removal, and syncing it, succeeds on a full one. */
static int needs_room(const char *call)
{
    static const char *const no_room[] = {"unlink", "unlinkat", "rmdir", "rename", "renameat", "fsync", "flock"};
    for (size_t i = 0; i < sizeof no_room / sizeof *no_room; i++)
        if (strcmp(call, no_room[i]) == 0)
            return 0;
    return 1;
}

/* 0, or the errno that the call is to fail with. */
static int count(const char *call, const char *path)
{
    if (!is_below_a_root(path))
        return 0;
    pthread_mutex_lock(&counting);
    uint32_t room = (uint32_t)sizeof control->log - control->log_bytes;
    int length = snprintf(control->log + control->log_bytes, room, "%s %s\n", call, path);
    if (length < 0 || (uint32_t)length >= room)
        abort(); /* a longer run than any test means */
    control->log_bytes += (uint32_t)length;
    uint32_t number = ++control->count;
    int is_chosen = number == control->stop_at;
    if (control->error != 0 && control->lasting != 0 && number > control->stop_at)
        is_chosen = control->lasting == 2 || needs_room(call);
    if (is_chosen && control->error == 0) {
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
    int error = is_chosen ? (int)control->error : 0;
    pthread_mutex_unlock(&counting);
    return error;
}

static int is_armed(void)
{
    return control != NULL && __atomic_load_n(&control->is_armed, __ATOMIC_ACQUIRE);
}

/* The path that a descriptor was opened by, "" when it has none. */
static void path_of(int fd, char found[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, found, PATH_MAX - 1);
    found[length < 0 ? 0 : length] = '\0';
}

/* These return whether the call is to fail; errno says how then, and is as it was otherwise. */
static int fails_on_fd(const char *call, int fd)
{
    if (!is_armed())
        return 0;
    int saved = errno;
    char path[PATH_MAX];
    path_of(fd, path);
    int error = count(call, path);
    errno = error != 0 ? error : saved;
    return error != 0;
}

static int fails_at(const char *call, int folder, const char *name)
{
    if (!is_armed())
        return 0;
    int saved = errno;
    char base[PATH_MAX] = "", path[2 * PATH_MAX];
    if (name[0] != '/' && folder == AT_FDCWD) {
        if (getcwd(base, sizeof base) == NULL)
            base[0] = '\0';
    } else if (name[0] != '/') {
        path_of(folder, base);
    }
    snprintf(path, sizeof path, "%s%s%s", base, base[0] ? "/" : "", name);
    int error = count(call, path);
    errno = error != 0 ? error : saved;
    return error != 0;
}

static int fails_to_open(int folder, const char *name, int flags)
{
    return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND) && fails_at("open", folder, name);
}

static mode_t mode_of(int flags, va_list arguments)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

#define OPEN(function)                                                  \
    PUBLIC int function(const char *path, int flags, ...)               \
    {                                                                   \
        va_list arguments;                                              \
        va_start(arguments, flags);                                     \
        mode_t mode = mode_of(flags, arguments);                        \
        va_end(arguments);                                              \
        if (fails_to_open(AT_FDCWD, path, flags))                       \
            return -1;                                                  \
        return REAL(function)(path, flags, mode);                       \
    }
#define OPEN_AT(function)                                               \
    PUBLIC int function(int folder, const char *path, int flags, ...)   \
    {                                                                   \
        va_list arguments;                                              \
        va_start(arguments, flags);                                     \
        mode_t mode = mode_of(flags, arguments);                        \
        va_end(arguments);                                              \
        if (fails_to_open(folder, path, flags))                         \
            return -1;                                                  \
        return REAL(function)(folder, path, flags, mode);               \
    }
#define ON_FD(result, function, parameters, passed)                     \
    PUBLIC result function parameters                                   \
    {                                                                   \
        if (fails_on_fd(#function, fd))                                 \
            return -1;                                                  \
        return REAL(function) passed;                                   \
    }
#define ON_PATH(function, folder, name, parameters, passed)             \
    PUBLIC int function parameters                                      \
    {                                                                   \
        if (fails_at(#function, folder, name))                          \
            return -1;                                                  \
        return REAL(function) passed;                                   \
    }

OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)

ON_FD(ssize_t, write, (int fd, const void *bytes, size_t size), (fd, bytes, size))
ON_FD(ssize_t, pwrite, (int fd, const void *bytes, size_t size, off_t offset), (fd, bytes, size, offset))
ON_FD(ssize_t, pwrite64, (int fd, const void *bytes, size_t size, off64_t offset), (fd, bytes, size, offset))
ON_FD(ssize_t, writev, (int fd, const struct iovec *parts, int number), (fd, parts, number))
ON_FD(int, fsync, (int fd), (fd))
ON_FD(int, fdatasync, (int fd), (fd))
ON_FD(int, flock, (int fd, int operation), (fd, operation))
ON_FD(int, ftruncate, (int fd, off_t length), (fd, length))
ON_FD(int, ftruncate64, (int fd, off64_t length), (fd, length))
ON_FD(int, fchmod, (int fd, mode_t mode), (fd, mode))
ON_FD(int, fchown, (int fd, uid_t uid, gid_t gid), (fd, uid, gid))

ON_PATH(rename, AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(renameat, new_folder, to, (int old_folder, const char *from, int new_folder, const char *to),
        (old_folder, from, new_folder, to))
ON_PATH(link, AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(linkat, new_folder, to, (int old_folder, const char *from, int new_folder, const char *to, int flags),
        (old_folder, from, new_folder, to, flags))
ON_PATH(symlink, AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(symlinkat, folder, to, (const char *from, int folder, const char *to), (from, folder, to))
ON_PATH(mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdirat, folder, path, (int folder, const char *path, mode_t mode), (folder, path, mode))
ON_PATH(unlink, AT_FDCWD, path, (const char *path), (path))
ON_PATH(unlinkat, folder, path, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(rmdir, AT_FDCWD, path, (const char *path), (path))
ON_PATH(truncate, AT_FDCWD, path, (const char *path, off_t length), (path, length))
ON_PATH(truncate64, AT_FDCWD, path, (const char *path, off64_t length), (path, length))
ON_PATH(chmod, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
ON_PATH(fchmodat, folder, path, (int folder, const char *path, mode_t mode, int flags), (folder, path, mode, flags))
ON_PATH(chown, AT_FDCWD, path, (const char *path, uid_t uid, gid_t gid), (path, uid, gid))
ON_PATH(mknod, AT_FDCWD, path, (const char *path, mode_t mode, dev_t device), (path, mode, device))
ON_PATH(utimensat, folder, path, (int folder, const char *path, const struct timespec times[2], int flags),
        (folder, path, times, flags))
