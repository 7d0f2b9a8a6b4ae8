/* Whether a board can be one: every process on it may have written anything there. */
#include <errno.h>
#include <string.h>

#include "board_internal.h"

/* Times are of the past, or of a turn's near future; more than this is nobody's. */
#define AHEAD UINT64_C(60000000000)

bool gp_board_name_ok(const char name[GP_BOARD_NAME])
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
    size_t n = strnlen(name, GP_BOARD_NAME);
    return n >= 1 && n < GP_BOARD_NAME && strspn(name, allowed) == n;
}

bool gp_board_gpu_ok(const struct gp_board_gpu *gpu)
{
    return gpu->policy <= GP_POLICY_SHARE && gpu->max_inst >= 1 && gpu->max_inst <= 25 &&
           gpu->prio_ratio >= 20 && gpu->prio_ratio <= 99 && gpu->hardware <= 1;
}

bool gp_board_grant_ok(const struct gp_board_grant *g)
{
    return g->weight <= 25 && g->share >= 1 && g->share <= 1000 && g->ceiling >= g->share &&
           g->ceiling <= 1000 && g->high_priority <= 1;
}

static bool times_ok(const uint64_t *times, unsigned count, uint64_t now)
{
    for (unsigned i = 0; i < count; i++)
        if (times[i] > now + AHEAD)
            return false;
    return true;
}

static bool tenant_ok(const struct tenant_slot *t, uint64_t now)
{
    const uint64_t times[] = {t->tokens_at, t->charged_to, t->idle_since, t->busy_from};
    return gp_board_name_ok(t->name) && gp_board_grant_ok(&t->grant) && t->weight <= 1000 &&
           t->ceiling <= 1000 && times_ok(times, sizeof times / sizeof times[0], now);
}

static bool member_ok(const struct board_file *f, const struct member_slot *m, uint64_t now)
{
    return m->pid > 0 && m->tenant < GP_BOARD_TENANTS && f->tenants[m->tenant].name[0] &&
           m->wants_since <= now + AHEAD && m->memory_used < UINT64_C(1) << 50;
}

static bool head_ok(const struct board_file *f)
{
    return f->magic == GP_BOARD_MAGIC && f->version == GP_BOARD_VERSION && f->size == sizeof *f;
}

static bool turn_ok(const struct board_file *f, uint64_t now)
{
    const uint64_t times[] = {f->quantum_end,  f->yield_at,       f->reaped_at, f->turn_began,
                              f->contended_at, f->high_tokens_at, f->check_at};
    return f->holder >= -1 && f->holder < GP_BOARD_TENANTS && f->forced == 0 &&
           times_ok(times, sizeof times / sizeof times[0], now);
}

static bool names_differ(const struct board_file *f, const struct tenant_slot *t)
{
    for (const struct tenant_slot *other = f->tenants; other < t; other++)
        if (other->name[0] && strncmp(other->name, t->name, GP_BOARD_NAME) == 0)
            return false;
    return true;
}

static bool board_ok(const struct board_file *f, uint64_t now)
{
    if (!head_ok(f) || !gp_board_gpu_ok(&f->gpu) || !turn_ok(f, now))
        return false;
    for (const struct tenant_slot *t = f->tenants; t < f->tenants + GP_BOARD_TENANTS; t++)
        if (t->name[0] && (!tenant_ok(t, now) || !names_differ(f, t)))
            return false;
    for (const struct member_slot *m = f->members; m < f->members + GP_BOARD_MEMBERS; m++)
        if (m->pid && !member_ok(f, m, now))
            return false;
    return true;
}

/* A copy is looked at: the board itself may change under our eyes. */
int gp_board_check(struct gp_board *b)
{
    static struct board_file copy;
    gp_board_lock(b->file);
    memcpy(&copy, b->file, sizeof copy);
    gp_board_unlock(b->file);
    return board_ok(&copy, gp_board_now()) ? 0 : -EUCLEAN;
}
