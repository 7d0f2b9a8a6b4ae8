/*
 * What cuLogs… and CUDA_LOG_FILE give: a line for each call that fails, and what the library has to
 * say of it. Kept as CUDA keeps them, the latest 25600 bytes.
 */
#ifndef GPC_ERROR_LOG_H
#define GPC_ERROR_LOG_H

#include <cuda.h>

/* Keep a message, one line without its end. No call of the program's runs in it, so it may be
 * said anywhere. */
void gpc_error_note(CUlogLevel level, const char *message);
/* An exported function returns an error: it is noted, and callbacks get what was noted since. */
CUresult gpc_error_tell(const char *function, CUresult r);

static inline CUresult gpc_error_told(const char *function, CUresult r)
{
    return __builtin_expect(r == CUDA_SUCCESS, 1) ? r : gpc_error_tell(function, r);
}

#endif
