/* Frees: memory that the GPU may still use is given back when the work before is over. */
#include <stdlib.h>

#include "allocator.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "in_use.h"
#include "later.h"
#include "memory_internal.h"
#include "pool.h"

/* How long the launch of a graph waits for one: the GPU may wait for a message behind it. */
#define PATIENCE_NS UINT64_C(1000000000)

/* Memory that is not given back yet, because the GPU may still use it. */
struct pending_free {
    struct gpw_wait wait; /* while a capture keeps us from asking */
    struct gpw_window *window;
    CUdeviceptr address;
    bool of_pool;      /* one of the driver's */
    CUcontext context; /* that was current */
    uint64_t number;
    uint64_t behind; /* the client wants to know, and hand it out again: its message; else 0 */
    bool outlasted;  /* a graph's launch has waited for it as long as one may: none does again */
    enum {
        UNDER_WAY,
        CAPTURED, /* held up by a capture, whose end comes as a message */
        STARVED,  /* held up by anything else, like want of memory */
    } state;
    struct pending_free *next;
};

uint64_t gpw_memory_last_free(const struct gpw_session *s)
{
    return s->memory->last_free;
}

/* Behind a capture's end a free is tried anew by itself. */
static bool is_under_way(struct gpw_session *s, const struct pending_free *f)
{
    return f->state == UNDER_WAY || (f->state == CAPTURED && !gpw_users_capture(s));
}

bool gpw_memory_frees_under_way(struct gpw_session *s, uint64_t number)
{
    for (const struct pending_free *f = s->memory->frees; f; f = f->next)
        if (f->number <= number && is_under_way(s, f))
            return true;
    return false;
}

bool gpw_memory_frees_in_order(const struct gpw_session *s)
{
    return s->memory->ordered_frees > 0;
}

bool gpw_memory_admit(struct gpw_session *s, const struct gp_header *h, uint64_t held_ns)
{
    if (!s->memory->frees || gp_op_info(h->op)->work != GP_WORK_GRAPH || gpw_streams_blocked(s))
        return true;
    for (struct pending_free *f = s->memory->frees; f; f = f->next) {
        if (f->window || f->of_pool || f->outlasted || !is_under_way(s, f))
            continue; /* it is no graph's, or cannot be waited for */
        if (held_ns <= PATIENCE_NS)
            return false;
        f->outlasted = true;
    }
    return true;
}

/* The GPU may take its time, and what it waits for may come as a message: whoever needs
 * the memory that is being freed is put off, and asked once more when it has been. */
bool gpw_memory_must_wait(struct gpw_session *s)
{
    return !s->last_try && gpw_memory_frees_under_way(s, UINT64_MAX);
}

CUresult gpw_memory_freed(struct gpw_session *s, bool tells)
{
    return tells && gpw_memory_must_wait(s) ? GPW_AGAIN : CUDA_SUCCESS;
}

/* Of a pool or a graph, by cuMemFree: on a stream of its own, because cuMemFree would wait here for
 * whatever others have submitted. A graph's is free when this returns: its next launch, on another
 * stream, takes the same addresses. */
static void free_ordered(struct gpw_session *s, const struct pending_free *f)
{
    CUcontext before = NULL;
    CUstream stream;
    s->driver->cuCtxGetCurrent(&before);
    if (gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)f->context) != 0) /* it still is */
        s->driver->cuCtxSetCurrent(f->context);
    if (s->driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
        s->driver->cuMemFreeAsync(f->address, stream);
        s->driver->cuStreamSynchronize(stream);
        s->driver->cuStreamDestroy_v2(stream);
    }
    s->driver->cuCtxSetCurrent(before);
}

static void settle(struct gpw_session *s, void *arg)
{
    struct gpw_window *w = arg;
    (void)s;
    gpw_allocator_settle(w->allocator);
}

/* The client is told after it is free, so that what it chooses then is. */
static void give_window(struct gpw_session *s, const struct pending_free *f)
{
    struct gpw_allocator *a = f->window->allocator;
    bool live = gpw_allocator_size(a, f->address) != 0;
    bool kept = live && gpw_allocator_keep(a, f->address, f->behind);
    gpw_allocator_give(a, f->address);
    if (!kept)
        return;
    gpw_allocator_settle(a);
    gpw_notify_gp_memory_spare(s, f->address, f->behind);
}

/* Unmapping waits for the GPU. */
static void give_back(struct gpw_session *s, void *arg)
{
    struct pending_free *f = arg, **at = &s->memory->frees;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    if (f->window)
        give_window(s, f);
    else
        free_ordered(s, f);
    free(f);
    gpw_pools_freed(s);
    gpw_graph_memory_freed(s);
}

static void free_now(struct gpw_session *s, void *arg, CUresult result)
{
    if (result != CUDA_ERROR_DEINITIALIZED) /* else an error has ended the work as well */
        gpw_when_none_blocked(s, give_back, arg);
}

/* True once it is under way. A pool's memory CUDA frees at once, and takes it that nobody uses it any
 * more: who asks the pool then sees it, so what streams that capture did before is not waited for. */
static bool free_retry(struct gpw_session *s, struct gpw_wait *w)
{
    struct pending_free *f = (struct pending_free *)w;
    f->state = UNDER_WAY;
    CUresult r = gpw_after_users(s, f->window, f->of_pool, free_now, f);
    if (r == CUDA_SUCCESS) /* `f` may be gone then */
        return true;
    f->state = gpw_users_capture(s) ? CAPTURED : STARVED; /* the GPU may still use it */
    return false;
}

static void free_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s, (void)w; /* goes with the process */
}

/* CUDA waits for all work before it frees; we let the wait be one of many. */
static CUresult free_later(struct gpw_session *s, const struct pending_free *like)
{
    CUcontext context = NULL;
    CUresult r = gpw_forbidden(s);
    if (r != CUDA_SUCCESS)
        return r;
    s->driver->cuCtxGetCurrent(&context);
    struct pending_free *f = malloc(sizeof *f);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *f = *like;
    f->wait = (struct gpw_wait){.what = "a free", .poll = free_retry, .cancel = free_cancel};
    f->context = context;
    f->number = ++s->memory->last_free;
    f->next = s->memory->frees;
    s->memory->frees = f;
    bool before = gpw_strict(s, false);
    if (!free_retry(s, &f->wait))
        gpw_wait_add(s, &f->wait);
    gpw_strict(s, before);
    return CUDA_SUCCESS;
}

/* The client has it at once, so nothing may fail: no capture is asked either. */
static CUresult free_idle(struct gpw_session *s, struct gpw_window *w, CUdeviceptr dptr)
{
    gpw_allocator_give(w->allocator, dptr);
    gpw_when_none_blocked(s, settle, w);
    return CUDA_SUCCESS;
}

CUresult gpw_memory_free(struct gpw_session *s, CUdeviceptr dptr, bool keep, bool idle)
{
    struct gpw_window *w = gpw_window_of(s, dptr);
    /* stream-ordered allocations may be freed so, too */
    if (w ? !gpw_allocator_size(w->allocator, dptr) : !gpw_memory_is_device(s, dptr, 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (w && keep && idle && gpw_allocator_keep(w->allocator, dptr, s->at_message))
        return free_idle(s, w, dptr);
    return free_later(s, &(struct pending_free){.window = w,
                                                .address = dptr,
                                                .of_pool = !w && !gpw_graph_memory_begins(s, dptr),
                                                .behind = keep ? s->at_message : 0});
}

CUresult gpw_gp_memory_take(struct gpw_session *s, CUdeviceptr dptr, size_t bytesize)
{
    struct gpw_window *w = gpw_window_of(s, dptr);
    if (!w || !gpw_allocator_choose(w->allocator, dptr, bytesize)) {
        gpw_session_broken(s, "it allocates memory that it may not hand out");
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
