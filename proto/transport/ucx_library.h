/*
 * UCX itself: found, checked and opened when it is first asked for, once in a process.
 *
 * It is looked for where GPUPOOL_UCX_LIBRARY says, else in the package `libucx` beside gpupool's
 * own, else where the system has its libraries. Debian 12 has one that catches SIGSEGV as soon
 * as it is loaded, so a file is looked into before it is: what is older than UCX 1.20 stays
 * closed.
 *
 * A program may use UCX itself. If it has loaded it, this transport is not there; if it does so
 * later, it gets the one that is there.
 */
#ifndef GP_UCX_LIBRARY_H
#define GP_UCX_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "transport/transport.h"
#include "transport/ucx_api.h"

/* -ENOTSUP, and what to install. */
int ucx_library_open(const struct ucx_api **out, struct gp_error *err);

/* A context. Whose peer is on this machine listens for nobody else: by the loopback alone, unless
 * GPUPOOL_UCX_NET_DEVICES says otherwise (or UCX is 1.20, which finds no way there). */
ucx_status ucx_library_context(const struct ucx_params *params, bool loopback, void **context);

/* Whether the file is a libucp of a release that may be loaded; it is read, no more. */
bool ucx_library_file_ok(const char *path);

#endif
