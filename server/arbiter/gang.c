/*
 * Gangs: tenants that are on several GPUs of this machine, as a training job is. A step of
 * theirs needs all of its GPUs at once, so their turns have to come at the same time on all
 * boards, which know nothing of each other. What they have in common is the clock: it is cut
 * into periods, and each gang has the same part of each period on every board, its window,
 * which is as long as its weight entitles it to. Gangs have their windows one behind the other,
 * by name; what is left is the others'.
 *
 * A window is a preference, not a right: charged time still decides, with a lead for who is
 * inside its window and a handicap for gangs that are outside. Both are bounded, so shares
 * over time are what they are without gangs, and what a gang does not use others have. What
 * one side has lost, because work in front of a window ran out late, it gets back at the next
 * window's beginning, which is earlier or later for it: so neither comes near those bounds,
 * where boards would part.
 */
#include <string.h>

#include "board_internal.h"

#define MS UINT64_C(1000000)
/* The shortest period, and the shortest window: a gang loses what begins on one board at its end
 * and not on the other, and waits for it. Periods are the shortest times a power of two, so that
 * windows on boards with other tenants begin together still. */
#define PERIOD (60 * MS)
#define WINDOW (20 * MS)
#define PERIOD_MOST (960 * MS)
/* The lead, in windows: what a turn that ends late may take, and more. */
#define LEAD 2
/* By how much of a window it may begin earlier or later. */
#define SHIFT 4
/* How long a turn of others lasts where a gang's window may begin at any moment, or where the
 * gang has just nothing to do: it may have more at once, and its other GPUs wait for it. */
#define BORROWED (1 * MS)
/* How long it may have nothing to do in its window: what it loses on one GPU it loses on all, and
 * it is charged for the pause. */
#define PAUSE (2 * MS)

/* How long its turn goes on behind its window for a rank that has still to begin what another one
 * has; as in ../worker/sharing/gate.c. */
#define CATCH_UP (4 * MS)

struct period {
    uint64_t length, into, number;
    uint64_t sum;     /* the weights of all who are at work */
    uint64_t others;  /* of those who are no gangs */
    uint64_t charged; /* of these: time as charged, in the mean */
};

bool gp_board_at_work(const struct tenant_slot *t, uint64_t now)
{
    return t->name[0] && t->usage.members && t->weight &&
           (t->busy || t->wanting || now < t->idle_since + PERIOD);
}

/* Long enough for the window of a weight. */
static uint64_t period_for(uint64_t weight, uint64_t sum)
{
    uint64_t period = PERIOD;
    while (period < PERIOD_MOST && period * weight / sum < WINDOW)
        period *= 2;
    return period;
}

static int by_name(struct tenant_slot **gangs, int n, struct tenant_slot *t)
{
    int at = n;
    for (; at > 0 && strcmp(gangs[at - 1]->name, t->name) > 0; at--)
        gangs[at] = gangs[at - 1];
    gangs[at] = t;
    return n + 1;
}

/* The gangs at work by name; how many. */
static int gangs_find(struct gp_board *f, uint64_t now, struct tenant_slot **gangs,
                      struct period *p)
{
    int n = 0;
    *p = (struct period){0};
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        struct tenant_slot *t = &f->tenants[i];
        t->window = GANG_NONE;
        if (!gp_board_at_work(t, now))
            continue;
        p->sum += t->weight;
        if (t->grant.gang || t->ranks) {
            n = by_name(gangs, n, t);
            continue;
        }
        p->others += t->weight;
        /* a mean that does not overflow: they are close to each other, or soon will be */
        p->charged += (uint64_t)((int64_t)(t->vtime - p->charged) * (int64_t)t->weight /
                                 (int64_t)p->others);
    }
    return n;
}

/* Whether a gang is so far behind the others that it needs all of the next `ns` to be even. */
static bool is_behind(const struct tenant_slot *t, const struct period *p, uint64_t ns)
{
    return (int64_t)(t->vtime + ns * 1000 / t->weight - p->charged) <= 0;
}

/* Whether a window from `begin` to `end` is open to its gang; `*next`: when to look again. */
static bool is_open(struct tenant_slot *t, const struct period *p, uint64_t begin, uint64_t end,
                    uint64_t *next)
{
    uint64_t shift = (end - begin) / SHIFT, into = p->into;
    if (into >= begin && into < end) {
        *next = end;
        bool late = p->others && into < begin + shift && t->window_opened != p->number + 1 &&
                    !is_behind(t, p, 0);
        if (late)
            *next = into + BORROWED;
        else
            t->window_opened = p->number + 1;
        return !late;
    }
    uint64_t away = into < begin ? begin - into : p->length + begin - into;
    *next = into + away - shift;
    if (away > shift)
        return false;
    *next = into + (away < BORROWED ? away : BORROWED);
    if (!p->others || !is_behind(t, p, away))
        return false;
    t->window_opened = p->number + (into < begin ? 1 : 2);
    *next = into + away;
    return true;
}

void gp_gangs_look(struct gp_board *f, uint64_t now)
{
    struct tenant_slot *gangs[GP_BOARD_TENANTS];
    struct period p;
    int n = gangs_find(f, now, gangs, &p);
    f->window_end = f->window_lead = 0;
    if (n == 0)
        return;
    for (int i = 0; i < n; i++) {
        uint64_t needs = period_for(gangs[i]->weight, p.sum);
        p.length = needs > p.length ? needs : p.length;
    }
    p.into = now % p.length;
    p.number = now / p.length;
    uint64_t before = 0, next = UINT64_MAX;
    for (int i = 0; i < n; i++) {
        uint64_t after = before + gangs[i]->weight, at;
        bool open = is_open(gangs[i], &p, p.length * before / p.sum, p.length * after / p.sum, &at);
        gangs[i]->window = open ? GANG_INSIDE : GANG_OUTSIDE;
        next = at < next ? at : next;
        before = after;
    }
    f->window_end = now - p.into + next;
    f->window_lead = LEAD * p.length * 1000 / p.sum;
}

uint64_t gp_gang_due(const struct gp_board *f, const struct tenant_slot *t)
{
    switch ((enum gang_window)t->window) {
    case GANG_INSIDE:
        return t->vtime;
    case GANG_OUTSIDE:
        return t->vtime + 2 * f->window_lead;
    case GANG_NONE:
        break;
    }
    return t->vtime + f->window_lead;
}

uint64_t gp_gang_turn_end(const struct gp_board *f, const struct tenant_slot *t, uint64_t now,
                          uint64_t end)
{
    if (!f->window_end)
        return end;
    for (int i = 0; i < GP_BOARD_TENANTS && t->window != GANG_INSIDE; i++)
        if (f->tenants[i].window == GANG_INSIDE && now + BORROWED < end)
            end = now + BORROWED;
    return f->window_end > now && f->window_end < end ? f->window_end : end;
}

bool gp_gang_over(const struct gp_board *f, const struct tenant_slot *t,
                  const struct tenant_slot *other, uint64_t now)
{
    uint64_t end = f->quantum_end + (t->behind ? CATCH_UP : 0);
    return t->window == GANG_OUTSIDE && now >= end && gp_gang_due(f, other) < gp_gang_due(f, t);
}

uint64_t gp_gang_grace(const struct tenant_slot *t, uint64_t grace)
{
    if (t->window == GANG_INSIDE)
        return PAUSE;
    return t->window == GANG_OUTSIDE && t->behind ? CATCH_UP : grace;
}
