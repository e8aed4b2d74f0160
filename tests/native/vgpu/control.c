/* Stands in for libvgpu-control.so: is preloaded into everything in a container, maps the limits file and limits nothing.
 *
 * With VGPU_CONTROL_SAY in the environment it tells on stderr, in one line, what it would enforce. With VGPU_CONTROL_REGISTER=1
 * it registers as the real library does: in client mode only, by fork and exec of device-client, and the process ends when that
 * fails. Source: vgpu-manager library/src/loader.c, register.c.
 */
#include "limits_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char limits_path[] = MANAGER_DIR "/config/vgpu.config", client_path[] = MANAGER_DIR "/registry/device-client",
                  socket_path[] = MANAGER_DIR "/registry/socket.sock";

struct line {
    char text[4096];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line->text + line->used, sizeof line->text - line->used, format, arguments);
    va_end(arguments);
    if (length > 0)
        line->used += (size_t)length;
    if (line->used >= sizeof line->text)
        line->used = sizeof line->text - 1;
}

/* One write, so that the lines of two processes do not mix. */
static void say(struct line *line)
{
    if (getenv("VGPU_CONTROL_SAY") == NULL)
        return;
    add(line, "\n");
    line->text[line->used - 1] = '\n';
    if (write(STDERR_FILENO, line->text, line->used) < 0)
        return; /* a process may have no stderr */
}

static void add_slot(struct line *line, unsigned index, const struct vgpu_slot *slot)
{
    add(line, " slot %u %s", index, slot->uuid);
    if (slot->memory_limit)
        add(line, " memory %llu", (unsigned long long)slot->total_memory);
    if (slot->memory_oversold)
        add(line, " of which real %llu", (unsigned long long)slot->real_memory);
    if (slot->core_limit && slot->hard_limit)
        add(line, " cores %d", slot->hard_core);
    else if (slot->core_limit)
        add(line, " cores %d to %d", slot->hard_core, slot->soft_core);
    add(line, ";");
}

static void say_limits(const struct vgpu_config *config)
{
    struct line line = {.used = 0};
    add(&line, "vgpu-control: would enforce on %s/%s %s:", config->pod_namespace, config->pod_name, config->container_name);
    for (unsigned i = 0; i < VGPU_SLOTS; i++) {
        struct vgpu_slot slot;
        if (limits_slot(config, i, &slot) && slot.activate)
            add_slot(&line, i, &slot);
    }
    say(&line);
}

static void say_failure(const char *what, const char *why, const char *consequence)
{
    struct line line = {.used = 0};
    add(&line, "vgpu-control: %s: %s: %s", what, why, consequence);
    say(&line);
}

/* 0 when device-client succeeded. As in the real library its death by a signal counts as success. */
static int run_client(const struct vgpu_config *config)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        execl(client_path, "device-client", "--address", socket_path, "--pod-uid", config->pod_uid, "--container-name",
              config->container_name, "--register-uuid", config->register_uuid, (char *)NULL);
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return child < 0 ? -1 : WEXITSTATUS(status);
}

static bool is_asked_to_register(void)
{
    const char *wish = getenv("VGPU_CONTROL_REGISTER");
    return wish != NULL && strcmp(wish, "1") == 0;
}

static void stop(const char *what, const char *why)
{
    say_failure(what, why, "stops the process");
    _exit(1);
}

__attribute__((constructor)) static void load(void)
{
    int saved_errno = errno;
    const char *why = NULL;
    const struct vgpu_config *config = limits_map(limits_path, &why);
    if (config == NULL && is_asked_to_register())
        stop(limits_path, why);
    if (config == NULL)
        say_failure(limits_path, why, "would stop the process");
    else
        say_limits(config);
    bool is_client_mode = config != NULL && (config->compatibility_mode & VGPU_MODE_CLIENT) == VGPU_MODE_CLIENT;
    if (is_client_mode && is_asked_to_register() && run_client(config) != 0)
        stop(client_path, "registration failed");
    errno = saved_errno;
}
