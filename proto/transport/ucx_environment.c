#include "transport/ucx_environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THEIRS "UCX_"
#define OURS "GPUPOOL_UCX_"

/*
 * Of the process. GPU memory is not given to UCX: in a client its CUDA module would load
 * gpupool's own libcuda.so.1. It prints on the program's standard output, so it does not.
 */
static const char *const process[] = {
    "UCX_MEM_EVENTS=n",
    "UCX_MEM_MMAP_HOOK_MODE=none",
    "UCX_MEMTYPE_CACHE=n",
    "UCX_HANDLE_ERRORS=none",
    "UCX_ERROR_SIGNALS=",
    "UCX_DEBUG_SIGNO=0",
    "UCX_LOG_LEVEL=fatal",
    "UCX_WARN_UNUSED_ENV_VARS=n",
    "UCX_MODULES=^cuda,rocm,ze,cma,knem,xpmem",
    "UCX_VFS_ENABLE=n",
};
#define PROCESS_COUNT (sizeof process / sizeof process[0])

static int begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static size_t name_size(const char *variable)
{
    return strcspn(variable, "=") + 1;
}

/* Put a variable in, in the place of one with its name. */
static size_t put(char **list, size_t count, char *variable)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(list[i], variable, name_size(variable)) == 0) {
            list[i] = variable;
            return count;
        }
    list[count] = variable;
    return count + 1;
}

/* All but what begins with UCX_; then ours, and what users say as GPUPOOL_UCX_. */
static char **list_make(char **from)
{
    static char **last; /* each holds the one before: somebody may still read it */
    size_t most = PROCESS_COUNT + 2, count = 0;
    for (char **v = from; v && *v; v++)
        most += 2;
    char **list = calloc(most, sizeof *list);
    if (!list)
        return NULL;
    *list = (char *)last;
    last = list++;
    for (char **v = from; v && *v; v++)
        if (!begins(*v, THEIRS))
            list[count++] = *v;
    for (size_t i = 0; i < PROCESS_COUNT; i++)
        list[count++] = (char *)process[i];
    for (char **v = from; v && *v; v++)
        if (begins(*v, OURS))
            count = put(list, count, *v + strlen(OURS) - strlen(THEIRS));
    return list;
}

int ucx_environment_enter(struct ucx_environment *e)
{
    e->before = environ;
    e->ours = list_make(environ);
    if (!e->ours)
        return -ENOMEM;
    __atomic_store_n(&environ, e->ours, __ATOMIC_RELEASE);
    return 0;
}

void ucx_environment_leave(struct ucx_environment *e)
{
    if (__atomic_load_n(&environ, __ATOMIC_ACQUIRE) == e->ours) {
        __atomic_store_n(&environ, e->before, __ATOMIC_RELEASE);
        return;
    }
    /* Another thread has set a variable: the array is its own, made of ours. */
    for (size_t i = 0; i < PROCESS_COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)name_size(process[i]) - 1, process[i]);
        unsetenv(name);
    }
}
