/* read-limits [--dump] [FILE]: the limits of a container and its host PIDs as one JSON object.
 *
 * What the enforcement library would take from the limits file; --dump prints all 16 slots with every field. Exit status 1 and a
 * sentence when a file is malformed or the limits file is missing. Static, so that it runs in any container and no preload reaches it.
 */
#include "limits_file.h"

#include "../json/json_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *path, const char *why)
{
    fprintf(stderr, "read-limits: %s: %s\n", path, why);
    return 1;
}

static void put_text(const char *name, const char *value)
{
    printf("\"%s\": ", name);
    json_put_string(stdout, value);
    printf(", ");
}

static void put_identity(const struct vgpu_config *config)
{
    put_text("pod_uid", config->pod_uid);
    put_text("pod_name", config->pod_name);
    put_text("pod_namespace", config->pod_namespace);
    put_text("container_name", config->container_name);
    put_text("register_uuid", config->register_uuid);
    printf("\"compatibility_mode\": %d, \"sm_watcher\": %d, \"vmem_node\": %d, ", config->compatibility_mode, config->sm_watcher,
           config->vmem_node);
    put_text("driver_version", config->driver_version);
    printf("\"cuda_version\": [%d, %d], ", config->cuda_major, config->cuda_minor);
}

static void put_slot(unsigned index, const struct vgpu_slot *slot)
{
    printf("{\"index\": %u, ", index);
    put_text("uuid", slot->uuid);
    printf("\"total_memory\": %llu, \"real_memory\": %llu, ", (unsigned long long)slot->total_memory,
           (unsigned long long)slot->real_memory);
    printf("\"hard_core\": %d, \"soft_core\": %d, \"core_limit\": %d, \"hard_limit\": %d, ", slot->hard_core, slot->soft_core,
           slot->core_limit, slot->hard_limit);
    printf("\"memory_limit\": %d, \"memory_oversold\": %d", slot->memory_limit, slot->memory_oversold);
}

static bool put_slots(const struct vgpu_config *config, bool dump)
{
    const char *comma = "";
    printf("\"devices\": [");
    for (unsigned i = 0; i < VGPU_SLOTS; i++) {
        struct vgpu_slot slot;
        if (!limits_slot(config, i, &slot))
            return false;
        if (slot.activate == 0 && !dump)
            continue;
        printf("%s", comma);
        put_slot(i, &slot);
        if (dump)
            printf(", \"seq\": %u, \"activate\": %d", slot.seq, slot.activate);
        printf("}");
        comma = ", ";
    }
    printf("], ");
    return true;
}

/* One PID a line, decimal, each line ended by LF. */
static const char *put_pids(FILE *file)
{
    char line[32];
    const char *comma = "";
    while (fgets(line, sizeof line, file) != NULL) {
        size_t digits = strspn(line, "0123456789");
        if (digits == 0 || strcmp(line + digits, "\n") != 0)
            return "a line is no PID";
        printf("%s%ld", comma, strtol(line, NULL, 10));
        comma = ", ";
    }
    return NULL;
}

/* pids.config beside the limits file. Its absence is told, not an error: it comes later than the limits. */
static int put_pids_of(const char *limits_path)
{
    char path[4096];
    const char *slash = strrchr(limits_path, '/');
    int directory = slash == NULL ? 0 : (int)(slash - limits_path + 1);
    snprintf(path, sizeof path, "%.*spids.config", directory, limits_path);
    FILE *file = fopen(path, "re");
    if (file == NULL && errno != ENOENT)
        return fail(path, strerror(errno));
    printf("\"pids\": [");
    const char *why = file == NULL ? NULL : put_pids(file);
    printf(file == NULL ? "], \"pids_file\": false}\n" : "]}\n");
    if (file != NULL)
        fclose(file);
    return why == NULL ? 0 : fail(path, why);
}

int main(int argc, char **argv)
{
    bool dump = argc > 1 && strcmp(argv[1], "--dump") == 0;
    const char *path = argc > 1 + dump ? argv[1 + dump] : MANAGER_DIR "/config/vgpu.config";
    const char *why = NULL;
    if (argc > 2 + dump)
        return fail("usage", "read-limits [--dump] [FILE]");
    const struct vgpu_config *config = limits_map(path, &why);
    if (config == NULL)
        return fail(path, why);
    printf("{");
    put_identity(config);
    if (!put_slots(config, dump))
        return fail(path, "a slot is being written for ever");
    return put_pids_of(path);
}
