/*
 * Which stream's end is that of a whole context. A stream that was idle stays so until a message puts
 * work there, so the driver is asked about each once, and then only about those that may be at work.
 */
#include "green.h"
#include "handles.h"
#include "left.h"
#include "loop.h"
#include "message_fields.h"

/* --- which streams may be at work -------------------------------------------------------------- */

void gpw_working_forget(struct gpw_session *s)
{
    s->working.context = NULL;
}

static void working_add(struct gpw_session *s, uint64_t id)
{
    struct gpw_working *w = &s->working;
    for (unsigned i = 0; i < w->count; i++)
        if (w->at[i].stream == id)
            return;
    if (w->count == GPW_WORKING_MOST) {
        gpw_working_forget(s);
        return;
    }
    w->at[w->count++] = (struct gpw_working_stream){.stream = id};
}

void gpw_working_note(struct gpw_session *s, const struct gp_header *h)
{
    const struct gp_op_info *op = gp_op_info(h->op);
    if (op->quiet || !s->working.context)
        return;
    uint64_t id = gp_message_id(h, op->stream_at);
    if (!op->stream_at || op->stream_ended_at) /* who knows where */
        gpw_working_forget(s);
    else
        working_add(s, id ? id : GP_STREAM_LEGACY);
}

/* --- what they say ------------------------------------------------------------------------------ */

struct busy {
    CUcontext context;
    unsigned beside; /* streams that the legacy one does not wait for */
    bool ordinary;   /* some that it waits for */
    CUstream last;   /* of those beside */
};

enum kind {
    ELSEWHERE, /* of another context, or gone */
    ORDINARY,  /* the legacy stream waits for it */
    BESIDE,
};

static enum kind kind_of(struct gpw_session *s, CUcontext context, CUstream stream)
{
    CUcontext own;
    unsigned flags = 0;
    if (s->driver->cuStreamGetCtx(stream, &own) != CUDA_SUCCESS ||
        gpw_context_root(s, own) != context)
        return ELSEWHERE;
    bool ordinary = s->driver->cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS &&
                    !(flags & CU_STREAM_NON_BLOCKING);
    return ordinary ? ORDINARY : BESIDE;
}

static void count(struct busy *b, enum kind kind, CUstream stream)
{
    b->ordinary |= kind == ORDINARY;
    b->beside += kind == BESIDE;
    b->last = kind == BESIDE ? stream : b->last;
}

/* Most are idle, so that is asked first. */
static void look(struct gpw_session *s, uint64_t id, uint64_t real, void *arg)
{
    struct busy *b = arg;
    CUstream stream = (CUstream)real;
    if (s->driver->cuStreamQuery(stream) == CUDA_SUCCESS)
        return;
    working_add(s, id);
    if (b->beside <= 1)
        count(b, kind_of(s, b->context, stream), stream);
}

static bool is_idle(struct gpw_session *s, CUstream stream)
{
    return s->driver->cuStreamQuery(stream) == CUDA_SUCCESS;
}

/* All are asked. The client puts nothing into the worker's own per-thread stream. */
static bool asked(struct gpw_session *s, struct busy *b, CUstream *stream)
{
    s->working = (struct gpw_working){.context = b->context};
    gpw_handle_each(s, GP_HANDLE_STREAM, look, b);
    *stream = b->beside ? b->last : CU_STREAM_LEGACY;
    bool alone = b->beside == 1 && !b->ordinary && is_idle(s, CU_STREAM_LEGACY) &&
                 is_idle(s, CU_STREAM_PER_THREAD);
    if (!alone)
        working_add(s, GP_STREAM_LEGACY); /* which was not asked, or is busy */
    return b->beside == 0 || alone;
}

static CUstream real_of(struct gpw_session *s, uint64_t id)
{
    uint64_t real = 0;
    return gpw_handle_get(s, GP_HANDLE_STREAM, id, false, &real) == CUDA_SUCCESS ? (CUstream)real
                                                                                 : NULL;
}

/* By what is known, without asking: one of them is at work at most. */
static bool known(struct gpw_session *s, struct busy *b, CUstream *stream)
{
    struct gpw_working *w = &s->working;
    if (w->context != b->context)
        return false;
    for (unsigned i = 0; i < w->count; i++) {
        struct gpw_working_stream *each = &w->at[i];
        CUstream real = real_of(s, each->stream);
        if (each->stream == GP_STREAM_LEGACY)
            b->ordinary = true;
        else if (real && !each->asked)
            each->kind = (unsigned char)kind_of(s, b->context, real);
        each->asked = real != NULL;
        if (real && each->stream != GP_STREAM_LEGACY)
            count(b, (enum kind)each->kind, real);
    }
    *stream = b->beside ? b->last : CU_STREAM_LEGACY;
    return b->beside == 0 || (b->beside == 1 && !b->ordinary);
}

bool gpw_stream_tells(struct gpw_session *s, CUstream *stream)
{
    struct busy b = {NULL, 0, false, NULL};
    if (s->driver->cuCtxGetCurrent(&b.context) != CUDA_SUCCESS ||
        gpw_context_root(s, b.context) != b.context || gpw_left_stream(s, b.context))
        return false;
    if (known(s, &b, stream))
        return true;
    b = (struct busy){.context = b.context};
    return asked(s, &b, stream);
}
