/* What the library says of errors. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "softnccl.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[256];

/* NCCL's levels, as far as there is something to say: from WARN on. */
static bool is_heard(void)
{
    static const char *const levels[] = {"WARN", "INFO", "ABORT", "TRACE"};
    const char *wanted = getenv("NCCL_DEBUG");
    for (size_t i = 0; wanted && i < sizeof levels / sizeof *levels; i++)
        if (strcasecmp(wanted, levels[i]) == 0)
            return true;
    return false;
}

static void say(const char *text)
{
    const char *path = getenv("NCCL_DEBUG_FILE");
    FILE *file = path && *path ? fopen(path, "ae") : NULL;
    fprintf(file ? file : stderr, "softnccl [%d] NCCL WARN %s\n", (int)getpid(), text);
    if (file)
        fclose(file);
}

ncclResult_t sn_fail(ncclResult_t result, const char *format, ...)
{
    char text[sizeof last];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    memcpy(last, text, sizeof last);
    if (is_heard())
        say(text);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Of any thread, as in NCCL; what is returned lasts until this thread asks again. */
const char *ncclGetLastError(ncclComm_t comm)
{
    static _Thread_local char copy[sizeof last];
    (void)comm;
    pthread_mutex_lock(&lock);
    memcpy(copy, last, sizeof copy);
    pthread_mutex_unlock(&lock);
    return copy;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return sn_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
