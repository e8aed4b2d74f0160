/* device-client: registers this container's processes with the node's agent by one call, without a retry.
 *
 * Exit status 0 when the agent accepted, 1 for everything else: the enforcement library stops the workload on any other than 0.
 */
#include "call.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    struct arguments arguments;
    const char *why = arguments_read(argc, argv, &arguments);
    if (why != NULL) {
        fprintf(stderr, "device-client: %s\n", why);
        return 1;
    }
    if (arguments.version) {
        puts("device-client v1.0.0");
        return 0;
    }
    struct stat socket_file;
    if (stat(arguments.address, &socket_file) != 0) {
        fprintf(stderr, "device-client: %s: %s\n", arguments.address, strerror(errno));
        return 1;
    }
    static struct status status;
    call_register(&arguments, &status);
    if (status.code == 0)
        return 0;
    fprintf(stderr, "device-client: rpc error: code = %s desc = %s\n", status_name(status.code), status.text);
    return 1;
}
