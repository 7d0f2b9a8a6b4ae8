#include "in_use.h"

#include <stdlib.h>

#include "allocator.h"
#include "budget.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "green.h"
#include "handles.h"
#include "memory_internal.h"
#include "quota.h"

/* Several contexts, one answer. */
struct users {
    const struct gpw_window *window;
    bool past_captures;
    gpw_done *done;
    void *arg;
    unsigned left;   /* contexts that are waited for, and one while they are asked */
    CUresult result; /* of the first whose work failed */
    CUresult refused;
};

static void capture_look(struct gpw_session *s, uint64_t id, uint64_t real, void *active)
{
    CUstreamCaptureStatus status;
    (void)id;
    *(bool *)active |= s->driver->cuStreamIsCapturing((CUstream)real, &status) == CUDA_SUCCESS &&
                       status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool gpw_users_capture(struct gpw_session *s)
{
    bool active = false;
    if (gpw_captures_any(s))
        gpw_handle_each(s, GP_HANDLE_STREAM, capture_look, &active);
    return active;
}

static void user_drop(struct gpw_session *s, struct users *u)
{
    if (--u->left)
        return;
    const struct users over = *u;
    gpw_budget_give(s, GPW_USE_WAITS, sizeof *u);
    free(u);
    if (over.refused == CUDA_SUCCESS)
        over.done(s, over.arg, over.result);
}

static void user_over(struct gpw_session *s, void *arg, CUresult result)
{
    struct users *u = arg;
    if (u->result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED)
        u->result = result;
    user_drop(s, u);
}

/* The current context. */
static bool reaches(struct gpw_session *s, const struct gpw_window *w)
{
    if (!w || s->device_count == 1)
        return true;
    int ordinal = gpw_current_ordinal(s);
    return ordinal < 0 || gpw_allocator_reaches(w->allocator, s->devices[ordinal]);
}

static void user_wait(struct gpw_session *s, uint64_t id, uint64_t real, void *arg)
{
    struct users *u = arg;
    CUcontext context = (CUcontext)real;
    (void)id;
    if (u->refused != CUDA_SUCCESS || gpw_context_root(s, context) != context ||
        s->driver->cuCtxSetCurrent(context) != CUDA_SUCCESS || !reaches(s, u->window))
        return;
    u->left++;
    CUresult r = gpw_after_context(s, user_over, u);
    bool unknown = r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT && !u->past_captures;
    if (unknown || r == CUDA_ERROR_OUT_OF_MEMORY)
        u->refused = r; /* it may be at work */
    u->left -= r != CUDA_SUCCESS;
}

CUresult gpw_after_users(struct gpw_session *s, const struct gpw_window *w, bool past_captures,
                         gpw_done *done, void *arg)
{
    struct users *u = NULL;
    CUcontext before = NULL;
    if (!past_captures && gpw_users_capture(s))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (gpw_budget_take(s, GPW_USE_WAITS, sizeof *u) && !(u = calloc(1, sizeof *u)))
        gpw_budget_give(s, GPW_USE_WAITS, sizeof *u);
    if (!u)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *u = (struct users){
        .window = w, .past_captures = past_captures, .done = done, .arg = arg, .left = 1};
    s->driver->cuCtxGetCurrent(&before);
    gpw_handle_each(s, GP_HANDLE_CONTEXT, user_wait, u);
    s->driver->cuCtxSetCurrent(before);
    CUresult refused = u->refused;
    user_drop(s, u);
    return refused;
}
