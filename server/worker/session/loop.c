#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "budget.h"
#include "capture_watch.h"
#include "cupti_records.h"
#include "dispatch.h"
#include "freed.h"
#include "gate.h"
#include "graph.h"
#include "graph_budget.h"
#include "handles.h"
#include "later.h"
#include "left.h"
#include "memory.h"
#include "monotonic.h"
#include "peer.h"
#include "place.h"
#include "staging.h"
#include "usual.h"

/* How long to sleep in recv while the GPU works: a part of the time waited so far, so that a wait
 * ends at most so much late; nothing in the first moments, and little around the times that waits
 * took lately. */
#define SPIN_NS 50000u
#define SLEEP_PART 40u
#define SLEEP_MAX_US 250
#define SLEEP_CLOSE_US 10
#define IDLE_US 200000
/* So many messages are handled for one look at the clock: it takes as long as a good part of one. */
#define AT_ONCE 4
/* For so long messages may keep waits from being asked. */
#define LOOK_MOST_NS 1000000u
/* For so long behind a short wait the next message is likely, and a gate that nobody else wants is not
 * looked at: what the driver is asked and made to record for that would be in the message's way. */
#define STIRS_NS 5000u

struct gpw_loop {
    const struct gp_header *held; /* waits at the gate, in the channel until it is released */
    uint64_t held_since;
    const struct gpw_wait *oldest; /* of the waits, and since when it is */
    uint64_t oldest_since;
    struct gp_usual usual;         /* how long such a one lasted */
    uint64_t looked, took;         /* when waits were asked last, and how long that took */
    uint64_t gate_looked;          /* when the gate saw last which work is over */
    uint64_t signal, signal_since; /* the last one's number, and since when it is the last */
    uint64_t stirred; /* when there was a message last, or somebody who has just begun to wait */
    unsigned at_once; /* messages since the clock was read */
    bool unlooked;    /* it has work, and looks when there is no message */
    bool stirs;       /* there was one since */
};

static int64_t patience(const struct gp_usual *usual, uint64_t waited_ns)
{
    if (waited_ns < SPIN_NS)
        return 0;
    uint64_t ns = waited_ns / SLEEP_PART, next = gp_usual_next_ns(usual, waited_ns);
    uint64_t close = next ? gp_usual_soonest_ns(next) : UINT64_MAX;
    ns = ns < SLEEP_MAX_US * 1000u ? ns : SLEEP_MAX_US * 1000u;
    if (close <= waited_ns)
        ns = SLEEP_CLOSE_US * 1000u;
    else if (close - waited_ns < ns)
        ns = close - waited_ns;
    return (int64_t)(ns / 1000u) + 1;
}

/*
 * While a stream is blocked on a host function, whatever waits for that stream inside
 * the driver (loading a module does) would wait for ever: the function's end
 * comes as a message, which this thread would not take. So a call in which the driver
 * may wait for the GPU is put off until the host functions are through; its caller
 * waits for the answer, so nothing of his comes behind it. Likewise while a stream
 * waits for another worker.
 */
struct put_off {
    struct gpw_wait wait;
    CUcontext context;
    bool strict;
    bool last_try;      /* waits for frees, and not a second time */
    uint64_t frees;     /* those up to this one */
    uint64_t message[]; /* a struct gp_header and what follows */
};

static bool put_off_ready(struct gpw_session *s, struct gpw_wait *w)
{
    const struct put_off *p = (struct put_off *)w;
    return !gpw_streams_blocked(s) && !(p->last_try && gpw_memory_frees_under_way(s, p->frees));
}

static bool is_capturable(const struct gp_header *h)
{
    return gp_op_info(h->op)->capture != GP_CAPTURE_NONE;
}

/* The call of a client's thread, made as that thread may make it. What captures never forbid
 * is made in relaxed mode all the same: what a driver does in it by itself, like freeing what
 * another thread has let go of, harms no capture then. */
static void dispatch(struct gpw_session *s, const struct gp_header *h, bool strict)
{
    bool outer = s->strict_call;
    if (!gpw_graphs_admit(s, h))
        return;
    uint64_t before = s->at_message;
    s->strict_call = strict;
    s->at_message = h->seq;
    s->handled++;
    s->over = 0;
    gpw_strict(s, strict && !is_capturable(h));
    if (gpw_streams_blocked(s) || s->nccl)
        gpw_working_forget(s);
    gpw_working_note(s, h);
    gpa_enter(h->seq);
    gpw_dispatch(s, h);
    s->over = 0;
    gpa_leave();
    gpw_capture_watch_op(s, "the call", h);
    gpw_strict(s, false);
    s->strict_call = outer;
    s->at_message = before;
    gpw_graphs_passed(s, h);
}

static void put_off_free(struct gpw_session *s, struct put_off *p)
{
    const struct gp_header *h = (const struct gp_header *)p->message;
    gpw_budget_give(s, GPW_USE_WAITS, sizeof *p + gp_align8(h->size));
    free(p);
}

/* None, if it has been destroyed in the meantime. */
static void context_enter(struct gpw_session *s, CUcontext context)
{
    bool lives = gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)context) != 0;
    s->driver->cuCtxSetCurrent(lives ? context : NULL);
}

static bool put_off_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct put_off *p = (struct put_off *)w;
    CUcontext before = NULL;
    bool trusted = gpw_place_trust(s, false);
    s->driver->cuCtxGetCurrent(&before);
    context_enter(s, p->context);
    s->last_try = p->last_try;
    dispatch(s, (const struct gp_header *)p->message, p->strict);
    s->last_try = false;
    context_enter(s, before);
    gpw_place_trust(s, trusted);
    put_off_free(s, p);
    return true;
}

static void put_off_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    put_off_free(s, (struct put_off *)w);
}

/* Every call that is put off is waited for. */
static int refuse(struct gpw_session *s, const struct gp_header *h)
{
    struct gp_reply reply = {.result = 0};
    struct gpw_message m = {.head = &reply.h, .head_size = sizeof reply};
    return gpw_reply(s, h, CUDA_ERROR_OUT_OF_MEMORY, &m);
}

static int put_off(struct gpw_session *s, const struct gp_header *h, bool strict, bool for_frees)
{
    struct put_off *p;
    size_t size = sizeof *p + gp_align8(h->size);
    if (!gpw_budget_take(s, GPW_USE_WAITS, size))
        return refuse(s, h);
    p = calloc(1, size);
    if (!p) {
        gpw_budget_give(s, GPW_USE_WAITS, size);
        return refuse(s, h);
    }
    p->strict = strict;
    p->last_try = for_frees;
    p->frees = gpw_memory_last_free(s);
    p->wait = (struct gpw_wait){.what = "a call that was put off",
                                .ready = put_off_ready,
                                .poll = put_off_poll,
                                .cancel = put_off_cancel};
    s->driver->cuCtxGetCurrent(&p->context);
    memcpy(p->message, h, h->size);
    gpw_wait_add(s, &p->wait);
    return 0;
}

int gpw_put_off(struct gpw_session *s, const struct gp_header *h)
{
    return put_off(s, h, s->strict_call, true);
}

/* Whether nothing but the gate may keep it back. */
static bool may_come_to_gate(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t held_ns = h == s->loop->held ? gp_now_ns() - s->loop->held_since : 0;
    return gpw_fences_admit(s, h) && gpw_peers_admit(s, h) && gpw_staging_admit(s, h, held_ns) &&
           gpw_memory_admit(s, h, held_ns) && gpw_freed_admit(s, h, held_ns);
}

static bool admit(struct gpw_session *s, const struct gp_header *h, const struct gpw_place *place)
{
    return may_come_to_gate(s, h) && gpw_gate_admit(s, h, place);
}

static void handle(struct gpw_session *s, const struct gp_header *h, const struct gpw_place *place)
{
    if (gp_op_info(h->op)->stream_ended_at) {
        gpw_place_forget(s);
        gpw_gate_stream_ending(s, h);
        gpw_peers_stream_ending(s, h);
        gpw_left_take(s, h);
    }
    gpw_captures_note(s);
    if (gp_op_info(h->op)->blocks && gpw_streams_blocked(s))
        put_off(s, h, s->strict, false);
    else
        dispatch(s, h, s->strict);
    gpw_gate_passed(s, h, place);
    gpw_peers_passed(s, h);
    gpw_capture_watch_op(s, "what the gate does behind", h);
    s->transport->release(s->channel);
}

/* Who waited for a free in a stream's order may know by the GPU that it is over, before we have looked. */
static void give_back_first(struct gpw_session *s, const struct gp_header *h)
{
    if (gp_op_info(h->op)->tidies && gpw_memory_frees_in_order(s))
        gpw_waits_poll(s);
}

/* In the context that the message names. False: it has to wait at the gate. */
static bool pass(struct gpw_session *s, const struct gp_header *h)
{
    struct gpw_place place;
    give_back_first(s, h);
    gpw_place_enter(s, h, &place);
    bool admitted = admit(s, h, &place);
    gpw_capture_watch_op(s, "the admission of", h);
    if (admitted)
        handle(s, h, &place);
    gpw_place_leave(s, &place);
    return admitted;
}

static void hold(struct gpw_loop *l, const struct gp_header *h)
{
    l->held = h;
    l->held_since = gp_now_ns();
}

/* One message, waiting at most `timeout_us` for it. False when none was handled. */
static bool take(struct gpw_session *s, int64_t timeout_us)
{
    struct gpw_loop *l = s->loop;
    const void *message;
    size_t size;
    if (l->held) {
        if (!pass(s, l->held))
            return false;
        l->held = NULL;
        return true;
    }
    int r = s->transport->recv(s->channel, timeout_us, &message, &size);
    if (r == -EAGAIN)
        return false;
    if (r != 0) {
        if (!s->ended)
            gpw_log("info", "the client is gone");
        s->ended = true;
        return false;
    }
    const struct gp_header *h = message;
    __atomic_store_n(&s->calls, s->calls + 1, __ATOMIC_RELAXED); /* it is told meanwhile */
    if (size < sizeof *h || h->size != size)
        gpw_session_broken(s, "the size in the header is not the message's");
    else if (!s->greeted && h->op != GP_OP_gp_hello)
        gpw_session_broken(s, "no greeting");
    else if (!pass(s, h))
        hold(l, h);
    return !l->held;
}

/* Before a closed gate nothing is received, so nothing else tells that the client died. */
static bool client_lives(struct gpw_session *s)
{
    if (!s->loop->held || s->transport->flush(s->channel) == 0)
        return true;
    gpw_log("info", "the client is gone");
    return false;
}

/* Behind a stream that is blocked, with as much submitted as may be. */
static void pause_us(int64_t us)
{
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

static int64_t waits_patience(struct gpw_session *s)
{
    struct gpw_loop *l = s->loop;
    uint64_t now = s->waits ? gp_now_ns() : 0;
    if (s->waits != l->oldest) {
        now = now ? now : gp_now_ns();
        if (l->oldest && now - l->oldest_since > SPIN_NS)
            gp_usual_learn(&l->usual, now - l->oldest_since);
        l->oldest_since = now;
    }
    l->oldest = s->waits;
    return s->waits ? patience(&l->usual, now - l->oldest_since) : IDLE_US;
}

/* To ask all waits takes the longer the more there are: messages that are there get as much
 * time, up to a limit, or each would cost a question to every wait. */
static void waits_look(struct gpw_session *s, bool messages)
{
    struct gpw_loop *l = s->loop;
    if (!s->waits)
        return;
    uint64_t now = gp_now_ns();
    if (messages && now - l->looked < l->took)
        return;
    gpw_waits_poll(s);
    l->looked = gp_now_ns();
    l->took = l->looked - now < LOOK_MOST_NS ? l->looked - now : LOOK_MOST_NS;
}

/* Whether the client has just begun to look for a number that the GPU has not written yet. */
static bool looks_for_signal(struct gpw_session *s, uint64_t now)
{
    struct gpw_loop *l = s->loop;
    if (s->signal.number != l->signal)
        l->signal_since = now;
    l->signal = s->signal.number;
    return s->signal.word && now - l->signal_since < SPIN_NS &&
           __atomic_load_n(s->signal.word, __ATOMIC_RELAXED) != s->signal.number;
}

/* Whether the client is about to send more, as far as one can tell. */
static bool stirs(struct gpw_session *s, uint64_t now)
{
    struct gpw_loop *l = s->loop;
    bool waits = s->waits && s->waits == l->oldest && now - l->oldest_since < SPIN_NS;
    if (l->stirs || waits || looks_for_signal(s, now))
        l->stirred = now;
    l->stirs = false;
    return now - l->stirred < STIRS_NS && !gpw_gate_contended(s);
}

/* The driver is asked whether work is over behind the last message that is there, and before that
 * only as often as the gate wants it: behind each, the question takes as long as the message. */
static void gate_look(struct gpw_session *s, bool messages, uint64_t now)
{
    struct gpw_loop *l = s->loop;
    uint64_t patience_ns = 1000u * (uint64_t)gpw_gate_patience(s, IDLE_US);
    bool later = stirs(s, now) || messages;
    l->unlooked = later && gpw_gate_busy(s) && now - l->gate_looked < patience_ns;
    if (l->unlooked)
        return;
    gpw_gate_poll(s);
    l->gate_looked = now;
}

void gpw_loop_run(struct gpw_session *s, bool (*idle)(struct gpw_session *))
{
    struct gpw_loop loop = {.held = NULL};
    uint64_t looked = gp_now_ns();
    s->loop = &loop;
    while (!s->ended) {
        int64_t timeout = loop.unlooked ? 0 : gpw_gate_patience(s, waits_patience(s));
        if (loop.held && may_come_to_gate(s, loop.held))
            gpw_gate_wait(s, timeout);
        else if (loop.held)
            pause_us(timeout);
        bool messages = take(s, timeout);
        waits_look(s, messages);
        loop.stirs |= messages;
        if (messages && ++loop.at_once % AT_ONCE != 0) {
            loop.unlooked = gpw_gate_busy(s);
            continue;
        }
        uint64_t now = gp_now_ns();
        gate_look(s, messages, now);
        gpw_capture_watch(s, "the gate's poll", "");
        if (now - looked > IDLE_US * 1000u) {
            looked = now;
            gpw_failures_look(s);
            if (!idle(s) || !client_lives(s))
                s->ended = true;
            gpw_capture_watch(s, "the idle step", "");
        }
    }
    s->loop = NULL;
}
