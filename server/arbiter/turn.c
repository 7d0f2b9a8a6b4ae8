/*
 * Whose turn it is. One tenant at a time submits to the GPU; its turn goes on until
 * its quantum is over and another one that wants it is behind it in charged time, or
 * until it has had no work for a moment. Then it stops submitting, what it has
 * submitted runs out, and the time that took is charged: a kernel that is longer than
 * the quantum is paid back by the turns that follow. Ceilings are token buckets. A
 * tenant that is alone and has no ceiling keeps its turn and pays nothing. Where somebody
 * waits for each of its steps, turns are shorter (step.c).
 *
 * High-priority tenants do not take turns where the hardware preempts: they run
 * beside the holder, whose slices are short then, as long as prio_ratio allows.
 */
#include "board_internal.h"

#define MS UINT64_C(1000000)
/* A turn is as long as the tenant's part of a round, within bounds: a change of tenants
 * costs about 0.3 ms. */
#define ROUND (100 * MS)
#define QUANTUM_LEAST (8 * MS)
/* How long the holder may have nothing to do while others wait: longer than a
 * program needs from the end of one step to the next. */
#define GRACE (1 * MS)
/* How far behind a tenant may be that comes with work after it had none: what it did
 * not use longer ago than this, and two of the longest turns of late, is lost. */
#define CREDIT (60 * MS)
/* A turn that goes on until another one is behind is looked at no more often. */
#define AGAIN (200 * UINT64_C(1000))
/* Who has been alone for so long has work on the GPU that nobody waited for when it was
 * submitted: that is no debt. */
#define ALONE (50 * MS)
/* A turn that is not given back is taken. */
#define OVERDUE (2000 * MS)
/* And one that nobody begins: whoever asked for it is stopped, or means harm. */
#define UNUSED (100 * MS)
/* What asked while other work of its was under way may have been let in behind that; if not, it is
 * awake, and asks again. */
#define UNUSED_EARLY (10 * MS)

/* --- the turn ----------------------------------------------------------------------- */

/* Whoever waits and is furthest behind, but not `except`; high priority goes first. */
static struct tenant_slot *next_of(struct gp_board *f, const struct tenant_slot *except,
                                   uint64_t now)
{
    struct tenant_slot *best = NULL;
    bool best_high = false, high = gp_board_high_allowed(f, now);
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        struct tenant_slot *t = &f->tenants[i];
        if (!t->name[0] || t == except || !t->wanting || !gp_board_eligible(f, t, now))
            continue;
        bool is_high = t->grant.high_priority && high;
        if (!best || is_high > best_high ||
            (is_high == best_high && gp_gang_due(f, t) < gp_gang_due(f, best))) {
            best = t;
            best_high = is_high;
        }
    }
    return best;
}

/* Where nobody waits for steps. */
static uint64_t usual_end(const struct gp_board *f, const struct tenant_slot *t, uint64_t now)
{
    uint64_t sum = 0;
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (f->tenants[i].busy || f->tenants[i].wanting)
            sum += f->tenants[i].weight;
    uint64_t ns = sum ? ROUND * t->weight / sum : GP_QUANTUM_MOST;
    ns = ns < QUANTUM_LEAST ? QUANTUM_LEAST : ns > GP_QUANTUM_MOST ? GP_QUANTUM_MOST : ns;
    return gp_gang_turn_end(f, t, now, now + ns);
}

static uint64_t quantum_end(const struct gp_board *f, const struct tenant_slot *t, uint64_t now)
{
    uint64_t steps_end = gp_step_turn_end(f, t, now);
    return steps_end ? steps_end : usual_end(f, t, now);
}

/* It goes on, since `other` is not behind yet, or there is none: where somebody waits for each
 * step, no longer than that is so. */
static uint64_t quantum_next(const struct gp_board *f, const struct tenant_slot *t,
                             const struct tenant_slot *other, uint64_t now)
{
    uint64_t steps_end = gp_step_turn_end(f, t, now);
    if (!other || !steps_end) {
        uint64_t end = steps_end ? steps_end : usual_end(f, t, now);
        return end > now ? end : now + QUANTUM_LEAST;
    }
    uint64_t ahead = gp_gang_due(f, other) - gp_gang_due(f, t);
    uint64_t ns = ahead / 1000 * gp_board_weight(t) + AGAIN;
    return now + (ns < GP_QUANTUM_MOST ? ns : GP_QUANTUM_MOST);
}

/* When the holder must look at the board again without being told. */
static void check_set(struct gp_board *f, const struct tenant_slot *t, uint64_t now)
{
    uint64_t at = f->quantum_end > now ? f->quantum_end : now + GP_QUANTUM_MOST;
    uint64_t ceiling = gp_board_ceiling(t);
    if (ceiling < 1000) {
        uint64_t left = t->tokens > 0 ? (uint64_t)t->tokens * 1000 / (1000 - ceiling) : 0;
        if (now + left < at)
            at = now + left;
    }
    f->check_at = at;
}

/* Time as charged: how far the one that is furthest behind has come. It never goes back. */
static void vclock_set(struct gp_board *f)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct tenant_slot *t = &f->tenants[i];
        if ((t->busy || t->wanting) && t->vtime < least)
            least = t->vtime;
    }
    if (least != UINT64_MAX && least > f->vclock)
        f->vclock = least;
}

/* It had no work and has some now. */
static void tenant_wakes(struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    uint64_t credit = (CREDIT + 2 * f->longest) * 1000 / gp_board_weight(t);
    vclock_set(f);
    if (t->vtime + credit < f->vclock)
        t->vtime = f->vclock - credit;
    gp_step_wakes(t, now);
}

/* One that waits for each of its steps has come into the turn of another: that may have been given
 * a long one, as it was alone. */
static void turn_shorten(struct gp_board *f, const struct tenant_slot *t, uint64_t now)
{
    struct tenant_slot *holder = gp_board_holder(f);
    uint64_t end = holder && holder != t && t->step ? gp_step_turn_end(f, holder, now) : 0;
    if (!end || end >= f->quantum_end || f->yielding)
        return;
    f->quantum_end = end;
    check_set(f, holder, now);
}

static void turn_give(struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    if (t->busy) /* behind a turn that it has lost */
        gp_board_charge_to(f, t, now);
    if (t->charged_to < now)
        t->charged_to = now;
    t->paid_outside = 0;
    t->idle_since = now;
    f->turn_fresh = 1;
    t->usage.turns++;
    f->turn_before = f->turn_began;
    f->turn_began = now;
    f->quantum_end = quantum_end(f, t, now);
    f->yielding = 0;
    check_set(f, t, now);
    f->holder = gp_board_index(f, t);
}

/* Since when members of others have waited for the turn; `now`: nobody does. */
static uint64_t others_wait_since(struct gp_board *f, const struct tenant_slot *t, uint64_t now)
{
    uint64_t since = now;
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        const struct member_slot *m = &f->members[i];
        if (m->pid && m->wants_since && gp_board_tenant_of(f, m) != t && m->wants_since < since)
            since = m->wants_since;
    }
    return since;
}

static void turn_take(struct gp_board *f, uint64_t now)
{
    struct tenant_slot *t = gp_board_holder(f);
    uint64_t length = now > f->turn_began ? now - f->turn_began : 0;
    uint64_t waited = now - others_wait_since(f, t, now); /* before that it cost nobody anything */
    f->turns[f->turns_over++ % GP_BOARD_TURNS] = (struct turn_slot){f->holder, now - length, now};
    t->usage.held_ns += length;
    uint64_t ending = f->yielding && now > f->yield_at ? now - f->yield_at : 0;
    t->usage.ending_ns += ending;
    t->drain = (3 * t->drain + ending) / 4;
    waited = waited < length ? waited : length;
    f->longest -= f->longest / 16;
    if (f->longest < waited)
        f->longest = waited;
    f->holder = -1;
    f->yielding = 0;
}

static void turn_end(struct gp_board *f, uint64_t now)
{
    f->yield_at = now;
    f->yielding = 1;
}

/* The holder does not give its turn back: its work is long, or it is stopped, or means it. */
static void turn_force(struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        struct member_slot *m = &f->members[i];
        if (m->pid && m->busy && gp_board_tenant_of(f, m) == t)
            m->overdue += m->late = 1;
    }
    gp_board_charge_to(f, t, now);
    turn_take(f, now);
}

/* The holder has work on the GPU. */
static void turn_of_busy(struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    struct tenant_slot *other = next_of(f, t, now);
    if (f->yielding) {
        if (now - f->yield_at > OVERDUE)
            turn_force(f, t, now);
        return;
    }
    bool over = now >= f->quantum_end;
    if (over || t->ceiling < 1000)
        gp_board_charge_to(f, t, now);
    bool preempted = other && other->grant.high_priority && !t->grant.high_priority &&
                     gp_board_high_allowed(f, now);
    if (!gp_board_eligible(f, t, now) || preempted ||
        (over && other && (t->amnesty || gp_gang_due(f, other) < gp_gang_due(f, t)))) {
        turn_end(f, now);
        return;
    }
    if (over)
        f->quantum_end = quantum_next(f, t, other, now);
    check_set(f, t, now);
}

/* The holder has had no work: that costs it the time for which others have waited meanwhile. */
static void charge_idle(struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    uint64_t since = others_wait_since(f, t, now);
    if (t->charged_to < since)
        t->charged_to = since;
    gp_board_charge_to(f, t, now);
}

/* Members that have asked for the turn and do not use it do not wait any more. */
static void forget_wants(struct gp_board *f, struct tenant_slot *t)
{
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        struct member_slot *m = &f->members[i];
        if (!m->pid || !m->wants_since || gp_board_tenant_of(f, m) != t)
            continue;
        m->wants_since = 0;
        t->wanting--;
    }
}

static uint64_t unused_after(struct gp_board *f, const struct tenant_slot *t)
{
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        const struct member_slot *m = &f->members[i];
        if (m->pid && m->wants_since && !m->early && gp_board_tenant_of(f, m) == t)
            return UNUSED;
    }
    return UNUSED_EARLY;
}

static void turn_of_idle(struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    struct tenant_slot *other = next_of(f, t, now);
    uint64_t idle = now > t->idle_since ? now - t->idle_since : 0;
    bool unused = other && t->wanting && idle >= UNUSED_EARLY && idle >= unused_after(f, t);
    if (unused)
        forget_wants(f, t);
    if (f->yielding || !gp_board_eligible(f, t, now) || (other && gp_gang_over(f, t, other, now)) ||
        (other && !t->wanting &&
         (idle >= gp_gang_grace(t, GRACE) || gp_step_over(f, t, other, now)))) {
        if (!f->yielding)
            turn_end(f, now);
        if (f->shut && f->shut(f, t))
            return;
        if (other)
            charge_idle(f, t, now);
        turn_take(f, now);
    }
}

void gp_board_turn(struct gp_board *f, uint64_t now)
{
    if (f->open)
        return;
    f->relaxed = gp_board_weights_suffice(f);
    gp_gangs_look(f, now);
    vclock_set(f);
    for (int again = 0; again < 2; again++) {
        struct tenant_slot *t = gp_board_holder(f);
        if (t) {
            if (!t->name[0] || !t->usage.members)
                turn_take(f, now);
            else if (t->busy)
                turn_of_busy(f, t, now);
            else
                turn_of_idle(f, t, now);
        }
        if (gp_board_holder(f))
            break;
        struct tenant_slot *next = next_of(f, NULL, now);
        if (!next)
            break;
        turn_give(f, next, now);
    }
    struct tenant_slot *holder = gp_board_holder(f);
    bool contended = next_of(f, holder, now) != NULL || gp_step_expected(f, holder, now);
    for (int i = 0; i < GP_BOARD_TENANTS && !contended; i++)
        contended = f->tenants[i].grant.high_priority && f->tenants[i].usage.members;
    if (contended && !f->contended && now - f->contended_at > ALONE && holder) {
        if (holder->busy)
            gp_board_charge_to(f, holder, now);
        else
            charge_idle(f, holder, now);
        holder->amnesty = holder->busy != 0;
    }
    if (contended)
        f->contended_at = now;
    f->contended = contended;
}

/* --- members at the gate ------------------------------------------------------------ */

/* What the change of a turn and waking up for it may take; whoever says so later pays. */
#define CHANGE (2 * MS)

static uint64_t forgiven_to(const struct gp_board *f, uint64_t now)
{
    return now < f->turn_began + CHANGE ? now : f->turn_began + CHANGE;
}

static void member_busy(struct gp_board *f, struct member_slot *m, struct tenant_slot *t,
                        uint64_t now)
{
    if (m->wants_since) {
        t->usage.waited_ns += now - m->wants_since;
        m->wants_since = 0;
        t->wanting--;
    }
    if (m->busy)
        return;
    m->busy = 1;
    if (t->busy++ == 0) {
        t->busy_from = now;
        /* a gap inside a turn that others wait for is its own; what it took to wake up
         * for the turn is nobody's */
        bool holds = f->holder == gp_board_index(f, t);
        uint64_t to = holds && f->turn_fresh && f->contended ? forgiven_to(f, now) : now;
        if ((!holds || f->turn_fresh || !f->contended) && t->charged_to < to)
            t->charged_to = to;
    }
}

void gp_board_member_quiet(struct gp_board *f, struct member_slot *m, uint64_t since)
{
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    if (m->wants_since) {
        m->wants_since = 0;
        t->wanting--;
    }
    if (!m->busy)
        return;
    gp_board_busy_count(t, since);
    gp_board_charge_to(f, t, since);
    m->busy = m->late = 0;
    if (--t->busy == 0) {
        t->idle_since = since;
        t->amnesty = 0;
        gp_step_idle(f, t);
    }
}

/* One that need not take turns. */
static bool runs_beside(struct gp_board *f, const struct tenant_slot *t, uint64_t now)
{
    if (f->open)
        return true;
    return t->grant.high_priority && f->gpu.hardware && t->weight && gp_board_high_allowed(f, now);
}

bool gp_board_enter(struct gp_board *f, int member)
{
    struct member_slot *m = &f->members[member];
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    if (m->busy && !m->wants_since) { /* both are written by this process alone */
        if (f->open)
            return true;
        if (f->holder == gp_board_index(f, t) && !f->yielding && gp_board_now() < f->check_at)
            return true;
    }
    uint64_t now = gp_board_now();
    bool beside = runs_beside(f, t, now), mine = beside;
    if (!beside) {
        if (!m->wants_since) {
            m->wants_since = now;
            m->early = 0;
            bool wakes = !t->wanting && !t->busy;
            if (wakes)
                tenant_wakes(f, t, now);
            t->wanting++;
            if (wakes)
                turn_shorten(f, t, now);
        }
        gp_board_turn(f, now);
        mine = f->holder == gp_board_index(f, t) && !f->yielding;
    } else if (t->grant.high_priority && m->busy) {
        gp_board_charge_to(f, t, now);
    }
    m->beside = beside;
    if (mine)
        member_busy(f, m, t, now);
    return mine;
}

bool gp_board_fresh(struct gp_board *f, int member)
{
    return f->turn_fresh && gp_board_holder(f) == gp_board_tenant_of(f, &f->members[member]);
}

void gp_board_started(struct gp_board *f, int member)
{
    struct tenant_slot *t = gp_board_tenant_of(f, &f->members[member]);
    uint64_t to = forgiven_to(f, gp_board_now());
    if (f->turn_fresh && f->holder == gp_board_index(f, t) && t->charged_to < to)
        t->charged_to = to;
    f->turn_fresh = 0;
}

bool gp_board_must_yield(struct gp_board *f, int member)
{
    const struct member_slot *m = &f->members[member];
    if (!m->busy || m->beside || f->open)
        return false;
    return gp_board_holder(f) != gp_board_tenant_of(f, m) || f->yielding;
}

bool gp_board_contended(struct gp_board *f, int member)
{
    return !f->members[member].beside && f->contended;
}

void gp_board_member_idle(struct gp_board *f, int member, uint64_t since)
{
    struct member_slot *m = &f->members[member];
    uint64_t wanted = m->wants_since;
    if (!m->busy)
        return;
    gp_board_member_quiet(f, m, since);
    if (wanted) { /* it still waits at the gate for its next turn */
        m->wants_since = wanted;
        m->early = 1;
        gp_board_tenant_of(f, m)->wanting++;
    }
}

void gp_board_member_begins(struct gp_board *f, int member, uint64_t since)
{
    struct member_slot *m = &f->members[member];
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    if (!t->wanting && !t->busy)
        tenant_wakes(f, t, since);
    member_busy(f, m, t, since);
}

void gp_board_member_worked(struct gp_board *f, int member, uint64_t ns, uint64_t now)
{
    struct tenant_slot *t = gp_board_tenant_of(f, &f->members[member]);
    t->usage.busy_ns += ns;
    if (t->busy_from < now)
        t->busy_from = now;
    if (t->charged_to + ns < now)
        t->charged_to = now - ns;
    gp_board_charge_to(f, t, now);
}

void gp_board_idle(struct gp_board *f, int member, uint64_t idle_ns)
{
    uint64_t now = gp_board_now();
    gp_board_member_idle(f, member, idle_ns < now ? now - idle_ns : now);
    gp_board_turn(f, now);
}
