/*
 * Tenants whose clients wait. Such a one submits a step, waits until it is over, and soon has
 * the next: what its user feels is how long a step takes, and that is the turns of others in
 * between. Where one of those at work is like that, a round is so long that its part of it has
 * room for one step, and everybody has his part of the round; else turns are long (turn.c).
 * That moves when turns end and nothing else: charged time decides whose the next one is, so a
 * tenant that makes its steps look short gains no time.
 */
#include "board_internal.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
/* Steps that are longer have enough turns of the usual length. */
#define STEP_MOST (60 * MS)
/* A change of tenants costs about 0.3 ms: two turns, one behind the other, take at least two of
 * these, whatever steps look like, so changes cost 4 %. */
#define EACH_LEAST (8 * MS)
/* Shorter ones the watchdog could not tell from those beside them (watch_turns.py). */
#define QUANTUM_LEAST (4 * MS)
/* It had to stop, and its work ran out: without more for so long that was the end of a step, too. */
#define PAUSE (50 * US)
/* Who has just ended a turn asks for the next one a moment later. */
#define MOMENT (1 * MS)

void gp_step_charged(struct tenant_slot *t, uint64_t ns)
{
    t->step_so_far += ns;
    if (t->step_so_far > STEP_MOST)
        t->step = 0;
}

static void step_ended(struct tenant_slot *t)
{
    uint64_t ns = t->step_so_far;
    t->step_so_far = 0;
    if (ns > STEP_MOST || ns == 0)
        return;
    if (t->step == 0)
        t->step = ns;
    else if (ns < t->step) /* two that were taken for one count little */
        t->step = (t->step + ns) / 2;
    else
        t->step += (ns - t->step) / 16;
}

void gp_step_idle(const struct gp_board *f, struct tenant_slot *t)
{
    if (f->holder == gp_board_index(f, t) && !f->yielding)
        step_ended(t);
}

void gp_step_wakes(struct tenant_slot *t, uint64_t now)
{
    if (now > t->idle_since + PAUSE)
        step_ended(t);
}

/* It has no work, and will soon have some. */
static bool is_between(const struct tenant_slot *t, uint64_t now)
{
    return t->usage.members && t->step && now < t->idle_since + t->step;
}

static bool counts(const struct tenant_slot *t, uint64_t now)
{
    bool soon = is_between(t, now) || (t->usage.members && now < t->idle_since + MOMENT);
    return t->weight && (t->busy || t->wanting || soon);
}

bool gp_step_expected(const struct gp_board *f, const struct tenant_slot *holder, uint64_t now)
{
    for (int i = 0; i < GP_BOARD_TENANTS && !f->window_end; i++) {
        const struct tenant_slot *t = &f->tenants[i];
        if (t != holder && !t->busy && t->weight && is_between(t, now))
            return true;
    }
    return false;
}

/* Of its own turn, so that a step, or a whole part of one that is longer than turns, ends within it. */
static uint64_t turn_for(uint64_t step)
{
    uint64_t ns = step + step / 8;
    return ns / (ns / GP_QUANTUM_MOST + 1);
}

/* 0: nobody waits like that. */
static uint64_t round_of(const struct gp_board *f, uint64_t now, uint64_t *sum)
{
    uint64_t least = 0, round = UINT64_MAX;
    *sum = 0;
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (counts(&f->tenants[i], now)) {
            *sum += f->tenants[i].weight;
            least += EACH_LEAST;
        }
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct tenant_slot *t = &f->tenants[i];
        uint64_t its = counts(t, now) && t->step ? turn_for(t->step) * *sum / t->weight : 0;
        if (its && its < round)
            round = its;
    }
    return round == UINT64_MAX ? 0 : round < least ? least : round;
}

/* How long its turn may be until it is ahead of one that waits for steps; most at most, and not much
 * less: what a turn of one step lacks comes with the next ones sooner, a little each, for with what
 * is owed for long a turn would have room for the beginning of another step. */
static uint64_t owed_back(const struct gp_board *f, const struct tenant_slot *t, uint64_t most,
                          uint64_t now)
{
    uint64_t due = gp_gang_due(f, t), least = most - most / 4;
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct tenant_slot *o = &f->tenants[i];
        if (o == t || !o->step || !counts(o, now))
            continue;
        uint64_t its = gp_gang_due(f, o), ns = its > due ? (its - due) / 1000 : 0;
        ns *= gp_board_weight(t);
        most = ns < most ? ns : most;
    }
    return most < least ? least : most;
}

uint64_t gp_step_turn_end(const struct gp_board *f, const struct tenant_slot *t, uint64_t now)
{
    uint64_t sum, round = f->window_end ? 0 : round_of(f, now, &sum);
    if (!round)
        return 0;
    uint64_t ns = round * t->weight / sum, least = f->turn_before + 2 * EACH_LEAST;
    ns = ns < GP_QUANTUM_MOST ? ns : GP_QUANTUM_MOST;
    if (f->turn_began + ns < least)
        ns = least - f->turn_began;
    if (!t->step) { /* nobody waits for what it ends with, and that is of its part, too */
        ns = owed_back(f, t, ns, now);
        ns -= t->drain < ns / 4 ? t->drain : ns / 4;
    }
    return f->turn_began + (ns < QUANTUM_LEAST ? QUANTUM_LEAST : ns);
}

bool gp_step_over(const struct gp_board *f, const struct tenant_slot *t,
                  const struct tenant_slot *other, uint64_t now)
{
    /* one that is a little behind would begin the next step and end it in a turn of its own */
    uint64_t little = t->step / 2 * 1000 / gp_board_weight(t);
    /* the turn in front of it may have been somewhat shorter (owed_back) */
    return t->step && !f->window_end && now + t->step / 2 > f->quantum_end &&
           now + EACH_LEAST / 2 >= f->turn_before + 2 * EACH_LEAST &&
           gp_gang_due(f, other) < gp_gang_due(f, t) + little;
}
