/* What CUDA keeps per thread, and the streams that a thread has for itself. */
#include <pthread.h>
#include <stdlib.h>

#include "gpc_wire.h"
#include "handle.h"
#include "session.h"

struct gpc_thread_stream {
    CUcontext context;
    CUstream stream;
    struct gpc_thread_stream *next;
};

/* Pointer-sized, so that the static TLS block has room for it even when this
 * library is opened late. */
static __thread struct gpc_thread *self __attribute__((tls_model("initial-exec")));
static pthread_key_t ends;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_ends(void *arg)
{
    struct gpc_thread *t = arg;
    self = t; /* the calls below need a thread */
    for (struct gpc_thread_stream *s = t->streams, *next; s; s = next) {
        next = s->next;
        if (gpc_session_count() && gpc_handle_live(GP_HANDLE_STREAM, (uint64_t)s->stream))
            gpc_wire_cuStreamDestroy_v2(s->stream);
        free(s);
    }
    self = NULL;
    free(t->stack);
    free(t);
}

static void make_key(void)
{
    pthread_key_create(&ends, thread_ends);
}

struct gpc_thread *gpc_thread(void)
{
    if (self)
        return self;
    static uint64_t last_number;
    static struct gpc_thread shared; /* when even this is too much memory to ask */
    pthread_once(&once, make_key);
    struct gpc_thread *t = calloc(1, sizeof *t);
    if (!t)
        return &shared;
    t->number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
    pthread_setspecific(ends, t);
    self = t;
    return t;
}

/* This thread's default stream in its current context, made on first use. */
static CUresult thread_stream(uint64_t *wire)
{
    struct gpc_thread *t = gpc_thread();
    for (struct gpc_thread_stream *s = t->streams; s; s = s->next)
        if (s->context == t->current && gpc_handle_live(GP_HANDLE_STREAM, (uint64_t)s->stream)) {
            *wire = (uint64_t)s->stream;
            return CUDA_SUCCESS;
        }
    struct gpc_thread_stream *s = malloc(sizeof *s);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpc_wire_cuStreamCreate(&s->stream, CU_STREAM_DEFAULT);
    if (r != CUDA_SUCCESS) {
        free(s);
        return r;
    }
    s->context = t->current;
    s->next = t->streams;
    t->streams = s;
    *wire = (uint64_t)s->stream;
    return CUDA_SUCCESS;
}

CUresult gpc_stream_wire(struct gpc_call *call, CUstream stream, uint64_t *wire)
{
    if (stream == NULL && !gpc_thread()->per_thread_streams)
        stream = CU_STREAM_LEGACY;
    if (stream == CU_STREAM_LEGACY)
        return gpc_legacy_wire(call, wire);
    uint64_t own;
    if (stream == NULL || stream == CU_STREAM_PER_THREAD) {
        CUresult r = thread_stream(&own);
        if (r != CUDA_SUCCESS)
            return r;
        stream = (CUstream)own;
    }
    return gpc_handle_wire(call, GP_HANDLE_STREAM, (uint64_t)stream, false, wire);
}
