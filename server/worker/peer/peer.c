/*
 * Bytes and signals between this worker's GPUs and those of others: what the client
 * asks for, in the order of its streams.
 *
 * A stream that sends or receives is blocked on a word of pinned memory, from when it comes
 * to the transfer until its threads (peer_pump.c) are through with it and the loop sets
 * the word. A signal is only told when the stream comes to it.
 */
#include "peer.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "host_function.h"
#include "loop.h"
#include "memory.h"
#include "message_fields.h"
#include "monotonic.h"
#include "peer_internal.h"

/* What may be submitted behind a stream that is blocked. The driver's own queue holds about
 * a thousand launches; a call that finds it full would block this thread. */
#define BEHIND_MAX 256u

/* --- transfers ------------------------------------------------------------------------ */

bool gpw_peer_used(const struct gpw_peer *p)
{
    for (struct gpw_transfer *t = p->all->transfers; t; t = t->all_next)
        if (t->peer == p)
            return true;
    return false;
}

static void transfer_unlink(struct gpw_transfer *t)
{
    struct gpw_peers *all = t->peer->all;
    struct gpw_transfer **at = &all->transfers;
    while (*at && *at != t)
        at = &(*at)->all_next;
    if (!*at)
        return;
    *at = t->all_next;
    if (!*at)
        all->transfers_end = at;
}

/* One of those that hold it has let go: the stream before it, the stream behind it, its
 * end. The last one frees it. */
static void transfer_finish(struct gpw_session *s, struct gpw_transfer *t)
{
    if (--t->awaited || s->peers->closing)
        return;
    transfer_unlink(t);
    if (t->word >= 0)
        gpw_lane_word_give(t->lane, (unsigned)t->word);
    if (t->result != CUDA_SUCCESS)
        gpw_async_result(
            s, &(struct gp_header){.op = t->sends ? GP_OP_gp_peer_send : GP_OP_gp_peer_recv},
            t->result);
    free(t);
}

/* Tell the other side, which waits for it, that a transfer will not be. */
static void call_off(struct gpw_peer *p, bool sends, uint64_t tag, CUresult result)
{
    gpw_peer_note(p, sends ? GPW_PEER_ABORT : GPW_PEER_REFUSE, tag, 0, result);
}

static void on_reached(struct gpw_session *s, void *arg, CUresult result)
{
    struct gpw_transfer *t = arg;
    pthread_mutex_lock(&s->peers->lock);
    if (!t->over && result != CUDA_SUCCESS) {
        call_off(t->peer, t->sends, t->tag, result);
        gpw_transfer_fail(t, result);
    } else {
        gpw_transfer_reach(t);
    }
    pthread_mutex_unlock(&s->peers->lock);
    transfer_finish(s, t);
}

static void on_passed(struct gpw_session *s, void *arg, CUresult result)
{
    struct gpw_transfer *t = arg;
    if (result != CUDA_SUCCESS && t->result == CUDA_SUCCESS)
        t->result = result;
    transfer_finish(s, t);
}

static bool over_ready(struct gpw_session *s, struct gpw_wait *w)
{
    struct gpw_transfer *t = (struct gpw_transfer *)w;
    pthread_mutex_lock(&s->peers->lock);
    bool over = t->over, recorded = t->recorded;
    pthread_mutex_unlock(&s->peers->lock);
    return over && (!recorded || s->driver->cuEventQuery(t->event) != CUDA_ERROR_NOT_READY);
}

static bool over_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct gpw_transfer *t = (struct gpw_transfer *)w;
    if (t->blocked && t->stream && !t->ending && !gpw_gate_resume(s, t->context, t->stream))
        return false; /* what is behind it has to wait for its turn */
    if (t->event) {
        CUresult r = t->recorded ? s->driver->cuEventQuery(t->event) : CUDA_SUCCESS;
        if (t->result == CUDA_SUCCESS)
            t->result = r;
        gpw_event_give(s, t->context, t->event);
        t->event = NULL;
    }
    if (t->flag)
        __atomic_store_n(t->flag, 1, __ATOMIC_SEQ_CST);
    t->released = true;
    transfer_finish(s, t);
    return true;
}

/* The threads may still be at it; it goes with the process. */
static void over_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s, (void)w;
}

/* Where streams cannot wait for values: on a thread of the driver's. */
static void CUDA_CB block_here(void *flag)
{
    const struct timespec pause = {0, 20000};
    while (!__atomic_load_n((uint32_t *)flag, __ATOMIC_SEQ_CST))
        nanosleep(&pause, NULL);
}

static CUresult stream_block(struct gpw_session *s, struct gpw_transfer *t)
{
    CUdeviceptr at = gpw_lane_word_at(t->lane, (unsigned)t->word);
    CUresult r = s->driver->cuStreamWaitValue32_v2(t->stream, at, 1, CU_STREAM_WAIT_VALUE_EQ);
    if (r == CUDA_ERROR_NOT_SUPPORTED)
        r = s->driver->cuLaunchHostFunc(t->stream, block_here, t->flag);
    return r;
}

/* Have the stream say where its threads look that it has come to the transfer: the loop hears of it
 * later, and is the only one to hear of failures. */
static void stream_marks(struct gpw_session *s, struct gpw_transfer *t)
{
    if (t->word < 0 ||
        s->driver->cuStreamWriteValue32_v2(t->stream, gpw_lane_mark_at(t->lane, (unsigned)t->word),
                                           1, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&s->peers->lock);
    t->marked = true;
    t->peer->stirred = gp_now_ns();
    pthread_cond_signal(&t->peer->work);
    pthread_mutex_unlock(&s->peers->lock);
}

static CUresult may_transfer(struct gpw_session *s, CUstream stream, uint64_t address,
                             uint64_t bytes)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = s->driver->cuStreamIsCapturing(stream, &status);
    if (r != CUDA_SUCCESS)
        return r;
    if (status != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_NOT_SUPPORTED; /* a graph would run it again and again */
    return bytes == 0 || gpw_memory_is_device(s, address, bytes) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

/* What it needs beside the struct; the caller frees that on failure. */
static CUresult transfer_equip(struct gpw_session *s, struct gpw_transfer *t)
{
    t->lane = gpw_lane_here(s);
    if (!t->lane)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->context = t->lane->context;
    bool signals = t->sends && t->bytes == 0; /* its stream does not wait */
    if (!t->sends && t->bytes) {
        CUresult r = gpw_event_take(s, t->context, &t->event);
        if (r != CUDA_SUCCESS)
            return r;
    }
    t->word = gpw_lane_word_take(t->lane);
    if (signals)
        return CUDA_SUCCESS;
    if (t->word < 0) {
        if (t->event)
            gpw_event_give(s, t->context, t->event);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    t->flag = &t->lane->words[t->word];
    return CUDA_SUCCESS;
}

/* From here on the other side's messages find it. Some may have come already; true: it
 * is over with that. */
static bool transfer_enter(struct gpw_transfer *t)
{
    struct gpw_peer *p = t->peer;
    uint64_t bytes;
    CUresult result;
    pthread_mutex_lock(&t->peer->all->lock);
    struct gpw_transfer **end = t->sends ? &p->sends : &p->recvs;
    while (*end)
        end = &(*end)->next;
    *end = t;
    if (p->state == GPW_PEER_DOWN)
        gpw_transfer_fail(t, CUDA_ERROR_DEVICE_UNAVAILABLE);
    else if (gpw_peer_early_take(p, t->sends, t->tag, &bytes, &result))
        gpw_transfer_meet(t, bytes, result);
    bool over = t->over;
    pthread_mutex_unlock(&t->peer->all->lock);
    return over;
}

/* Behind what the stream has to do first. It is blocked there, unless it is a signal to send. */
static CUresult transfer_place(struct gpw_session *s, struct gpw_transfer *t)
{
    bool signal = t->bytes == 0;
    struct gpw_after *reached, *passed;
    CUresult r = CUDA_SUCCESS;
    if (!signal || t->sends) {
        r = gpw_after_prepare(s, t->stream, on_reached, t, &reached);
        if (r != CUDA_SUCCESS)
            return r;
        t->awaited++;
        stream_marks(s, t);
        r = gpw_after_submitted(s, reached, t->stream, CUDA_SUCCESS);
    }
    if (r != CUDA_SUCCESS || (signal && t->sends))
        return r;
    /* of its own: the wait of the message before may be over while the stream is blocked here */
    r = gpw_after_prepare(s, t->stream, on_passed, t, &passed);
    if (r != CUDA_SUCCESS)
        return r;
    t->awaited++;
    r = gpw_after_submitted(s, passed, t->stream, stream_block(s, t));
    t->blocked = r == CUDA_SUCCESS;
    t->awaited -= r != CUDA_SUCCESS;
    return r;
}

static void transfer_submit(struct gpw_session *s, struct gpw_transfer *t)
{
    struct gpw_peers *all = s->peers;
    t->at = all->work_submitted;
    t->awaited = 2; /* this function, and the end */
    *all->transfers_end = t;
    all->transfers_end = &t->all_next;
    CUresult r = transfer_place(s, t);
    if (r != CUDA_SUCCESS) {
        pthread_mutex_lock(&s->peers->lock);
        if (!t->over)
            call_off(t->peer, t->sends, t->tag, r);
        gpw_transfer_fail(t, r);
        pthread_mutex_unlock(&s->peers->lock);
    }
    t->wait = (struct gpw_wait){
        .what = "a transfer", .ready = over_ready, .poll = over_poll, .cancel = over_cancel};
    gpw_wait_add(s, &t->wait);
    transfer_finish(s, t);
}

static void transfer_drop(struct gpw_session *s, struct gpw_transfer *t)
{
    if (t->word >= 0)
        gpw_lane_word_give(t->lane, (unsigned)t->word);
    if (t->event)
        gpw_event_give(s, t->context, t->event);
    free(t);
}

static CUresult transfer_begin(struct gpw_session *s, const struct gpw_transfer *like)
{
    CUresult r = may_transfer(s, like->stream, like->address, like->bytes);
    struct gpw_transfer *t = r == CUDA_SUCCESS ? malloc(sizeof *t) : NULL;
    if (!t)
        return r == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : r;
    *t = *like;
    r = transfer_equip(s, t);
    if (r != CUDA_SUCCESS) {
        free(t);
        return r;
    }
    if (!transfer_enter(t)) {
        transfer_submit(s, t);
        return CUDA_SUCCESS;
    }
    r = t->result; /* over before it began: the stream need not know of it */
    transfer_drop(s, t);
    return r;
}

/* A link that may carry a transfer of this tag. */
static CUresult link_of(const struct gpw_session *s, uint32_t index, bool sends, uint64_t tag,
                        struct gpw_peer **out)
{
    struct gpw_peer *p = gpw_peer_of(s, index);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&s->peers->lock);
    bool down = p->state == GPW_PEER_DOWN;
    bool twice = *gpw_transfer_find(sends ? &p->sends : &p->recvs, tag) != NULL;
    pthread_mutex_unlock(&s->peers->lock);
    *out = p;
    return down ? CUDA_ERROR_DEVICE_UNAVAILABLE : twice ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult gpw_peer_transfer(struct gpw_session *s, uint32_t peer, uint64_t tag, CUdeviceptr address,
                           uint64_t bytes, CUstream stream, bool sends)
{
    struct gpw_transfer like = {
        .sends = sends, .stream = stream, .tag = tag, .address = address, .bytes = bytes};
    CUresult r = link_of(s, peer, sends, tag, &like.peer);
    if (r != CUDA_SUCCESS)
        return r;
    r = transfer_begin(s, &like);
    if (r != CUDA_SUCCESS) {
        pthread_mutex_lock(&s->peers->lock);
        call_off(like.peer, sends, tag, r);
        pthread_mutex_unlock(&s->peers->lock);
    }
    return r;
}

/* --- what the rest of the worker asks -------------------------------------------------- */

static bool is_blocked(const struct gpw_transfer *t)
{
    return t->blocked && !t->released;
}

bool gpw_peers_pending(const struct gpw_session *s)
{
    for (const struct gpw_transfer *t = s->peers->transfers; t; t = t->all_next)
        if (is_blocked(t))
            return true;
    return false;
}

/* A stream is blocked here, and not before: on a host function, say, whose end comes as a
 * message that must be taken. */
static bool blocked_here(const struct gpw_transfer *t)
{
    pthread_mutex_lock(&t->peer->all->lock);
    bool here = t->reached || t->bytes == 0;
    pthread_mutex_unlock(&t->peer->all->lock);
    return here && is_blocked(t);
}

bool gpw_peers_admit(struct gpw_session *s, const struct gp_header *h)
{
    if (!s->peers->transfers || gp_op_info(h->op)->work == GP_WORK_NONE ||
        gpw_host_functions_pending(s))
        return true;
    const struct gpw_transfer *t = s->peers->transfers;
    while (t && !blocked_here(t))
        t = t->all_next;
    return !t || s->peers->work_submitted - t->at < BEHIND_MAX;
}

void gpw_peers_stream_ending(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t id = gp_message_id(h, gp_op_info(h->op)->stream_ended_at), real;
    if (!s->peers->transfers ||
        gpw_handle_get(s, GP_HANDLE_STREAM, id, false, &real) != CUDA_SUCCESS)
        return;
    for (struct gpw_transfer *t = s->peers->transfers; t; t = t->all_next)
        if (t->stream == (CUstream)real)
            t->stream = NULL;
}

void gpw_peers_passed(struct gpw_session *s, const struct gp_header *h)
{
    if (gp_op_info(h->op)->work != GP_WORK_NONE)
        s->peers->work_submitted++;
}

void gpw_peers_bytes(const struct gpw_session *s, uint64_t *sent, uint64_t *received)
{
    struct gpw_peers *all = s->peers;
    pthread_mutex_lock(&all->lock);
    *sent = all->bytes_sent;
    *received = all->bytes_received;
    pthread_mutex_unlock(&all->lock);
}

static bool fail_in_context(struct gpw_session *s, CUcontext context)
{
    bool over = true;
    pthread_mutex_lock(&s->peers->lock);
    for (struct gpw_transfer *t = s->peers->transfers; t; t = t->all_next) {
        if (t->context != context || t->over)
            continue;
        if (t->result == CUDA_SUCCESS)
            call_off(t->peer, t->sends, t->tag, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        gpw_transfer_fail(t, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        over &= t->over;
    }
    pthread_mutex_unlock(&s->peers->lock);
    return over;
}

/* A piece under way leaves soon, unless another worker takes nothing more. */
static void fail_all_in_context(struct gpw_session *s, CUcontext context)
{
    uint64_t until = gp_now_ns() + GPW_PEER_ENOUGH_SECONDS * UINT64_C(1000000000);
    while (!fail_in_context(s, context)) {
        if (gp_now_ns() >= until) {
            pthread_mutex_lock(&s->peers->lock);
            gpw_peers_give_up(s->peers);
            pthread_mutex_unlock(&s->peers->lock);
        }
        usleep(100);
    }
}

static bool any_in_context(struct gpw_session *s, CUcontext context)
{
    for (const struct gpw_transfer *t = s->peers->transfers; t; t = t->all_next)
        if (t->context == context)
            return true;
    return false;
}

void gpw_peers_context_ended(struct gpw_session *s, CUcontext context)
{
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(context);
    fail_all_in_context(s, context);
    for (struct gpw_transfer *t = s->peers->transfers; t; t = t->all_next) {
        t->ending |= t->context == context;
        if (t->ending && t->flag)
            __atomic_store_n(t->flag, 1, __ATOMIC_SEQ_CST);
    }
    if (any_in_context(s, context))
        s->driver->cuCtxSynchronize();
    while (any_in_context(s, context)) /* their events have passed */
        gpw_waits_poll(s);
    gpw_lane_context_ended(s, context);
    s->driver->cuCtxSetCurrent(before);
}

void gpw_peers_close(struct gpw_session *s)
{
    struct timespec until;
    s->peers->closing = true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    for (uint32_t i = 0; i < GP_PEERS_MAX; i++) {
        struct gpw_peer *p = gpw_peer_of(s, i);
        if (!p)
            continue;
        pthread_mutex_lock(&s->peers->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&s->peers->lock);
    }
    /* so that the others hear of it; one that cannot be waited for goes with the process */
    for (uint32_t i = 0; i < GP_PEERS_MAX; i++)
        if (gpw_peer_of(s, i))
            pthread_timedjoin_np(gpw_peer_of(s, i)->reader, NULL, &until);
}
