#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int gpj_cgroup_enter(const char *path, char *why, size_t size)
{
    int folder = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int file = folder >= 0 ? openat(folder, "cgroup.procs", O_WRONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    bool entered = file >= 0 && write(file, "0", 1) == 1; /* this process */
    int error = errno;
    if (file >= 0)
        close(file);
    if (folder >= 0)
        close(folder);
    if (!entered)
        snprintf(why, size, "the control group %.80s cannot be entered: %s", path, strerror(error));
    return entered ? 0 : 1;
}
