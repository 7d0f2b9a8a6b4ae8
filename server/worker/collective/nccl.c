#include "nccl.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpw_handlers.h"

#define VERSION_LEAST 21800 /* whose non-blocking communicators can do all that is used here */

ncclResult_t gpw_nccl_refuse(struct gpw_session *s, ncclResult_t error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->nccl->why, sizeof s->nccl->why, format, arguments);
    va_end(arguments);
    gpw_log("warn", "nccl: %s", s->nccl->why);
    return error;
}

/* To the log, and to who reads the program's output: once, as it is asked for again and again. */
static void missing(struct gpw_session *s, const char *why)
{
    char line[400];
    int n = snprintf(line, sizeof line,
                     "this GPU host has no NCCL that can be used: %s; its server's setting `nccl` "
                     "names one, as nvidia-nccl-cu12 or -cu13 brings it",
                     why);
    gpw_log("error", "%s", line);
    gpw_notify_gp_said(s, false, n < (int)sizeof line ? (uint32_t)n : sizeof line - 1, line);
}

static bool library_open(struct gpw_session *s, struct gpw_nccl *n)
{
    char why[256];
    const char *path = s->nccl_path ? s->nccl_path : "libnccl.so.2";
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        missing(s, dlerror());
        return false;
    }
    gpw_nccl_library_find(&n->library, handle);
    if (n->library.ncclGetVersion)
        n->library.ncclGetVersion(&n->version);
    if (n->version >= VERSION_LEAST && n->library.ncclCommGetAsyncError &&
        n->library.ncclCommInitRankConfig)
        return true;
    snprintf(why, sizeof why, "%.200s is of version %d, before %d", path, n->version,
             VERSION_LEAST);
    missing(s, why);
    return false;
}

struct gpw_nccl *gpw_nccl(struct gpw_session *s)
{
    if (s->nccl)
        return s->nccl->version >= VERSION_LEAST ? s->nccl : NULL;
    if (!(s->nccl = calloc(1, sizeof *s->nccl)))
        return NULL;
    return library_open(s, s->nccl) ? s->nccl : NULL;
}

/* In the order of struct gp_nccl_config's values. */
static const size_t choices[] = {
    offsetof(ncclConfig_t, cgaClusterSize),
    offsetof(ncclConfig_t, minCTAs),
    offsetof(ncclConfig_t, maxCTAs),
    offsetof(ncclConfig_t, splitShare),
    offsetof(ncclConfig_t, trafficClass),
    offsetof(ncclConfig_t, collnetEnable),
    offsetof(ncclConfig_t, CTAPolicy),
    offsetof(ncclConfig_t, shrinkShare),
    offsetof(ncclConfig_t, nvlsCTAs),
    offsetof(ncclConfig_t, nChannelsPerNetPeer),
    offsetof(ncclConfig_t, nvlinkCentricSched),
};

void gpw_nccl_config(const struct gpw_nccl *n, const struct gp_nccl_config *from, ncclConfig_t *to)
{
    bool whole = n->version >= NCCL_VERSION_2_28;
    *to = (ncclConfig_t){.size = whole ? sizeof *to : offsetof(ncclConfig_t, trafficClass),
                         .magic = NCCL_API_MAGIC,
                         .version = whole ? NCCL_VERSION_2_28 : VERSION_LEAST};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++)
        memcpy((char *)to + choices[i], &from->values[i], sizeof(int));
    to->blocking = 0;
}
