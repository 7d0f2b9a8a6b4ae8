/*
 * Settings of core dumps, as they are in every context: a dump of a kernel would be a file of the
 * GPU host, so none is made, and no setting is taken.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "shared.h"

#define NAME_ROOM 1024 /* "a string of up to 1023 characters" */

/* "corepipe.cuda.HOSTNAME.PID". */
static size_t pipe_name(char *to)
{
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "localhost");
    return (size_t)snprintf(to, NAME_ROOM, "corepipe.cuda.%s.%d", host, (int)getpid()) + 1;
}

CUresult gpc_coredump_get(CUcoredumpSettings attribute, void *value, size_t *size)
{
    char own[NAME_ROOM] = {0}; /* false, and the default flags */
    size_t bytes = sizeof(bool), room = sizeof(bool);

    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
    case CU_COREDUMP_LIGHTWEIGHT:
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
        break;
    case CU_COREDUMP_TRIGGER_HOST:
        memcpy(own, &(bool){true}, sizeof(bool));
        break;
    case CU_COREDUMP_GENERATION_FLAGS:
        bytes = room = sizeof(int);
        break;
    case CU_COREDUMP_FILE: /* empty until somebody names one, whatever the documentation says */
        bytes = 1;
        room = NAME_ROOM;
        break;
    case CU_COREDUMP_PIPE:
        bytes = pipe_name(own);
        room = NAME_ROOM;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!value)
        *size = room;
    else if (*size < bytes)
        return CUDA_ERROR_INVALID_VALUE;
    else
        memcpy(value, own, bytes);
    return CUDA_SUCCESS;
}
