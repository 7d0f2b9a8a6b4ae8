#include "spin.h"

#include "call.h"
#include "context.h"
#include "session.h"
#include "transport/support.h"

/* How often to look at the clock, and for an answer. */
#define CLOCK_TURNS 32
#define ANSWER_TURNS 64

bool gpc_spin_may(CUcontext context)
{
    const struct gpc_context *c = context ? gpc_context_of(context) : NULL;
    return c && (c->flags & CU_CTX_SCHED_MASK) != CU_CTX_SCHED_BLOCKING_SYNC;
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
