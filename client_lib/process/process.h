/*
 * What state CUDA is in for this process: not initialised, running, failed for
 * good, forked, at its end.
 */
#ifndef GPC_PROCESS_H
#define GPC_PROCESS_H

#include <cuda.h>
#include <stdbool.h>

/* CUDA_SUCCESS when calls may go on; NOT_INITIALIZED before cuInit and in a forked child,
 * DEINITIALIZED at exit; `in_context`: else the error that sticks to the contexts of the
 * current one's session. */
CUresult gpc_process_state(bool in_context);

#endif
