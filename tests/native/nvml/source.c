/* $VGPU_MOCK_NVML, else libnvidia-ml.mock.json in the directory the library was loaded from.
 *
 * That directory is the one of the name given to dlopen: a driver root full of links to one built library still has a state
 * of its own. A test changes the state by renaming a complete file into place, so size, inode and mtime tell a change.
 */
#include "source.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[PATH_MAX], library_version[NAME_MAX];
static struct stat seen; /* of the file `current` was read from */
static struct state current;
static bool valid;

/* At load time, while a relative name given to dlopen still means what it meant. */
__attribute__((constructor)) static void choose_path(void)
{
    const char *chosen = getenv("VGPU_MOCK_NVML");
    if (chosen != NULL && chosen[0] != '\0') {
        snprintf(path, sizeof path, "%s", chosen);
        return;
    }
    Dl_info library;
    char directory[PATH_MAX] = ".", absolute[PATH_MAX];
    if (dladdr((void *)choose_path, &library) == 0)
        return;
    const char *slash = strrchr(library.dli_fname, '/');
    if (slash != NULL)
        snprintf(directory, sizeof directory, "%.*s/", (int)(slash - library.dli_fname), library.dli_fname);
    if (realpath(directory, absolute) != NULL && strlen(absolute) < sizeof path - 32)
        sprintf(path, "%s/libnvidia-ml.mock.json", absolute);
}

/* "libnvidia-ml.so.550.90.07" is of that version, "libnvidia-ml.so.1" of none; nor is one whose state is somewhere else. */
__attribute__((constructor)) static void learn_version(void)
{
    static const char stem[] = "libnvidia-ml.so.";
    Dl_info library;
    char file[PATH_MAX];
    if (getenv("VGPU_MOCK_NVML") != NULL || dladdr((void *)learn_version, &library) == 0 || realpath(library.dli_fname, file) == NULL)
        return;
    const char *name = strrchr(file, '/') + 1;
    if (strncmp(name, stem, sizeof stem - 1) == 0 && strchr(name + sizeof stem - 1, '.') != NULL)
        snprintf(library_version, sizeof library_version, "%s", name + sizeof stem - 1);
}

const char *source_library_version(void)
{
    return library_version;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* The text of an open file of known size; NULL when it cannot be read whole. */
static char *read_text(int fd, size_t size)
{
    char *text = malloc(size + 1);
    size_t used = 0;
    while (text != NULL && used < size) {
        ssize_t got = read(fd, text + used, size - used);
        if (got <= 0) {
            free(text);
            return NULL;
        }
        used += (size_t)got;
    }
    return text;
}

static bool parse_file(int fd, size_t size)
{
    char why[256] = "cannot be read";
    char *text = read_text(fd, size);
    bool good = text != NULL && state_parse(text, size, &current, why, sizeof why);
    free(text);
    if (!good)
        fprintf(stderr, "nvml mock: %s: %s\n", path, why);
    return good;
}

const struct state *source_state(void)
{
    struct stat now;
    if (stat(path, &now) != 0)
        return NULL;
    if (same_file(&now, &seen))
        return valid ? &current : NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    valid = fstat(fd, &seen) == 0 && parse_file(fd, (size_t)seen.st_size);
    close(fd);
    return valid ? &current : NULL;
}
