#include "spin.h"

#include <stddef.h>

#include "call.h"
#include "context.h"
#include "session.h"
#include "transport/support.h"

/* How often to look at the clock, and for an answer. */
#define CLOCK_TURNS 32
#define ANSWER_TURNS 64
/* Whose looks are so far apart was not running: somebody else needs the processor, for some time. */
#define CROWDED_NS 200000
#define CROWDED_FOR_NS 100000000
/* What a thread that is to wake at some time may come late. */
#define LATE_NS 60000
/* For longer not even a program that asks for it keeps a processor busy. */
#define ALWAYS_MOST_NS 100000000

/* How threads of a context are to wait: asleep, where there is none. */
static unsigned scheduling(CUcontext context)
{
    const struct gpc_context *c = context ? gpc_context_of(context) : NULL;
    return c ? c->flags & CU_CTX_SCHED_MASK : CU_CTX_SCHED_BLOCKING_SYNC;
}

bool gpc_spin_may(CUcontext context)
{
    return scheduling(context) != CU_CTX_SCHED_BLOCKING_SYNC;
}

bool gpc_spin_likely(void)
{
    const struct gpc_thread *t = gpc_thread();
    return t->has_spun && t->spin_ns > 0;
}

/* Where kernels may print, and in contexts whose work does not write, nothing but the answer comes. */
bool gpc_spin(bool (*is_over)(const void *what), const void *what, const struct gpc_call *call)
{
    struct gpc_thread *t = gpc_thread();
    struct gp_spin spin = {.budget_ns = t->spin_ns};
    int64_t begin = gp_clock_ns(), now = begin;
    if (!t->has_spun)
        gp_spin_init(&spin);
    bool over = is_over(what);
    for (unsigned turn = 1; !over; turn++, over = is_over(what)) {
        gp_cpu_relax();
        if (turn % CLOCK_TURNS == 0 && (now = gp_clock_ns()) - begin >= spin.budget_ns)
            break;
        if (turn % ANSWER_TURNS == 0 && call && gpc_call_poll(call))
            break;
    }
    if (over)
        gp_spin_learn(&spin, now - begin);
    t->spin_ns = spin.budget_ns;
    t->has_spun = true;
    return over;
}

void gpc_spin_waited(uint64_t waited_ns)
{
    struct gpc_thread *t = gpc_thread();
    struct gp_spin spin = {.budget_ns = t->spin_ns};
    gp_spin_learn(&spin, (int64_t)waited_ns);
    t->spin_ns = spin.budget_ns;
}

/* --- longer waits ----------------------------------------------------------------------------- */

struct look {
    bool (*is_over)(const void *what);
    const void *what;
    const struct gpc_call *call;
    int64_t begin;
    bool always; /* the program's context is to spin */
};

enum seen { SEEN_NOTHING, SEEN_OVER, SEEN_ANSWER };

static enum seen look_once(const struct look *l, unsigned turn)
{
    if (l->is_over && l->is_over(l->what))
        return SEEN_OVER;
    return turn % ANSWER_TURNS == 0 && gpc_call_poll(l->call) ? SEEN_ANSWER : SEEN_NOTHING;
}

static enum seen look_until(struct gpc_thread *t, const struct look *l, int64_t until)
{
    enum seen seen = SEEN_NOTHING;
    int64_t before = gp_clock_ns(), now = before;
    for (unsigned turn = 0; seen == SEEN_NOTHING && now < until; turn++) {
        seen = look_once(l, turn);
        gp_cpu_relax();
        if (turn % CLOCK_TURNS != 0)
            continue;
        now = gp_clock_ns();
        if (now - before > CROWDED_NS && !l->always) {
            t->crowded_until = now + CROWDED_FOR_NS;
            break;
        }
        before = now;
    }
    return seen;
}

/* Around the next of the times that it may take, or to the end: there is none, or no processor. */
static enum seen look_next(struct gpc_thread *t, const struct look *l)
{
    int64_t now = gp_clock_ns();
    uint64_t usual = gp_usual_next_ns(&t->waits, (uint64_t)(now - l->begin));
    int64_t from = l->begin + (int64_t)gp_usual_soonest_ns(usual) - LATE_NS;
    int64_t until = l->begin + (int64_t)gp_usual_latest_ns(usual);
    if (!usual || now < t->crowded_until)
        from = INT64_MAX;
    return gpc_call_await_until(l->call, from) ? SEEN_ANSWER : look_until(t, l, until);
}

bool gpc_spin_await(bool (*is_over)(const void *what), const void *what,
                    const struct gpc_call *call)
{
    struct gpc_thread *t = gpc_thread();
    struct look l = {is_over, what, call, gp_clock_ns(),
                     scheduling(call->route.context) == CU_CTX_SCHED_SPIN};
    enum seen seen = SEEN_NOTHING;
    if (l.always)
        seen = look_until(t, &l, l.begin + ALWAYS_MOST_NS);
    else if (is_over && gp_spin_spares() && gpc_spin_may(call->route.context))
        while (seen == SEEN_NOTHING)
            seen = look_next(t, &l);
    if (seen == SEEN_NOTHING)
        gpc_call_await(call);
    int64_t took = gp_clock_ns() - l.begin;
    if (is_over && took > gp_spin_limit_ns())
        gp_usual_learn(&t->waits, (uint64_t)took);
    return seen == SEEN_OVER;
}
