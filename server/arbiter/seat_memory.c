/*
 * A worker's memory: what it holds stands in its page as a whole, so nothing has to be told
 * twice, and an arbiter that was away knows it by looking. Within what it was granted it takes
 * without asking.
 */
#include "seat_internal.h"

/* Another of the tenant may get in first each time; then there was room for it. */
#define TRIES 1000

static uint64_t held(const struct gp_page *p)
{
    return __atomic_load_n(&p->held, __ATOMIC_RELAXED);
}

/* What was held in between is seen, too: either here by the arbiter or in `most`. */
static void hold(struct gp_page *p, uint64_t total)
{
    GP_PAGE_STORE(p->held, total);
    GP_PAGE_STORE(p->claims, total);
    uint64_t most = __atomic_load_n(&p->most, __ATOMIC_RELAXED);
    while (most < total && !__atomic_compare_exchange_n(&p->most, &most, total, true,
                                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}

/* Hold that much if it was granted. The arbiter, when it takes back, lowers the grant first and
 * looks at the claim then: either it sees this claim, or this sees the lower grant. */
static bool claim(struct gp_page *p, uint64_t total)
{
    if (total > GP_PAGE_LOAD(p->granted))
        return false;
    GP_PAGE_STORE(p->claims, total);
    GP_PAGE_FENCE();
    bool ours = total <= GP_PAGE_LOAD(p->granted);
    hold(p, ours ? total : held(p));
    return ours;
}

/* As the page says; others of the tenant may have changed it since the arbiter looked. */
static uint64_t used_of(const struct gp_page *p)
{
    uint64_t others = GP_PAGE_LOAD(p->memory_others), own = held(p);
    return own <= UINT64_MAX - others ? own + others : UINT64_MAX;
}

static uint64_t left_of(const struct gp_page *p)
{
    uint64_t limit = GP_PAGE_LOAD(p->memory_limit), used = used_of(p);
    return used < limit ? limit - used : 0;
}

static uint64_t over_of(const struct gp_page *p)
{
    uint64_t limit = GP_PAGE_LOAD(p->memory_limit), used = used_of(p);
    return used > limit ? used - limit : 0;
}

/* The arbiter looks at all pages; one that is not there does when it comes. */
static void look(struct gp_seat *s)
{
    uint32_t unused;
    if (gp_seat_ask(s, GP_PAGE_LOOK, 0, 0, &unused) == GP_SEAT_UNSENT)
        gp_seat_ring(s);
}

static bool is_shared(const struct gp_page *p)
{
    return GP_PAGE_LOAD(p->members) > 1;
}

uint64_t gp_seat_memory_limit(struct gp_seat *s)
{
    return GP_PAGE_LOAD(s->page->memory_limit);
}

uint64_t gp_seat_memory_left(struct gp_seat *s)
{
    if (is_shared(s->page))
        look(s);
    return left_of(s->page);
}

bool gp_seat_memory_fits(struct gp_seat *s, uint64_t bytes)
{
    uint64_t granted = GP_PAGE_LOAD(s->page->granted), own = held(s->page);
    return (own <= granted && bytes <= granted - own) || bytes <= gp_seat_memory_left(s);
}

uint64_t gp_seat_memory_over(struct gp_seat *s)
{
    uint64_t over = over_of(s->page);
    if (!over || !is_shared(s->page))
        return over;
    look(s);
    return over_of(s->page);
}

/* While there is no arbiter, by what it said last. */
static bool take_alone(struct gp_seat *s, uint64_t total)
{
    struct gp_page *p = s->page;
    if (total > GP_PAGE_MEMORY_MOST || total - held(p) > left_of(p))
        return false;
    hold(p, total);
    gp_seat_ring(s);
    return true;
}

static bool take(struct gp_seat *s, uint64_t total)
{
    uint32_t granted;
    for (int i = 0; i < TRIES; i++) {
        if (claim(s->page, total))
            return true;
        if (gp_seat_ask(s, GP_PAGE_TAKE, total, 0, &granted) != GP_SEAT_ANSWERED)
            return take_alone(s, total);
        if (!granted)
            return false;
    }
    return false;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return b <= UINT64_MAX - a ? a + b : UINT64_MAX;
}

bool gp_seat_memory_take(struct gp_seat *s, uint64_t bytes)
{
    pthread_mutex_lock(&s->memory_lock);
    bool ok = take(s, plus(held(s->page), bytes));
    pthread_mutex_unlock(&s->memory_lock);
    return ok;
}

void gp_seat_memory_charge(struct gp_seat *s, uint64_t bytes)
{
    pthread_mutex_lock(&s->memory_lock);
    uint64_t total = plus(held(s->page), bytes);
    if (!claim(s->page, total)) {
        hold(s->page, total);
        look(s);
    }
    pthread_mutex_unlock(&s->memory_lock);
}

/* What it was charged beyond the limit it was granted as well: it must not take that again. */
static bool is_granted_too_much(const struct gp_page *p)
{
    uint64_t limit = GP_PAGE_LOAD(p->memory_limit), others = GP_PAGE_LOAD(p->memory_others);
    return others > limit || GP_PAGE_LOAD(p->granted) > limit - others;
}

void gp_seat_memory_give(struct gp_seat *s, uint64_t bytes)
{
    pthread_mutex_lock(&s->memory_lock);
    uint64_t have = held(s->page);
    hold(s->page, bytes < have ? have - bytes : 0);
    if (is_granted_too_much(s->page))
        look(s);
    pthread_mutex_unlock(&s->memory_lock);
}
