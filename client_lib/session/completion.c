#include "completion.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "context.h"
#include "gpc_wire.h"
#include "managed.h"
#include "memory.h"
#include "monotonic.h"
#include "operations_there.h"
#include "session.h"
#include "shared.h"
#include "spin.h"
#include "stats.h"
#include "transport/support.h"

/* A program that waits so seldom needs no page. */
#define WAITS_BEFORE 4

/* A wait under way. The call stays listed until it is answered, so it lies here. */
struct place {
    struct gpc_call call;
    union {
        struct gp_req_gp_stream_complete stream;
        struct gp_req_gp_context_complete context;
        struct gp_req_gp_dtoh_complete dtoh;
    } request;
    uint64_t number;
    const uint64_t *word; /* of the page */
    bool signalled;       /* what a signal was sent for may still be written here */
};

struct gpc_completions {
    struct gp_share share;
    uint64_t last;  /* number that was given */
    uint32_t taken; /* a bit for each place */
    uint32_t left;  /* of these, whose wait is over and whose answer may still come */
    /* The GPU has written within the patience of the last wait in this context: a signal will do.
     * NULL: in none. The page is written in one context alone. */
    CUcontext soon;
    struct place of[GP_COMPLETION_PLACES];
};
_Static_assert(GP_COMPLETION_PLACES == 32, "one word of bits");

static const uint64_t *word_at(const struct gpc_completions *c, size_t place)
{
    const char *word = (const char *)c->share.addr + place * GP_COMPLETION_WORD_STEP;
    return (const uint64_t *)(const void *)word;
}

static struct gpc_completions *page_new(struct gpc_session *s)
{
    const struct gpc_route on = gpc_route_to(s);
    struct gpc_completions *c = calloc(1, sizeof *c);
    if (!c || s->transport->share(s->channel, NULL, GP_COMPLETION_BYTES, &c->share) != 0) {
        free(c);
        return NULL;
    }
    if (gpc_wire_gp_completion_open_on(&on, c->share.id, c->share.size) == CUDA_SUCCESS) {
        /* whatever writes there by mistake is to be found by that */
        mprotect(c->share.addr, c->share.size, PROT_READ);
        for (size_t i = 0; i < GP_COMPLETION_PLACES; i++)
            c->of[i].word = word_at(c, i);
        return c;
    }
    if (gpc_session_works(s))
        s->transport->unshare(s->channel, &c->share);
    free(c);
    return NULL;
}

/* Made once, at a wait that is not the first; other threads wait in the other way meanwhile. */
static struct gpc_completions *page_of(struct gpc_session *s)
{
    struct gpc_completions *c = __atomic_load_n(&s->completions, __ATOMIC_ACQUIRE);
    if (c || __atomic_load_n(&s->completions_asked, __ATOMIC_RELAXED) > WAITS_BEFORE ||
        __atomic_add_fetch(&s->completions_asked, 1, __ATOMIC_RELAXED) != WAITS_BEFORE)
        return c;
    c = page_new(s);
    /* pairs with the acquire above */
    __atomic_store_n(&s->completions, c, __ATOMIC_RELEASE);
    return c;
}

/* The page, where the GPU may end a wait. Bytes for memory that is not shared are brought by the
 * worker, so they are here with its answer alone. */
static struct gpc_completions *page_for(const struct gpc_route *on, uint16_t op)
{
    struct gpc_session *s = on->session;
    if (!gpc_session_shares(s) || !gpc_session_works(s) || gpc_session_sync() ||
        gpc_capture_active() || !gpc_spin_may(on->context) || gpc_pinned_expects(s) ||
        !gpc_session_has(s, GP_OP_gp_completion_open) || !gpc_session_has(s, op))
        return NULL;
    return page_of(s);
}

/* --- places ------------------------------------------------------------------------------- */

static void reclaim(struct gpc_session *s, struct gpc_completions *c)
{
    uint32_t over = 0;
    if (__atomic_load_n(&c->left, __ATOMIC_RELAXED) == 0)
        return;
    pthread_mutex_lock(&s->wait_lock);
    for (uint32_t left = c->left; left; left &= left - 1) {
        uint32_t bit = left & -left;
        over |= c->of[__builtin_ctz(left)].call.state >= GPC_CALL_DONE ? bit : 0;
    }
    __atomic_store_n(&c->left, c->left & ~over, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&s->wait_lock);
    __atomic_fetch_and(&c->taken, ~over, __ATOMIC_RELEASE);
}

/* -1: too many waits are under way. */
static int place_take(struct gpc_session *s, struct gpc_completions *c)
{
    reclaim(s, c);
    uint32_t taken = __atomic_load_n(&c->taken, __ATOMIC_RELAXED);
    for (;;) {
        if (taken == UINT32_MAX)
            return -1;
        int place = __builtin_ctz(~taken);
        if (__atomic_compare_exchange_n(&c->taken, &taken, taken | 1u << place, true,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            c->of[place].signalled = false;
            return place;
        }
    }
}

/* Its wait is over; it is free when the answer has come, too. */
static void place_leave(struct gpc_session *s, struct gpc_completions *c, int place)
{
    pthread_mutex_lock(&s->wait_lock);
    __atomic_store_n(&c->left, c->left | 1u << place, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&s->wait_lock);
}

/* Nothing will be written there any more, and no answer comes. */
static void place_give(struct gpc_completions *c, int place)
{
    __atomic_fetch_and(&c->taken, ~(1u << place), __ATOMIC_RELEASE);
}

static bool is_written(const void *what)
{
    const struct place *p = what;
    /* pairs with the GPU's write, which comes behind the work's */
    return __atomic_load_n(p->word, __ATOMIC_ACQUIRE) == p->number;
}

static const char *bytes_of(const struct gpc_completions *c, int place)
{
    return (const char *)c->share.addr + GP_COMPLETION_DATA +
           (size_t)place * GP_COMPLETION_DATA_MAX;
}

/* Behind an ask that was refused a signal's write may still come: the place stays taken. Where the
 * GPU cannot copy it writes nothing, unless a capture has begun behind the signal. */
static void place_end(struct gpc_session *s, struct gpc_completions *c, int place, CUresult r)
{
    bool refused = r != CUDA_SUCCESS && (r != CUDA_ERROR_NOT_SUPPORTED || gpc_capture_active());
    if (!refused || !c->of[place].signalled)
        place_leave(s, c, place);
}

/* --- waiting ------------------------------------------------------------------------------ */

static void soon_note(struct gpc_completions *c, CUcontext context, bool in_time)
{
    if (in_time)
        __atomic_store_n(&c->soon, context, __ATOMIC_RELAXED);
    else if (__atomic_load_n(&c->soon, __ATOMIC_RELAXED) == context)
        __atomic_store_n(&c->soon, NULL, __ATOMIC_RELAXED);
}

/* What failed before the work was told before; and of what the GPU has done nothing failed. */
static CUresult what_came(struct gpc_session *s)
{
    gpc_session_poll(s);
    return (CUresult)__atomic_load_n(&s->sticky, __ATOMIC_RELAXED);
}

static CUresult finish(struct gpc_session *s, struct gpc_completions *c, int place)
{
    struct gpc_call *call = &c->of[place].call;
    uint64_t begin = gp_now_ns();
    CUresult r;
    bool soon = gpc_spin(is_written, &c->of[place], call);
    soon_note(c, call->route.context, soon);
    if (soon || gpc_spin_await(is_written, &c->of[place], call))
        r = what_came(s);
    else
        r = call->result;
    if (!soon)
        gpc_spin_waited(gp_now_ns() - begin);
    gpc_call_waited(call, begin, is_written(&c->of[place]));
    return r;
}

/* Send the call of this place, whose request is set, and wait. */
static CUresult exchange(const struct gpc_route *on, struct gpc_completions *c, int place,
                         struct gp_header *request, uint32_t size)
{
    struct place *p = &c->of[place];
    p->call = (struct gpc_call){.route = *on, .request = request, .request_size = size};
    CUresult r = gpc_call_begin(&p->call);
    if (r == CUDA_SUCCESS)
        return finish(on->session, c, place);
    p->call.state = GPC_CALL_FAILED; /* nobody has it */
    return r;
}

static uint64_t next_number(struct gpc_completions *c)
{
    return __atomic_add_fetch(&c->last, 1, __ATOMIC_RELAXED);
}

/* --- signals: no answer comes, and nobody lists the call ------------------------------------ */

static bool may_signal(const struct gpc_route *on, const struct gpc_completions *c, uint16_t op)
{
    return on->context && __atomic_load_n(&c->soon, __ATOMIC_RELAXED) == on->context &&
           gpc_spin_likely() && gpc_session_has(on->session, op);
}

/* Send it, and look for its number a while. False: it is not there, and may never be. Then whoever
 * waits has to ask; so does everybody, until a number has come in time again. */
static bool signal_seen(struct gpc_completions *c, int place, struct gpc_call *call, CUresult *r)
{
    uint64_t begin = gp_now_ns();
    c->of[place].signalled = true;
    bool seen = gpc_call_post(call) == CUDA_SUCCESS && gpc_spin(is_written, &c->of[place], NULL);
    if (!seen) {
        soon_note(c, call->route.context, false);
        return false;
    }
    *r = what_came(call->route.session);
    gpc_call_waited(call, begin, true);
    gpc_thread()->may_end = true;
    return true;
}

static bool stream_signal(const struct gpc_route *on, struct gpc_completions *c, int place,
                          CUresult *r)
{
    struct gp_req_gp_stream_signal q = {.h.op = GP_OP_gp_stream_signal,
                                        .stream = on->stream,
                                        .place = (uint32_t)place,
                                        .number = c->of[place].number = next_number(c)};
    struct gpc_call call = {.route = *on, .request = &q.h, .request_size = sizeof q};
    return may_signal(on, c, q.h.op) && signal_seen(c, place, &call, r);
}

static bool context_signal(const struct gpc_route *on, struct gpc_completions *c, int place,
                           CUresult *r)
{
    struct gp_req_gp_context_signal q = {.h.op = GP_OP_gp_context_signal,
                                         .place = (uint32_t)place,
                                         .number = c->of[place].number = next_number(c)};
    struct gpc_call call = {.route = *on, .request = &q.h, .request_size = sizeof q};
    bool seen = signal_seen(c, place, &call, r);
    if (seen && *r == CUDA_SUCCESS)
        gpc_session_settle_context(&call);
    return seen;
}

/* The bytes are taken before the place is anybody else's. */
static bool download_signal(const struct gpc_route *on, struct gpc_completions *c, int place,
                            uint64_t src, void *to, size_t bytes, CUresult *r)
{
    struct gp_req_gp_dtoh_signal q = {.h.op = GP_OP_gp_dtoh_signal,
                                      .src = src,
                                      .stream = on->stream,
                                      .bytes = (uint32_t)bytes,
                                      .place = (uint32_t)place,
                                      .number = c->of[place].number = next_number(c)};
    struct gpc_call call = {.route = *on, .request = &q.h, .request_size = sizeof q};
    if (!may_signal(on, c, q.h.op) || !signal_seen(c, place, &call, r))
        return false;
    if (*r == CUDA_SUCCESS)
        memcpy(to, bytes_of(c, place), bytes);
    place_give(c, place);
    return true;
}

/* What a signal's stream is refused for was told by a notice, too: by the answer is enough. */
static void tell_once(struct gpc_session *s, const struct place *p, CUresult r)
{
    CUresult pending = p->signalled && r != CUDA_SUCCESS ? gpc_session_take_pending(s) : r;
    if (pending != r && pending != CUDA_SUCCESS)
        gpc_session_set_pending(s, pending);
}

/* --- what callers wait for ------------------------------------------------------------------- */

CUresult gpc_complete_stream(const struct gpc_route *on, CUstream stream)
{
    struct gpc_completions *c = page_for(on, GP_OP_gp_stream_complete);
    int place = c ? place_take(on->session, c) : -1;
    CUresult r;
    if (place < 0)
        return gpc_wire_cuStreamSynchronize_on(on, stream);
    if (stream_signal(on, c, place, &r)) {
        place_give(c, place);
        return r;
    }
    struct place *p = &c->of[place];
    p->number = next_number(c);
    p->request.stream = (struct gp_req_gp_stream_complete){.h.op = GP_OP_gp_stream_complete,
                                                           .stream = on->stream,
                                                           .place = (uint32_t)place,
                                                           .number = p->number};
    r = exchange(on, c, place, &p->request.stream.h, sizeof p->request.stream);
    tell_once(on->session, p, r);
    place_end(on->session, c, place, r);
    return r;
}

/* With an answer. */
static CUresult context_asked(const struct gpc_route *on, struct gpc_completions *c)
{
    int place = place_take(on->session, c);
    if (place < 0)
        return gpc_wire_cuCtxSynchronize();
    struct place *p = &c->of[place];
    p->number = next_number(c);
    p->request.context = (struct gp_req_gp_context_complete){
        .h.op = GP_OP_gp_context_complete, .place = (uint32_t)place, .number = p->number};
    CUresult r = exchange(on, c, place, &p->request.context.h, sizeof p->request.context);
    if (r == CUDA_SUCCESS)
        gpc_session_settle_context(&p->call);
    place_leave(on->session, c, place);
    return r;
}

/* The stream that was told to write may be another one than that which tells in the end, and capture
 * meanwhile, so who asks has a place of his own. The first one is free where nothing can be written
 * there any more. */
static CUresult context_signalled(const struct gpc_route *on, struct gpc_completions *c)
{
    int place = place_take(on->session, c);
    CUresult r;
    bool seen = place >= 0 && context_signal(on, c, place, &r);
    if (!seen)
        r = context_asked(on, c);
    bool over = seen || (r == CUDA_SUCCESS && !gpc_capture_active());
    if (place >= 0 && (over || is_written(&c->of[place])))
        place_give(c, place);
    return r;
}

/* Of another context than the current one is asked, and that is seldom. */
CUresult gpc_complete_context(CUcontext context)
{
    struct gpc_route on = gpc_route_here();
    bool here = (!context || context == on.context) && gpc_route_session(&on);
    struct gpc_completions *c = here ? page_for(&on, GP_OP_gp_context_complete) : NULL;
    if (!c)
        return context ? gpc_wire_cuCtxSynchronize_v2(context) : gpc_wire_cuCtxSynchronize();
    return may_signal(&on, c, GP_OP_gp_context_signal) ? context_signalled(&on, c)
                                                       : context_asked(&on, c);
}

/* With an answer. False: the GPU cannot copy. */
static bool download_asked(const struct gpc_route *on, struct gpc_completions *c, int place,
                           uint64_t src, void *to, size_t bytes, CUresult *r)
{
    struct place *p = &c->of[place];
    p->number = next_number(c);
    p->request.dtoh = (struct gp_req_gp_dtoh_complete){.h.op = GP_OP_gp_dtoh_complete,
                                                       .src = src,
                                                       .stream = on->stream,
                                                       .bytes = (uint32_t)bytes,
                                                       .place = (uint32_t)place,
                                                       .number = p->number};
    *r = exchange(on, c, place, &p->request.dtoh.h, sizeof p->request.dtoh);
    if (*r == CUDA_SUCCESS)
        memcpy(to, bytes_of(c, place), bytes);
    tell_once(on->session, p, *r);
    place_end(on->session, c, place, *r);
    return *r != CUDA_ERROR_NOT_SUPPORTED;
}

bool gpc_complete_download(const struct gpc_route *on, void *to, uint64_t src, size_t bytes,
                           CUresult *r)
{
    bool fits = bytes <= GP_COMPLETION_DATA_MAX;
    struct gpc_completions *c = fits ? page_for(on, GP_OP_gp_dtoh_complete) : NULL;
    int place = c ? place_take(on->session, c) : -1;
    if (place < 0)
        return false;
    void *view = gpc_managed_view(to, bytes, true);
    bool over = download_signal(on, c, place, src, view, bytes, r) ||
                download_asked(on, c, place, src, view, bytes, r);
    if (over && *r == CUDA_SUCCESS && view != to)
        gpc_managed_filled(to, bytes);
    return over;
}
