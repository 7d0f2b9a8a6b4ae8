/*
 * What state CUDA is in for this process: not initialised, running, failed for
 * good, forked, at its end. Errors that an asynchronous call left behind.
 */
#ifndef GPC_PROCESS_H
#define GPC_PROCESS_H

#include <cuda.h>
#include <stdbool.h>

/* CUDA_SUCCESS when calls may go on; `in_context`: also by what sticks to contexts; NOT_INITIALIZED before cuInit and in a forked
 * child, DEINITIALIZED at exit, else the error that sticks. */
CUresult gpc_process_state(bool in_context);
/* The error of an earlier call that nobody waited for, once. */
CUresult gpc_process_take_pending(void);
/* Note such an error: kept until taken, the first one wins. */
void gpc_process_set_pending(CUresult error);
/* From now on every call answers `error`. */
void gpc_process_set_sticky(CUresult error);
/* Whether CUDA keeps an error of this kind for the rest of the process. */
bool gpc_error_is_sticky(CUresult error);

#endif
