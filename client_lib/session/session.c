/*
 * A session's traffic: one submission order, answers dealt to the threads that wait
 * for them.
 *
 * The two locks of a session are in session.h's table. Whichever waiting thread finds
 * nobody reading reads for all of them (`reading`), so a lone thread gets its answer
 * without waking anybody. Neither lock is held while a thread blocks in recv.
 *
 * What becomes of a call is its state (call.h), which changes under `wait_lock`. Only a
 * sent call is listed, none is listed once the session is broken, and one that is taken
 * belongs to the thread that reads until it is done: nobody takes its buffers away under
 * that thread's hands, not even when the session is lost.
 */
#include "session.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "activity_table.h"
#include "captures.h"
#include "gp_errors.h"
#include "gpc_wire.h"
#include "managed.h"
#include "memory.h"
#include "landing.h"
#include "message.h"
#include "monotonic.h"
#include "operations_there.h"
#include "process.h"
#include "spare.h"
#include "spin.h"
#include "stats.h"

static bool sync_mode;

static bool relieve(void *session);

void gpc_session_start(struct gpc_session *s, bool sync)
{
    sync_mode = sync;
    s->wire_capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_mutex_init(&s->submit_lock, NULL);
    pthread_mutex_init(&s->wait_lock, NULL);
    pthread_cond_init(&s->wait_changed, NULL);
    if (s->transport->relieve)
        s->transport->relieve(s->channel, relieve, s);
    gpc_landing_start(s);
}

bool gpc_session_sync(void)
{
    return sync_mode;
}

bool gpc_session_works(const struct gpc_session *s)
{
    return !__atomic_load_n(&s->broken, __ATOMIC_RELAXED);
}

bool gpc_session_shares(const struct gpc_session *s)
{
    return s && (s->transport->caps & GP_CAP_SHARE) != 0;
}

/* --- what arrives ------------------------------------------------------- */

/* A send has failed. What was not read yet may say why. */
static void lose_sending(struct gpc_session *s, int error)
{
    gpc_session_poll(s);
    gpc_session_lose_for(s, error);
}

/* List the call; false: the session is lost already, and nobody would take it off again. */
static bool waiting_list(struct gpc_session *s, struct gpc_call *call)
{
    pthread_mutex_lock(&s->wait_lock);
    bool listed = !s->broken;
    call->state = listed ? GPC_CALL_SENT : GPC_CALL_FAILED;
    if (listed) {
        call->next = s->waiting;
        s->waiting = call;
    }
    pthread_mutex_unlock(&s->wait_lock);
    return listed;
}

static struct gpc_call *waiting_take(struct gpc_session *s, uint64_t seq)
{
    pthread_mutex_lock(&s->wait_lock);
    struct gpc_call **at = &s->waiting;
    while (*at && (*at)->seq != seq)
        at = &(*at)->next;
    struct gpc_call *call = *at;
    if (call) {
        *at = call->next;
        call->state = GPC_CALL_TAKEN;
    }
    pthread_mutex_unlock(&s->wait_lock);
    return call;
}

/* The call will not be waited for: it could not be sent. Its answer may have come all the
 * same, from a worker that guessed its number. */
static void waiting_withdraw(struct gpc_session *s, struct gpc_call *call)
{
    pthread_mutex_lock(&s->wait_lock);
    struct gpc_call **at = &s->waiting;
    while (*at && *at != call)
        at = &(*at)->next;
    if (*at) {
        *at = call->next;
        call->state = GPC_CALL_FAILED;
    }
    while (call->state == GPC_CALL_TAKEN)
        pthread_cond_wait(&s->wait_changed, &s->wait_lock);
    pthread_mutex_unlock(&s->wait_lock);
    if (call->lands)
        gpc_ground(s);
}

static bool deliver(struct gpc_session *s, const void *message, size_t size)
{
    const struct gp_header *h = message;
    GPC_STATS_ADD(bytes_received, size);
    if (size < sizeof *h || h->size != size)
        return false;
    if (!(h->flags & GP_FLAG_REPLY))
        return gpc_notify_dispatch(s, h);
    if (size < sizeof(struct gp_reply))
        return false;
    struct gpc_call *call = waiting_take(s, h->seq);
    if (!call)
        return false;
    bool landed = gpc_landed(s);
    bool right = call->lands == landed && gpc_reply_fill(call, message, size, landed);
    if (call->lands && !landed) /* nor may another message that claims to be it go on */
        gpc_ground(s);
    if (!right)
        call->result = CUDA_ERROR_UNKNOWN;
    if (gp_error_is_sticky((int)call->result))
        gpc_session_set_sticky(s, call->result);
    pthread_mutex_lock(&s->wait_lock);
    /* whoever waits is woken when the right to read is given back */
    call->state = GPC_CALL_DONE;
    pthread_mutex_unlock(&s->wait_lock);
    return right;
}

/* Read one message (the caller has the right to read). False when none came. */
static bool read_one(struct gpc_session *s, int64_t timeout_us)
{
    const void *message;
    size_t size;
    int r = s->transport->recv(s->channel, timeout_us, &message, &size);
    if (r == -EAGAIN)
        return false;
    if (r != 0) {
        gpc_session_lose_for(s, r);
        return false;
    }
    bool right = deliver(s, message, size);
    s->transport->release(s->channel);
    __atomic_fetch_add(&s->notices, 1, __ATOMIC_RELEASE);
    if (!right)
        gpc_session_lose(s, "the worker sent an answer that fits no call");
    return true;
}

/* --- what leaves --------------------------------------------------------- */

/* Bring the worker's thread into the call's context. One of another session does not mean
 * anything there: then any of its own will do, for calls that name a handle.
 * Under submit_lock. */
static int follow_context(struct gpc_session *s, CUcontext context)
{
    int r = 0;
    if (context && gpc_session_of_handle((uint64_t)context) != s)
        context = s->wire_context ? s->wire_context : gpc_context_any(s, -1);
    if (context && context != s->wire_context) {
        if (s->wire_context)
            __atomic_store_n(&s->several_contexts, true, __ATOMIC_RELAXED);
        struct gp_req_gp_context_set q = {.h = {.op = GP_OP_gp_context_set, .seq = ++s->last_seq},
                                          .ctx = (uint64_t)context};
        r = gpc_message_send(s, &q.h, sizeof q, NULL, 0, GP_SEND_LATER);
        s->wire_context = context;
    }
    return r;
}

/* And let captures forbid it what they forbid ours, also where no context matters. Under
 * submit_lock. */
static int follow_captures(struct gpc_session *s, const struct gpc_thread *t)
{
    int r = 0;
    uint32_t mode = gpc_captures_mode(t);
    if (mode != s->wire_capture_mode) {
        struct gp_req_gp_capture_mode_set q = {
            .h = {.op = GP_OP_gp_capture_mode_set, .seq = ++s->last_seq}, .mode = mode};
        r = gpc_message_send(s, &q.h, sizeof q, NULL, 0, GP_SEND_LATER);
        s->wire_capture_mode = mode;
    }
    return r;
}

/* Under submit_lock: what its caller knew when it decided to send it. */
static bool holds(const struct gpc_session *s, const struct gpc_call *call)
{
    return (!call->only_behind || call->only_behind == s->last_seq) &&
           (!call->only_tidied || call->tidied == s->tidied_seq);
}

/* Number the call, list it if it is waited for, send it. */
static CUresult submit(struct gpc_session *s, struct gpc_call *call, bool wait)
{
    struct gp_header *h = call->request;
    h->flags = wait ? GP_FLAG_WAITED : 0;
    call->state = GPC_CALL_QUEUED;
    gpc_message_touch(s, call->in, call->in_count); /* whose handler may call CUDA */
    int cancel = gpc_inside_begin();
    bool managed = gpc_managed_before(call);
    pthread_mutex_lock(&s->submit_lock);
    if (!holds(s, call)) {
        pthread_mutex_unlock(&s->submit_lock);
        if (managed)
            gpc_managed_after();
        gpc_inside_end(cancel);
        return CUDA_ERROR_NOT_READY;
    }
    int r = gp_op_table[h->op].in_context ? follow_context(s, call->route.context) : 0;
    if (r == 0)
        r = follow_captures(s, gpc_thread());
    if (gp_op_table[h->op].work == GP_WORK_GRAPH) /* before the worker can say what it ran */
        __atomic_add_fetch(&s->graph_launches, 1, __ATOMIC_RELEASE);
    call->seq = h->seq = ++s->last_seq;
    gpc_spare_sent(s, h);
    gpc_activity_sent(s, call->seq);
    if (wait && !waiting_list(s, call))
        r = -EPIPE;
    /* what the managed memory is prepared for ends with the sending */
    unsigned lent = call->route.lends && !managed ? GP_SEND_LENT : 0;
    if (r == 0)
        r = gpc_message_send(s, h, call->request_size, call->in, call->in_count,
                             lent | (wait ? 0 : GP_SEND_LATER));
    pthread_mutex_unlock(&s->submit_lock);
    if (managed)
        gpc_managed_after();
    if (r != 0 && wait)
        waiting_withdraw(s, call);
    if (r != 0 && r != -EMSGSIZE)
        lose_sending(s, r);
    gpc_inside_end(cancel);
    return r == 0 ? CUDA_SUCCESS : r == -EMSGSIZE ? CUDA_ERROR_INVALID_VALUE : gpc_session_gone(s);
}

CUresult gpc_session_take_back(struct gpc_session *s)
{
    if (!s->transport->take_back)
        return CUDA_SUCCESS;
    int cancel = gpc_inside_begin();
    int r = s->transport->take_back(s->channel);
    if (r != 0)
        lose_sending(s, r);
    gpc_inside_end(cancel);
    return r == 0 ? CUDA_SUCCESS : gpc_session_gone(s);
}

void gpc_session_context_gone(CUcontext context)
{
    struct gpc_session *s = gpc_session_of_handle((uint64_t)context);
    pthread_mutex_lock(&s->submit_lock);
    if (s->wire_context == context)
        s->wire_context = NULL;
    pthread_mutex_unlock(&s->submit_lock);
}

/* As gpc_enter, for who comes by other ways: a handler of a signal is to send nothing from inside, and
 * a host function nothing that waits for its end. What managed memory sends there is ours. */
static bool is_permitted(const struct gp_op_info *op)
{
    const struct gpc_thread *t = gpc_thread();
    return t->own_calls || !(t->inside || (t->host_function && op->blocks));
}

/* Where the call goes, or why it does not. */
static CUresult ready(struct gpc_call *call)
{
    struct gpc_session *s = gpc_route_session(&call->route);
    if (!is_permitted(&gp_op_table[call->request->op]))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!s || !gpc_session_works(s))
        return gpc_session_gone(s);
    if (!gpc_session_has(s, call->request->op))
        return gpc_session_lacks(s, call->request->op);
    gpc_thread()->last = s;
    /* who entered has looked at the context's session only */
    if (gpc_session_of_handle((uint64_t)call->route.context) != s &&
        gp_op_table[call->request->op].in_context)
        return (CUresult)__atomic_load_n(&s->sticky, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult gpc_call_post(struct gpc_call *call)
{
    CUresult r = ready(call);
    if (r != CUDA_SUCCESS)
        return r;
    /* in a capture errors matter at once, and time does not */
    if (sync_mode || gpc_capture_active())
        return gpc_call_exchange(call);
    r = submit(call->route.session, call, false);
    /* once in a while, take what the worker has to say, so that errors show
     * and its side of the channel never fills */
    if ((call->seq & 63) == 0)
        gpc_session_poll(call->route.session);
    return r;
}

/* us until then, rounded up; -1: for ever. */
static int64_t us_until(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return -1;
    int64_t left = deadline_ns - (int64_t)gp_now_ns();
    return left > 0 ? left / 1000 + 1 : 0;
}

/* Reading for everybody whenever nobody else does: until the deadline, while others read as long as
 * they do. */
bool gpc_call_await_until(const struct gpc_call *call, int64_t deadline_ns)
{
    struct gpc_session *s = call->route.session;
    int64_t us = -1;
    int cancel = gpc_inside_begin();
    pthread_mutex_lock(&s->wait_lock);
    while (call->state < GPC_CALL_DONE && (us = us_until(deadline_ns)) != 0) {
        if (s->reading) {
            pthread_cond_wait(&s->wait_changed, &s->wait_lock);
            continue;
        }
        s->reading = true;
        pthread_mutex_unlock(&s->wait_lock);
        read_one(s, us);
        pthread_mutex_lock(&s->wait_lock);
        s->reading = false;
        pthread_cond_broadcast(&s->wait_changed);
    }
    bool over = call->state >= GPC_CALL_DONE;
    pthread_mutex_unlock(&s->wait_lock);
    gpc_inside_end(cancel);
    return over;
}

void gpc_call_await(const struct gpc_call *call)
{
    gpc_call_await_until(call, INT64_MAX);
}

CUresult gpc_call_begin(struct gpc_call *call)
{
    CUresult r = ready(call);
    return r == CUDA_SUCCESS ? submit(call->route.session, call, true) : r;
}

CUresult gpc_call_finish(struct gpc_call *call)
{
    uint64_t begin = gp_now_ns();
    gpc_spin_await(NULL, NULL, call);
    gpc_call_waited(call, begin, false);
    for (unsigned i = 0; i < call->out_count; i++)
        if (call->out[i].own != call->out[i].to)
            gpc_managed_filled(call->out[i].own, call->out[i].got);
    if (gp_op_table[call->request->op].idles && call->result == CUDA_SUCCESS)
        gpc_session_settle_context(call);
    return call->result;
}

CUresult gpc_call_exchange(struct gpc_call *call)
{
    CUresult r = gpc_call_begin(call);
    return r == CUDA_SUCCESS ? gpc_call_finish(call) : r;
}

/* Read what has come, unless another thread reads; whether anything had. */
static bool read_some(struct gpc_session *s)
{
    bool some = false;
    if (!gpc_session_works(s) || pthread_mutex_trylock(&s->wait_lock) != 0)
        return false;
    bool mine = !s->reading;
    s->reading = true;
    pthread_mutex_unlock(&s->wait_lock);
    if (!mine)
        return false;
    int cancel = gpc_inside_begin();
    while (read_one(s, 0) && gpc_session_works(s))
        some = true;
    pthread_mutex_lock(&s->wait_lock);
    s->reading = false;
    pthread_cond_broadcast(&s->wait_changed);
    pthread_mutex_unlock(&s->wait_lock);
    gpc_inside_end(cancel);
    return some;
}

void gpc_session_poll(struct gpc_session *s)
{
    read_some(s);
}

bool gpc_call_poll(const struct gpc_call *call)
{
    struct gpc_session *s = call->route.session;
    read_some(s);
    pthread_mutex_lock(&s->wait_lock);
    bool over = call->state >= GPC_CALL_DONE;
    pthread_mutex_unlock(&s->wait_lock);
    return over;
}

/* A send is blocked (transport.h). The worker may be blocked in one as well, with what a copy
 * brings, and takes nothing until that is received. The thread holds submit_lock, under which
 * reading is allowed. */
static bool relieve(void *session)
{
    return read_some(session);
}

uint64_t gpc_session_notices(const struct gpc_session *s)
{
    return __atomic_load_n(&s->notices, __ATOMIC_ACQUIRE);
}

CUresult gpc_session_wait_notice(struct gpc_session *s, uint64_t seen)
{
    if (!gpc_session_works(s))
        return gpc_session_gone(s);
    int cancel = gpc_inside_begin();
    s->transport->flush(s->channel);
    pthread_mutex_lock(&s->wait_lock);
    if (gpc_session_notices(s) != seen || s->broken) {
        pthread_mutex_unlock(&s->wait_lock); /* something came in the meantime */
    } else if (s->reading) {
        /* somebody else reads: what it reads next may be what we wait for */
        pthread_cond_wait(&s->wait_changed, &s->wait_lock);
        pthread_mutex_unlock(&s->wait_lock);
    } else {
        s->reading = true;
        pthread_mutex_unlock(&s->wait_lock);
        read_one(s, -1);
        pthread_mutex_lock(&s->wait_lock);
        s->reading = false;
        pthread_cond_broadcast(&s->wait_changed);
        pthread_mutex_unlock(&s->wait_lock);
    }
    gpc_inside_end(cancel);
    return gpc_session_works(s) ? CUDA_SUCCESS : gpc_session_gone(s);
}
