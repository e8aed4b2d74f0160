#include "limits_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static const char *complaint(const struct vgpu_config *config)
{
    if (config->magic != VGPU_CONFIG_MAGIC)
        return "the magic is not VGCF";
    if (config->layout_version != VGPU_CONFIG_LAYOUT)
        return "the layout version is not 1";
    if (config->region_size != sizeof *config)
        return "the region size is not 2560";
    if (config->device_count != VGPU_SLOTS)
        return "the device count is not 16";
    if (!ends(config->driver_version, sizeof config->driver_version) || !ends(config->pod_uid, sizeof config->pod_uid) ||
        !ends(config->pod_name, sizeof config->pod_name) || !ends(config->pod_namespace, sizeof config->pod_namespace) ||
        !ends(config->container_name, sizeof config->container_name) ||
        !ends(config->register_uuid, sizeof config->register_uuid))
        return "a string has no end";
    for (unsigned i = 0; i < VGPU_SLOTS; i++)
        if (!ends(config->slots[i].uuid, sizeof config->slots[i].uuid))
            return "a UUID has no end";
    return NULL;
}

const struct vgpu_config *limits_map(const char *path, const char **why)
{
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &file) != 0) {
        *why = strerror(errno);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    const struct vgpu_config *config = MAP_FAILED;
    *why = "the size is not 8192";
    if (file.st_size == VGPU_CONFIG_FILE_BYTES) {
        config = mmap(NULL, sizeof *config, PROT_READ, MAP_PRIVATE, fd, 0);
        *why = config == MAP_FAILED ? strerror(errno) : complaint(config);
    }
    close(fd);
    return *why == NULL ? config : NULL;
}

bool limits_slot(const struct vgpu_config *config, unsigned index, struct vgpu_slot *slot)
{
    const volatile uint32_t *seq = &config->slots[index].seq;
    for (int attempt = 0; attempt < 1024; attempt++) {
        uint32_t before = *seq;
        atomic_thread_fence(memory_order_acquire);
        memcpy(slot, &config->slots[index], sizeof *slot);
        atomic_thread_fence(memory_order_acquire);
        if (before % 2 == 0 && *seq == before)
            return true;
    }
    return false;
}
