/*
 * What tenants are charged for the GPU's time, and what they may still have: by their weights, by
 * ceilings, which are token buckets, and, those of high priority, by prio_ratio.
 */
#include <errno.h>

#include "board_internal.h"

#define MS UINT64_C(1000000)
/* Tokens: what may be saved up, and what must be there to go on after a shortage. */
#define BURST ((int64_t)(30 * MS))
#define RESUME ((int64_t)(3 * MS))
/* What samples can make a tenant owe: who goes on is found again, and ended by the server. */
#define OWED_MOST (10000 * MS)

static void tokens_refill(struct tenant_slot *t, uint64_t now)
{
    if (now <= t->tokens_at)
        return;
    t->tokens += (int64_t)((now - t->tokens_at) * gp_board_ceiling(t) / 1000);
    t->tokens_at = now;
    if (t->tokens > BURST)
        t->tokens = BURST;
}

/*
 * Whether the weights alone keep all that are at work under their ceilings. Then the
 * ceilings must be left aside: buckets that sum to the whole GPU would all run dry a
 * little, and the GPU would idle for it.
 */
bool gp_board_weights_suffice(const struct gp_board *f)
{
    uint64_t sum = 0;
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (f->tenants[i].busy || f->tenants[i].wanting)
            sum += f->tenants[i].weight;
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct tenant_slot *t = &f->tenants[i];
        if ((t->busy || t->wanting) && 1000 * (uint64_t)t->weight > (t->ceiling + 2) * sum)
            return false;
    }
    return true;
}

bool gp_board_eligible(const struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    if (t->weight == 0)
        return false;
    if (t->ceiling >= 1000 || f->relaxed)
        return true;
    tokens_refill(t, now);
    if (t->tokens <= 0)
        t->starved = 1;
    else if (t->tokens >= RESUME)
        t->starved = 0;
    return !t->starved;
}

bool gp_board_high_allowed(struct gp_board *f, uint64_t now)
{
    if (now > f->high_tokens_at)
        f->high_tokens += (int64_t)((now - f->high_tokens_at) * f->gpu.prio_ratio / 100);
    f->high_tokens_at = now;
    if (f->high_tokens > BURST)
        f->high_tokens = BURST;
    return f->high_tokens > 0;
}

static void pay_tokens(const struct gp_board *f, struct tenant_slot *t, int64_t ns, uint64_t now)
{
    if (t->ceiling >= 1000)
        return;
    if (!f->relaxed)
        t->tokens -= ns; /* before the refill, which ends at what may be saved */
    tokens_refill(t, now);
}

void gp_board_charge_to(struct gp_board *f, struct tenant_slot *t, uint64_t now)
{
    if (now <= t->charged_to)
        return;
    uint64_t ns = now - t->charged_to;
    t->charged_to = now;
    if (t->busy) /* a pause that others have waited for is no part of a step */
        gp_step_charged(t, ns);
    uint64_t paid = t->amnesty ? 0 : ns * 1000 / gp_board_weight(t);
    t->vtime += paid;
    if (gp_board_holder(f) != t)
        t->paid_outside += paid;
    pay_tokens(f, t, (int64_t)ns, now);
    if (t->grant.high_priority) {
        f->high_tokens -= (int64_t)ns;
        gp_board_high_allowed(f, now);
    }
}

/* Of all who are at work but `t`, and of `other`. */
static uint64_t weight_of_others(const struct gp_board *f, const struct tenant_slot *t,
                                 const struct tenant_slot *other, uint64_t now)
{
    uint64_t sum = gp_board_weight(other);
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct tenant_slot *each = &f->tenants[i];
        if (each != t && each != other && gp_board_at_work(each, now))
            sum += each->weight;
    }
    return sum;
}

/* Nobody waits longer for work that is over than OWED_MOST of its own. */
static void owe(const struct gp_board *f, struct tenant_slot *t, uint64_t charged)
{
    uint64_t most = f->vclock + OWED_MOST * 1000 / gp_board_weight(t);
    uint64_t left = most > t->vtime ? most - t->vtime : 0;
    t->vtime += charged < left ? charged : left;
}

int gp_board_charge(struct gp_board *f, const char *name, const char *whose, uint64_t ns)
{
    struct tenant_slot *t = gp_board_find(f, name), *other = gp_board_find(f, whose);
    if (!t || ns > GP_BOARD_CHARGE_MOST)
        return !t ? -ENOENT : -EINVAL;
    if (f->open || t == other)
        return 0;
    uint64_t now = gp_board_now();
    if (t->busy && gp_board_holder(f) != t) /* behind a lost turn: the clock charges, too */
        gp_board_charge_to(f, t, now);
    uint64_t pays = ns * 1000 / gp_board_weight(t);
    if (other) {
        /* Charged time does not go back, so all others gain on who pays, not `other` alone: beside
         * its weight alone, if that is small, they would have many times what it has lost. */
        pays += ns * 1000 / weight_of_others(f, t, other, now);
        pay_tokens(f, other, -(int64_t)ns, now);
    }
    uint64_t paid = pays < t->paid_outside ? pays : t->paid_outside;
    t->paid_outside -= paid;
    owe(f, t, pays - paid);
    if (!paid)
        pay_tokens(f, t, (int64_t)ns, now);
    gp_board_turn(f, now);
    return 0;
}
