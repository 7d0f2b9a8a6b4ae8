/* What CUDA keeps per thread, and the streams that a thread has for itself. */
#include <pthread.h>
#include <stdlib.h>

#include "context.h"
#include "gpc_wire.h"
#include "handle.h"
#include "managed.h"
#include "session.h"
#include "thread_local.h"

struct gpc_thread_stream {
    CUcontext context;
    uint32_t life; /* of the context: a later one may have its handle */
    CUstream stream;
    struct gpc_thread_stream *next;
};

__thread struct gpc_thread *gpc_thread_self __attribute__((GPC_TLS_MODEL));
static pthread_key_t ends;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Streams go with their context. */
static bool is_alive(const struct gpc_thread_stream *s)
{
    return gpc_context_live(s->context) && s->life == gpc_context_life(s->context);
}

static void thread_ends(void *arg)
{
    struct gpc_thread *t = arg;
    gpc_thread_self = t; /* the calls below need a thread */
    for (struct gpc_thread_stream *s = t->streams, *next; s; s = next) {
        next = s->next;
        if (gpc_session_count() && is_alive(s))
            gpc_wire_cuStreamDestroy_v2(s->stream);
        gpc_managed_stream_ended((uint64_t)s->stream);
        free(s);
    }
    gpc_thread_self = NULL;
    free(t->stack);
    free(t->told);
    free(t);
}

static void make_key(void)
{
    pthread_key_create(&ends, thread_ends);
}

struct gpc_thread *gpc_thread_make(void)
{
    static uint64_t last_number;
    static struct gpc_thread shared; /* when even this is too much memory to ask */
    pthread_once(&once, make_key);
    struct gpc_thread *t = calloc(1, sizeof *t);
    if (!t)
        return &shared;
    t->number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
    pthread_setspecific(ends, t);
    gpc_thread_self = t;
    return t;
}

static void drop_ended(struct gpc_thread *t)
{
    for (struct gpc_thread_stream **at = &t->streams, *s; (s = *at) != NULL;) {
        if (is_alive(s)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        gpc_handle_drop((uint64_t)s->stream);
        free(s);
    }
}

CUresult gpc_thread_stream(const struct gpc_route *on, CUstream *stream)
{
    struct gpc_thread *t = gpc_thread();
    for (struct gpc_thread_stream *s = t->streams; s; s = s->next)
        if (s->context == on->context && is_alive(s)) {
            *stream = s->stream;
            return CUDA_SUCCESS;
        }
    drop_ended(t);
    struct gpc_thread_stream *s = malloc(sizeof *s);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpc_route made = {.context = on->context, .device = on->device};
    CUresult r = gpc_wire_cuStreamCreate_on(&made, &s->stream, CU_STREAM_DEFAULT);
    if (r != CUDA_SUCCESS) {
        free(s);
        return r;
    }
    s->context = on->context;
    s->life = gpc_context_life(on->context);
    s->next = t->streams;
    t->streams = s;
    *stream = s->stream;
    return CUDA_SUCCESS;
}
