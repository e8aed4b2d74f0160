#include "arguments.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct flag {
    const char *name;
    const char **text;
    int *seconds;
};

static const char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (size_t length = strlen(text); length > 0 && isspace((unsigned char)text[length - 1]); length--)
        text[length - 1] = '\0';
    return text;
}

static bool read_seconds(const char *text, int *seconds)
{
    char *end;
    long value = strtol(text, &end, 10);
    *seconds = (int)value;
    return end != text && *end == '\0' && value > 0 && value <= INT_MAX / 1000;
}

static const struct flag *find_flag(const struct flag *flags, const char *argument)
{
    for (; flags->name != NULL; flags++) {
        size_t length = strlen(flags->name);
        if (strncmp(argument, flags->name, length) == 0 && (argument[length] == '\0' || argument[length] == '='))
            return flags;
    }
    return NULL;
}

static const char *read_flags(int argc, char **argv, const struct flag *flags, bool *version)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) {
            *version = true;
            continue;
        }
        const struct flag *flag = find_flag(flags, argv[i]);
        if (flag == NULL)
            return "unknown argument";
        char *value = argv[i] + strlen(flag->name);
        value = *value == '=' ? value + 1 : argv[++i];
        if (value == NULL)
            return "a flag lacks its value";
        if (flag->text != NULL)
            *flag->text = trim(value);
        else if (!read_seconds(value, flag->seconds))
            return "--timeout is not a number of seconds above 0";
    }
    return NULL;
}

const char *arguments_read(int argc, char **argv, struct arguments *arguments)
{
    *arguments = (struct arguments){"", "", "", "", 12, false};
    const struct flag flags[] = {
        {"--address", &arguments->address, NULL},
        {"--pod-uid", &arguments->pod_uid, NULL},
        {"--container-name", &arguments->container_name, NULL},
        {"--register-uuid", &arguments->register_uuid, NULL},
        {"--timeout", NULL, &arguments->timeout_s},
        {0},
    };
    const char *why = read_flags(argc, argv, flags, &arguments->version);
    if (why != NULL || arguments->version)
        return why;
    if (arguments->address[0] == '\0')
        return "--address is empty";
    bool named = arguments->pod_uid[0] != '\0' && arguments->container_name[0] != '\0';
    if (arguments->register_uuid[0] == '\0' && !named)
        return "without --register-uuid both --pod-uid and --container-name are needed";
    return NULL;
}
