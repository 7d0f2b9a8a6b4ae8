/*
 * Streams as queues: each runs its operations in order on a thread of its own,
 * started when there is work and gone after a second without.
 *
 * All order is expressed in marks, (stream, number of an operation). An
 * operation starts when the one before it is done and all its marks are:
 * events that the stream was told to wait for, and the default stream's order
 * with the blocking ones.
 */
#include "activity.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "condition.h"
#include "span.h"
#include "timeslice.h"

#define IDLE_NS 1000000000u

static _Thread_local bool on_stream_thread;

bool sg_on_stream_thread(void)
{
    return on_stream_thread;
}

bool sg_stream_idle(CUstream stream)
{
    return stream->done == stream->submitted;
}

bool sg_mark_done(const struct sg_mark *mark)
{
    return !mark->stream || mark->stream->done >= mark->seq;
}

void sg_mark_clear(struct sg_mark *mark)
{
    if (mark->stream)
        sg_stream_unref(mark->stream);
    mark->stream = NULL;
}

struct sg_mark sg_stream_mark(CUstream stream)
{
    if (sg_stream_idle(stream))
        return (struct sg_mark){NULL, 0};
    stream->refs++;
    return (struct sg_mark){stream, stream->submitted};
}

/* Not inlined: the compiler takes two of these in a row for a use after free,
 * because it does not see that the count keeps the stream. */
__attribute__((noinline)) void sg_stream_unref(CUstream stream)
{
    if (--stream->refs)
        return;
    pthread_cond_destroy(&stream->wake);
    sg_tips_clear(&stream->tips);
    free(stream);
}

static void unlink_stream(CUstream stream)
{
    CUstream *link = &stream->context->streams;
    while (*link && *link != stream)
        link = &(*link)->next;
    if (*link)
        *link = stream->next;
    sg_stream_unref(stream);
}

CUstream sg_stream_new(CUcontext context, unsigned flags, int priority)
{
    CUstream stream = calloc(1, sizeof(*stream));
    if (!stream)
        return NULL;
    gp_condition_init(&stream->wake);
    stream->context = context;
    stream->id = ++sg.next_id;
    stream->flags = flags;
    stream->priority = priority;
    stream->refs = 1;
    stream->next = context->streams;
    context->streams = stream;
    if (context->entry && sg_stream_follow(stream, context->entry) != CUDA_SUCCESS) {
        unlink_stream(stream);
        return NULL;
    }
    return stream;
}

void sg_stream_retire(CUstream stream)
{
    sg_capture_leave(stream);
    if (stream->is_handle)
        sg_handle_remove(stream);
    if (stream->destroyed)
        return;
    stream->destroyed = true;
    if (sg_stream_idle(stream))
        unlink_stream(stream);
}

/* ---- running ---- */
static bool task_ready(CUstream stream, const struct sg_task *task)
{
    if (stream->done + 1 < task->seq)
        return false;
    for (size_t i = 0; i < task->mark_count; i++)
        if (!sg_mark_done(&task->marks[i]))
            return false;
    return true;
}

static void task_free(struct sg_task *task)
{
    for (size_t i = 0; i < task->mark_count; i++)
        sg_mark_clear(&task->marks[i]);
    sg_op_unref(task->op);
    free(task);
}

/* After an error, work is skipped; what only keeps accounts still runs. */
static bool runs_after_error(enum sg_op_kind kind)
{
    return kind == SG_OP_RECORD || kind == SG_OP_FREE || kind == SG_OP_CALLBACK ||
           kind == SG_OP_BLOCK_FREE;
}

static void run_unlocked(CUstream stream, const struct sg_op *op)
{
    CUcontext context = stream->context;
    if (sg.fault != CUDA_SUCCESS && !runs_after_error(op->kind))
        return;
    stream->running = op;
    stream->written = 0;
    pthread_mutex_unlock(&sg.lock);
    sg_activity_enter(op, stream);
    sg_op_tell_written(op->kind == SG_OP_WRITE_VALUE ? &stream->written : NULL);
    CUresult result = sg_op_run(op);
    sg_op_tell_written(NULL);
    pthread_mutex_lock(&sg.lock);
    stream->running = NULL; /* finish() says so */
    if (result != CUDA_SUCCESS && sg.fault == CUDA_SUCCESS && !context->cancel)
        sg.fault = result;
}

static void finish(CUstream stream, uint64_t seq)
{
    stream->done = seq;
    pthread_cond_broadcast(&sg.progress);
    if (stream->destroyed && sg_stream_idle(stream))
        unlink_stream(stream);
}

/* Waits for work; false after a second without. */
static bool wait_for_work(CUstream stream)
{
    uint64_t until = sg_now_ns() + IDLE_NS;
    struct timespec deadline = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    while (!stream->head)
        if (stream->destroyed ||
            pthread_cond_timedwait(&stream->wake, &sg.lock, &deadline) == ETIMEDOUT)
            return stream->head != NULL;
    return true;
}

static void *stream_main(void *argument)
{
    CUstream stream = argument;
    on_stream_thread = true;
    pthread_mutex_lock(&sg.lock);
    while (wait_for_work(stream)) {
        struct sg_task *task = stream->head;
        while (!task_ready(stream, task))
            pthread_cond_wait(&sg.progress, &sg.lock);
        stream->head = task->next;
        if (!stream->head)
            stream->tail = NULL;
        run_unlocked(stream, task->op);
        uint64_t seq = task->seq;
        task_free(task);
        finish(stream, seq);
        if (!stream->head || !task_ready(stream, stream->head))
            sg_time_leave();
    }
    stream->thread = false;
    sg_stream_unref(stream);
    pthread_mutex_unlock(&sg.lock);
    return NULL;
}

static CUresult thread_start(CUstream stream)
{
    pthread_t thread;
    pthread_attr_t attributes;
    if (stream->thread)
        return CUDA_SUCCESS;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, stream_main, stream);
    pthread_attr_destroy(&attributes);
    if (failed) {
        sg_complain("cannot start a thread for a stream: %s", strerror(failed));
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    stream->thread = true;
    stream->refs++;
    return CUDA_SUCCESS;
}

/* ---- submitting ---- */
static bool ordered_with_legacy(CUstream stream)
{
    return !stream->is_legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* The streams that CUDA's default-stream rules order before `stream`'s next operation;
 * with NULL marks only counts them. */
static size_t implicit_marks(CUstream stream, struct sg_mark *marks)
{
    size_t count = 0;
    CUcontext context = stream->context;
    if (ordered_with_legacy(stream)) {
        if (context->legacy && !sg_stream_idle(context->legacy)) {
            if (marks)
                marks[0] = sg_stream_mark(context->legacy);
            count = 1;
        }
    } else if (stream->is_legacy) {
        for (CUstream s = context->streams; s; s = s->next)
            if (ordered_with_legacy(s) && !sg_stream_idle(s)) {
                if (marks)
                    marks[count] = sg_stream_mark(s);
                count++;
            }
    }
    return count;
}

static CUresult queue(CUstream stream, struct sg_op *op, const struct sg_mark *extra)
{
    size_t count = implicit_marks(stream, NULL);
    struct sg_task *task = malloc(sizeof(*task) + (count + 1) * sizeof(struct sg_mark));
    CUresult result = task ? thread_start(stream) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(task);
        sg_op_unref(op);
        return result;
    }
    task->next = NULL;
    task->op = op;
    task->mark_count = implicit_marks(stream, task->marks);
    if (extra && !sg_mark_done(extra)) {
        extra->stream->refs++;
        task->marks[task->mark_count++] = *extra;
    }
    task->seq = ++stream->submitted;
    if (stream->tail)
        stream->tail->next = task;
    else
        stream->head = task;
    stream->tail = task;
    pthread_cond_signal(&stream->wake);
    return CUDA_SUCCESS;
}

static bool cheap(enum sg_op_kind kind)
{
    return kind == SG_OP_EMPTY || kind == SG_OP_FREE || kind == SG_OP_WRITE_VALUE ||
           kind == SG_OP_RECORD;
}

/* Runs it on the calling thread: nothing is before it. */
static void run_here(CUstream stream, struct sg_op *op)
{
    uint64_t seq = ++stream->submitted;
    stream->refs++;
    run_unlocked(stream, op);
    sg_op_unref(op);
    finish(stream, seq);
    sg_time_leave();
    sg_stream_unref(stream);
}

CUresult sg_stream_submit(CUstream stream, struct sg_op *op)
{
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stream->capture)
        return sg_capture_add(stream, op);
    CUresult result = sg_capture_legacy(stream);
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    sg_activity_submitted(op);
    if (cheap(op->kind) && sg_stream_idle(stream) && !implicit_marks(stream, NULL)) {
        run_here(stream, op);
        return CUDA_SUCCESS;
    }
    return queue(stream, op, NULL);
}

CUresult sg_stream_submit_wait(CUstream stream, struct sg_op *op)
{
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    if (stream->capture) {
        stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        result = sg_capture_legacy(stream);
    }
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    sg_activity_submitted(op);
    if (sg_stream_idle(stream) && !implicit_marks(stream, NULL)) {
        run_here(stream, op);
        return sg.fault;
    }
    SG_TRY(queue(stream, op, NULL));
    return sg_stream_wait(stream);
}

CUresult sg_stream_wait_mark(CUstream stream, const struct sg_mark *mark)
{
    if (sg_mark_done(mark))
        return CUDA_SUCCESS;
    struct sg_op *op = sg_op_new(SG_OP_EMPTY, stream->context);
    return op ? queue(stream, op, mark) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sg_stream_follow(CUstream later, CUstream earlier)
{
    struct sg_mark mark = sg_stream_mark(earlier);
    CUresult result = sg_stream_wait_mark(later, &mark);
    sg_mark_clear(&mark);
    return result;
}

/* ---- waiting ---- */
CUresult sg_stream_wait(CUstream stream)
{
    uint64_t target = stream->submitted;
    stream->refs++;
    while (stream->done < target)
        pthread_cond_wait(&sg.progress, &sg.lock);
    sg_stream_unref(stream);
    return sg.fault;
}

CUresult sg_context_wait(CUcontext context)
{
    CUcontext root = sg_context_root(context);
    CUstream stream = root->streams;
    while (stream) {
        if (sg_stream_idle(stream) || !sg_stream_in(stream, context)) {
            stream = stream->next;
        } else {
            sg_stream_wait(stream);
            stream = root->streams; /* the list may have changed meanwhile */
        }
    }
    return sg.fault;
}

void sg_contexts_wait(void)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        if (c->alive)
            sg_context_wait(c);
}

/* A graph may have kernels. */
static bool kernels_run(void)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        for (CUstream s = c->streams; s; s = s->next)
            if (s->running && (s->running->kind == SG_OP_KERNEL || s->running->kind == SG_OP_GRAPH))
                return true;
    return false;
}

static bool overlaps(const void *at, uint64_t size, uint64_t begin, uint64_t end)
{
    uint64_t first = (uint64_t)(uintptr_t)at;
    return first < end && (begin < first || begin - first < size);
}

static bool uses(const struct sg_op *op, uint64_t begin, uint64_t end)
{
    const struct sg_set *set = &op->set;
    if (op->kind == SG_OP_COPY)
        return overlaps(op->copy.dst, op->copy.dst_bytes, begin, end) ||
               overlaps(op->copy.src, op->copy.src_bytes, begin, end);
    return op->kind == SG_OP_SET &&
           overlaps(set->dst, gp_span_rows(set->pitch, set->width, set->element, set->height),
                    begin, end);
}

void sg_kernels_wait(void)
{
    while (kernels_run())
        pthread_cond_wait(&sg.progress, &sg.lock);
}

void sg_streams_lose(uint64_t begin, uint64_t end)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        for (CUstream s = c->streams; s; s = s->next)
            if (s->running && uses(s->running, begin, end) && sg.fault == CUDA_SUCCESS)
                sg.fault = CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* ---- handles ---- */
/* This thread's default streams, one per context it used. */
struct own_stream {
    struct own_stream *next;
    CUcontext context;
    uint64_t context_id;
    CUstream stream;
};
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void own_free(void *list)
{
    struct own_stream *own = list;
    SG_LOCKED;
    while (own) {
        struct own_stream *next = own->next;
        if (own->context->alive && own->context->id == own->context_id)
            sg_stream_retire(own->stream);
        sg_stream_unref(own->stream);
        free(own);
        own = next;
    }
}

static void own_key_make(void)
{
    if (pthread_key_create(&own_key, own_free) != 0)
        abort(); /* only without memory while the process starts */
}

CUstream sg_stream_own(CUcontext context)
{
    pthread_once(&own_once, own_key_make);
    struct own_stream *list = pthread_getspecific(own_key);
    for (struct own_stream *own = list; own; own = own->next)
        if (own->context == context && own->context_id == context->id)
            return own->stream;
    struct own_stream *own = calloc(1, sizeof(*own));
    CUstream stream = own ? sg_stream_new(context, 0, 0) : NULL;
    if (!stream) {
        free(own);
        return NULL;
    }
    stream->refs++;
    *own = (struct own_stream){list, context, context->id, stream};
    pthread_setspecific(own_key, own);
    return stream;
}

CUresult sg_stream_get(CUstream handle, CUstream *out)
{
    CUcontext context;
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        SG_TRY(sg_context_current(&context));
        CUcontext green = sg_green_current();
        bool own = handle == CU_STREAM_PER_THREAD || (handle == NULL && sg_per_thread);
        *out = green ? green->legacy : own ? sg_stream_own(context) : context->legacy;
        return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!sg.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (on_stream_thread)
        return CUDA_ERROR_NOT_PERMITTED;
    if (!sg_handle_is(handle, SG_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = handle;
    return sg.fault;
}
