/*
 * Waits: the worker's one thread never blocks on the GPU. It records an event
 * where the client waits and asks between messages whether it has passed.
 */
#include <stdlib.h>

#include "budget.h"
#include "capture_watch.h"
#include "freed.h"
#include "green.h"
#include "handles.h"
#include "left.h"
#include "loop.h"
#include "monotonic.h"
#include "session.h"

void gpw_wait_add(struct gpw_session *s, struct gpw_wait *w)
{
    w->younger = NULL;
    w->older = s->waits_last;
    if (w->older)
        w->older->younger = w;
    else
        s->waits = w;
    s->waits_last = w;
}

static void wait_unlink(struct gpw_session *s, struct gpw_wait *w)
{
    if (w->older)
        w->older->younger = w->younger;
    else
        s->waits = w->younger;
    if (w->younger)
        w->younger->older = w->older;
    else
        s->waits_last = w->older;
}

/*
 * Take those that are over out of the list, the oldest first; each is asked once, the
 * youngest first. A wait follows older ones only, and what is over stays over: so
 * when one was seen to be over, all that it follows are over when they are asked,
 * which is later. However streams, events and contexts wait for each other, nothing is
 * told before what it follows.
 */
static struct gpw_wait *waits_ask(struct gpw_session *s, bool recurring, struct gpw_wait *over)
{
    for (struct gpw_wait *w = s->waits_last, *older; w; w = older) {
        older = w->older;
        bool is_over = w->recurs == recurring && (!w->ready || w->ready(s, w));
        gpw_capture_watch(s, "asking", w->what);
        if (!is_over)
            continue;
        wait_unlink(s, w);
        w->younger = over;
        over = w;
    }
    return over;
}

/* Those that recur are as young as what they wait for now: asked first, told last. */
static struct gpw_wait *waits_over(struct gpw_session *s)
{
    return waits_ask(s, false, waits_ask(s, true, NULL));
}

/* Behind what an outer gpw_waits_poll (a poll may call it) has still to tell. */
static void due_add(struct gpw_session *s, struct gpw_wait *over)
{
    struct gpw_wait **end = &s->waits_due;
    while (*end)
        end = &(*end)->younger;
    *end = over;
}

static struct gpw_wait *due_take(struct gpw_session *s)
{
    struct gpw_wait *w = s->waits_due;
    if (w)
        s->waits_due = w->younger;
    return w;
}

void gpw_waits_poll(struct gpw_session *s)
{
    struct gpw_wait *w;
    bool before = gpw_strict(s, false); /* whoever waits made his call before */
    due_add(s, waits_over(s));
    while ((w = due_take(s)) != NULL) {
        const char *what = w->what;
        s->more_to_say = s->waits_due != NULL;
        if (!w->poll(s, w))
            gpw_wait_add(s, w);
        gpw_capture_watch(s, "the end of", what);
    }
    s->more_to_say = false;
    if (s->said_later)
        s->transport->flush(s->channel);
    s->said_later = false;
    gpw_strict(s, before);
}

bool gpw_waits_any(const struct gpw_session *s)
{
    return s->waits || s->waits_due;
}

void gpw_waits_cancel(struct gpw_session *s)
{
    struct gpw_wait *w;
    while ((w = due_take(s)) != NULL)
        w->cancel(s, w);
    while ((w = s->waits) != NULL) {
        wait_unlink(s, w);
        w->cancel(s, w);
    }
}

CUresult gpw_event_take(struct gpw_session *s, CUcontext context, CUevent *event)
{
    context = gpw_context_root(s, context);
    struct gpw_events *e = &s->events;
    for (unsigned i = e->count; i-- > 0;)
        if (e->kept[i].context == context) {
            *event = e->kept[i].event;
            e->kept[i] = e->kept[--e->count];
            return CUDA_SUCCESS;
        }
    return s->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

void gpw_event_give(struct gpw_session *s, CUcontext context, CUevent event)
{
    context = gpw_context_root(s, context);
    struct gpw_events *e = &s->events;
    if (e->count == GPW_EVENTS_KEPT) {
        s->driver->cuEventDestroy_v2(event);
        return;
    }
    e->kept[e->count].context = context;
    e->kept[e->count++].event = event;
}

/* Several events, one answer. Or a number that the GPU writes; then the one event is not recorded. */
struct gpw_after {
    struct gpw_wait wait;
    CUcontext context;
    gpw_done *done;
    void *arg;
    CUresult result;
    const uint64_t *word; /* NULL: nothing is written */
    uint64_t number;
    uint64_t asked; /* ns: when the driver was asked last whether anything has failed */
    CUstream stream;
    uint64_t at; /* behind how many handled messages its event was recorded; 0: it has none */
    struct gpw_after *before,
        *behind; /* the one with whose end this ends; who ends with this one */
    unsigned count, room;
    CUevent events[];
};

static bool after_ready(struct gpw_session *s, struct gpw_wait *w);

/* Its events go with the context, so they must not be asked any more. */
static void after_context_ended(struct gpw_wait *waits, CUcontext context)
{
    for (struct gpw_wait *w = waits; w; w = w->younger) {
        struct gpw_after *a = (struct gpw_after *)w;
        if (w->ready != after_ready || a->context != context)
            continue;
        a->count = 0;
        if (a->result == CUDA_SUCCESS)
            a->result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
}

void gpw_waits_context_ended(struct gpw_session *s, CUcontext context)
{
    after_context_ended(s->waits, context);
    after_context_ended(s->waits_due, context);
    struct gpw_events *e = &s->events;
    for (unsigned i = 0; i < e->count;)
        if (e->kept[i].context == context)
            e->kept[i] = e->kept[--e->count];
        else
            i++;
}

/* With what the driver keeps for an event. */
#define EVENT_BYTES 512u
/* How often the driver is asked about what the GPU should write. */
#define FAILURE_LOOK_NS 1000000u

static uint64_t after_bytes(unsigned room)
{
    return sizeof(struct gpw_after) + room * EVENT_BYTES;
}

static void after_free(struct gpw_session *s, struct gpw_after *a)
{
    gpw_budget_give(s, GPW_USE_WAITS, after_bytes(a->room));
    free(a);
}

static void finish(struct gpw_session *s, struct gpw_after *a, CUresult result)
{
    for (unsigned i = 0; i < a->count; i++)
        gpw_event_give(s, a->context, a->events[i]);
    if (a->behind) {
        a->behind->before = NULL;
        a->behind->result = a->behind->result ? a->behind->result : result;
    }
    if (a->before)
        a->before->behind = NULL;
    gpw_done *done = a->done;
    void *arg = a->arg;
    after_free(s, a);
    done(s, arg, result);
}

/* What has failed writes nothing, and the driver says so of any event of the context's. */
static void failure_look(struct gpw_session *s, struct gpw_after *a)
{
    uint64_t now = gp_now_ns();
    if (now - a->asked < FAILURE_LOOK_NS)
        return;
    a->asked = now;
    CUresult r = s->driver->cuEventQuery(a->events[0]);
    if (r != CUDA_ERROR_NOT_READY)
        a->result = r;
}

/* Nothing that prints is waited for so (completion.c), and the driver needs not be asked. */
static bool written_ready(struct gpw_session *s, struct gpw_after *a)
{
    /* pairs with the GPU's write, which comes behind the work's */
    if (__atomic_load_n(a->word, __ATOMIC_ACQUIRE) == a->number)
        return true;
    if (a->count && a->result == CUDA_SUCCESS)
        failure_look(s, a);
    return a->result != CUDA_SUCCESS;
}

static bool after_ready(struct gpw_session *s, struct gpw_wait *w)
{
    struct gpw_after *a = (struct gpw_after *)w;
    if (a->before)
        return after_ready(s, &a->before->wait);
    if (a->word)
        return written_ready(s, a);
    while (a->count && a->result == CUDA_SUCCESS) {
        CUevent event = a->events[a->count - 1];
        CUresult r = s->driver->cuEventQuery(event);
        if (r == CUDA_ERROR_NOT_READY)
            return false;
        /* it has passed, so this returns at once; it is what makes the driver
         * print what kernels have printed */
        if (r == CUDA_SUCCESS)
            r = s->driver->cuEventSynchronize(event);
        a->result = r;
        if (r == CUDA_SUCCESS) {
            gpw_event_give(s, a->context, event);
            a->count--;
        }
    }
    return true;
}

static bool after_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct gpw_after *a = (struct gpw_after *)w;
    finish(s, a, a->result);
    return true;
}

static void after_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    finish(s, (struct gpw_after *)w, CUDA_ERROR_DEINITIALIZED);
}

static struct gpw_after *after_new(struct gpw_session *s, unsigned room, gpw_done *done, void *arg)
{
    struct gpw_after *a = NULL;
    if (gpw_budget_take(s, GPW_USE_WAITS, after_bytes(room)) &&
        !(a = calloc(1, sizeof *a + room * sizeof a->events[0])))
        gpw_budget_give(s, GPW_USE_WAITS, after_bytes(room));
    if (!a)
        return NULL;
    a->room = room;
    a->wait.what = "a wait for work";
    a->wait.ready = after_ready;
    a->wait.poll = after_poll;
    a->wait.cancel = after_cancel;
    a->done = done;
    a->arg = arg;
    s->driver->cuCtxGetCurrent(&a->context);
    return a;
}

static CUresult after_take(struct gpw_session *s, struct gpw_after *a)
{
    bool before = gpw_strict(s, false);
    CUresult r = gpw_event_take(s, a->context, &a->events[a->count]);
    gpw_strict(s, before);
    a->count += r == CUDA_SUCCESS;
    return r;
}

/* The event that was taken last. */
static CUresult after_record(struct gpw_session *s, struct gpw_after *a, CUstream stream)
{
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuEventRecord(a->events[a->count - 1], stream);
    gpw_strict(s, before);
    a->stream = stream;
    a->at = r == CUDA_SUCCESS && a->room == 1 ? s->handled : 0;
    return r;
}

static CUresult after_add(struct gpw_session *s, struct gpw_after *a, CUstream stream)
{
    CUresult r = after_take(s, a);
    return r == CUDA_SUCCESS ? after_record(s, a, stream) : r;
}

static bool over_already(struct gpw_session *s, struct gpw_after *a)
{
    bool before = gpw_strict(s, false);
    bool over = !gpw_waits_any(s) && after_ready(s, &a->wait);
    gpw_strict(s, before);
    return over;
}

static void after_drop(struct gpw_session *s, struct gpw_after *a)
{
    for (unsigned i = 0; i < a->count; i++)
        gpw_event_give(s, a->context, a->events[i]);
    after_free(s, a);
}

static CUresult after_start(struct gpw_session *s, struct gpw_after *a, CUresult r)
{
    if (r != CUDA_SUCCESS) {
        after_drop(s, a);
        return r;
    }
    /* older waits answer first */
    if (over_already(s, a))
        after_poll(s, &a->wait);
    else
        gpw_wait_add(s, &a->wait);
    return CUDA_SUCCESS;
}

CUresult gpw_after_prepare_unasked(struct gpw_session *s, gpw_done *done, void *arg,
                                   struct gpw_after **after)
{
    struct gpw_after *a = after_new(s, 1, done, arg);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = after_take(s, a);
    if (r != CUDA_SUCCESS)
        after_drop(s, a);
    else
        *after = a;
    return r;
}

CUresult gpw_after_prepare(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg,
                           struct gpw_after **after)
{
    /* says what a capturing or failed stream says, which a recorded event would not */
    CUresult r = s->driver->cuStreamQuery(stream);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
        return r;
    return gpw_after_prepare_unasked(s, done, arg, after);
}

void gpw_after_written(struct gpw_session *s, struct gpw_after *a, const uint64_t *word,
                       uint64_t number)
{
    a->word = word;
    a->number = number;
    a->asked = gp_now_ns();
    gpw_wait_add(s, &a->wait);
}

static bool never_ready(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s, (void)w;
    return false;
}

/* An event that exists cannot be recorded: an error has ended the stream's work, or nobody
 * can tell any more when it is over. */
static void after_unrecorded(struct gpw_session *s, struct gpw_after *a, CUstream stream,
                             CUresult why)
{
    CUresult r = s->driver->cuStreamQuery(stream);
    if (r != CUDA_ERROR_NOT_READY) {
        finish(s, a, r);
        return;
    }
    gpw_session_end(s, "the driver cannot say when submitted work is over (CUDA error %d)",
                    (int)why);
    a->wait.ready = never_ready;
    gpw_wait_add(s, &a->wait);
}

CUresult gpw_after_submitted(struct gpw_session *s, struct gpw_after *a, CUstream stream,
                             CUresult r)
{
    if (r != CUDA_SUCCESS)
        return after_start(s, a, r);
    CUresult recorded = after_record(s, a, stream);
    if (recorded == CUDA_SUCCESS)
        return after_start(s, a, recorded);
    after_unrecorded(s, a, stream, recorded);
    return r;
}

/* The last wait, if its event is in this stream and nothing was submitted since: who reads a value waits
 * right behind the copy, and both are told at once. */
static struct gpw_after *same_end(struct gpw_session *s, CUstream stream)
{
    struct gpw_after *last = (struct gpw_after *)s->waits_last;
    bool same = last && last->wait.ready == after_ready && last->at && last->stream == stream &&
                last->at + 1 == s->handled && !last->behind && last->result == CUDA_SUCCESS;
    return same ? last : NULL;
}

CUresult gpw_after_stream(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg)
{
    struct gpw_after *a, *last = same_end(s, stream);
    if (last && (a = after_new(s, 1, done, arg)) != NULL) {
        a->before = last;
        last->behind = a;
        gpw_wait_add(s, &a->wait);
        return CUDA_SUCCESS;
    }
    CUresult r = gpw_after_prepare(s, stream, done, arg, &a);
    return r == CUDA_SUCCESS ? after_start(s, a, after_record(s, a, stream)) : r;
}

struct every_stream {
    struct gpw_after *after;
    unsigned count;
    CUresult result;
};

static void count_stream(struct gpw_session *s, uint64_t id, uint64_t real, void *arg)
{
    (void)s, (void)id, (void)real;
    ((struct every_stream *)arg)->count++;
}

static void add_stream(struct gpw_session *s, uint64_t id, uint64_t real, void *arg)
{
    struct every_stream *e = arg;
    CUstream stream = (CUstream)real;
    (void)id;
    CUcontext context;
    if (e->result != CUDA_SUCCESS || s->driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
        (context != e->after->context && gpw_context_root(s, context) != e->after->context))
        return;
    /* asking a capturing stream for more would end its capture */
    CUstreamCaptureStatus status;
    if (s->driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_NONE)
        return;
    CUresult r = s->driver->cuStreamQuery(stream);
    if (r == CUDA_ERROR_NOT_READY || (r == CUDA_SUCCESS && gpw_freed_in(s, stream)))
        r = after_add(s, e->after, stream);
    e->result = r;
}

CUresult gpw_after_context(struct gpw_session *s, gpw_done *done, void *arg)
{
    struct every_stream e = {NULL, 2, CUDA_SUCCESS};
    gpw_handle_each(s, GP_HANDLE_STREAM, count_stream, &e);
    e.after = after_new(s, e.count, done, arg);
    if (!e.after)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* the legacy stream first: its event waits for every blocking stream */
    CUstreamCaptureStatus status;
    e.result = s->driver->cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
    if (e.result == CUDA_SUCCESS)
        e.result = s->driver->cuStreamQuery(CU_STREAM_LEGACY);
    if (e.result == CUDA_SUCCESS || e.result == CUDA_ERROR_NOT_READY)
        e.result = after_add(s, e.after, CU_STREAM_LEGACY);
    gpw_handle_each(s, GP_HANDLE_STREAM, add_stream, &e);
    CUstream left = e.result == CUDA_SUCCESS ? gpw_left_stream(s, e.after->context) : NULL;
    if (left)
        e.result = after_add(s, e.after, left);
    return after_start(s, e.after, e.result);
}
