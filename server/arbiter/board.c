/* The board's state: tenants and members. Only the arbiter's process has it. */
#include "board.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "board_internal.h"

int gp_board_new(struct gp_board **out)
{
    struct gp_board *f = calloc(1, sizeof *f);
    if (!f)
        return -ENOMEM;
    f->gpu = (struct gp_board_gpu){.policy = GP_POLICY_SHARE, .max_inst = 20, .prio_ratio = 90};
    f->holder = -1;
    *out = f;
    return 0;
}

void gp_board_free(struct gp_board *f)
{
    free(f);
}

struct tenant_slot *gp_board_tenant_of(struct gp_board *f, const struct member_slot *m)
{
    return &f->tenants[m->tenant];
}

struct tenant_slot *gp_board_holder(struct gp_board *f)
{
    return f->holder >= 0 ? &f->tenants[f->holder] : NULL;
}

int32_t gp_board_index(const struct gp_board *f, const struct tenant_slot *t)
{
    return (int32_t)(t - f->tenants);
}

uint64_t gp_board_weight(const struct tenant_slot *t)
{
    return t->weight ? t->weight : 1;
}

uint64_t gp_board_ceiling(const struct tenant_slot *t)
{
    return t->ceiling < 1 ? 1 : t->ceiling > 1000 ? 1000 : t->ceiling;
}

/* --- sums --------------------------------------------------------------------------- */

void gp_board_recount(struct gp_board *f)
{
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        struct tenant_slot *t = &f->tenants[i];
        t->usage.memory_used = t->usage.host_used = t->memory_given = 0;
        t->usage.members = t->wanting = t->busy = 0;
    }
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        struct member_slot *m = &f->members[i];
        if (!m->pid)
            continue;
        struct tenant_slot *t = gp_board_tenant_of(f, m);
        t->memory_given += m->memory_given;
        t->usage.memory_used += m->memory_used;
        t->usage.host_used += m->host_used;
        t->usage.members++;
        t->wanting += m->wants_since != 0;
        t->busy += m->busy != 0;
    }
    gp_board_entitle(f);
}

/* --- settings ----------------------------------------------------------------------- */

int gp_board_gpu_set(struct gp_board *f, const struct gp_board_gpu *gpu)
{
    if (!gp_board_gpu_ok(gpu))
        return -EINVAL;
    f->gpu = *gpu;
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        gp_board_memory_fits(f, &f->tenants[i], f->tenants[i].grant.memory_limit);
    gp_board_entitle(f);
    gp_board_turn(f, gp_board_now());
    return 0;
}

void gp_board_gpu_get(struct gp_board *f, struct gp_board_gpu *gpu)
{
    *gpu = f->gpu;
}

/* That with this name; with none, one that is free. */
static struct tenant_slot *slot_find(struct gp_board *f, const char *name)
{
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (strncmp(f->tenants[i].name, name, GP_BOARD_NAME) == 0)
            return &f->tenants[i];
    return NULL;
}

struct tenant_slot *gp_board_find(struct gp_board *f, const char *name)
{
    return *name ? slot_find(f, name) : NULL;
}

/* The slot of a new tenant, cleared but for its name. */
static struct tenant_slot *tenant_new(struct gp_board *f, const char *name, uint64_t now)
{
    struct tenant_slot *t = slot_find(f, "");
    if (!t)
        return NULL;
    memset(t, 0, sizeof *t);
    strcpy(t->name, name);
    t->tokens_at = t->idle_since = now;
    return t;
}

int gp_board_tenant_set(struct gp_board *f, const char *name, const struct gp_board_grant *grant)
{
    if (!gp_board_name_ok(name) || !gp_board_grant_ok(grant))
        return -EINVAL;
    int r = 0;
    struct tenant_slot *t = gp_board_find(f, name);
    if (!t && !(t = tenant_new(f, name, gp_board_now())))
        r = -ENOSPC;
    else if (grant->memory_limit && !gp_board_memory_fits(f, t, grant->memory_limit) &&
             !grant->forced)
        r = -EBUSY;
    if (r == 0) {
        t->grant = *grant;
        gp_board_entitle(f);
        gp_board_turn(f, gp_board_now());
    }
    return r;
}

int gp_board_tenant_remove(struct gp_board *f, const char *name)
{
    struct tenant_slot *t = gp_board_find(f, name);
    int r = !t ? -ENOENT : t->usage.members ? -EBUSY : 0;
    if (r == 0) {
        if (f->holder == gp_board_index(f, t))
            f->holder = -1;
        for (int i = 0; i < GP_BOARD_TURNS; i++) /* another may get its slot */
            if (f->turns[i].tenant == gp_board_index(f, t))
                f->turns[i].tenant = -1;
        memset(t, 0, sizeof *t);
        gp_board_entitle(f);
        gp_board_turn(f, gp_board_now());
    }
    return r;
}

/* What those who wait at the gate have waited so far. */
static uint64_t waiting_ns(const struct gp_board *f, uint32_t tenant, uint64_t now)
{
    uint64_t ns = 0;
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        const struct member_slot *m = &f->members[i];
        if (m->pid && m->tenant == tenant && m->wants_since && now > m->wants_since)
            ns += now - m->wants_since;
    }
    return ns;
}

int gp_board_tenants(struct gp_board *f, struct gp_board_tenant *tenants, int room)
{
    int n = 0;
    uint64_t now = gp_board_now();
    for (int i = 0; i < GP_BOARD_TENANTS && n < room; i++) {
        struct tenant_slot *t = &f->tenants[i];
        if (!t->name[0])
            continue;
        gp_board_busy_count(t, now);
        memcpy(tenants[n].name, t->name, sizeof t->name);
        tenants[n].grant = t->grant;
        tenants[n].usage = t->usage;
        tenants[n].usage.waited_ns += waiting_ns(f, (uint32_t)i, now);
        if (f->holder == i && now > f->turn_began)
            tenants[n].usage.held_ns += now - f->turn_began;
        tenants[n].usage.entitled = t->weight ? t->ceiling : 0;
        tenants[n++].usage.due = t->weight;
    }
    return n;
}

/* --- members --------------------------------------------------------------------- */

int gp_board_join(struct gp_board *f, const char *tenant)
{
    struct tenant_slot *t = gp_board_find(f, tenant);
    if (!t)
        return -ENOENT;
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        struct member_slot *m = &f->members[i];
        if (m->pid)
            continue;
        *m = (struct member_slot){.pid = GP_BOARD_NOT_STARTED,
                                  .tenant = (uint32_t)gp_board_index(f, t)};
        t->usage.members++;
        gp_board_entitle(f);
        return i;
    }
    return -ENOSPC;
}

static void member_remove(struct gp_board *f, struct member_slot *m)
{
    gp_board_member_quiet(f, m, gp_board_now());
    memset(m, 0, sizeof *m);
    gp_board_recount(f);
    gp_board_turn(f, gp_board_now());
}

void gp_board_leave(struct gp_board *f, int member)
{
    if (f->members[member].pid)
        member_remove(f, &f->members[member]);
}

void gp_board_busy_count(struct tenant_slot *t, uint64_t now)
{
    if (t->busy && now > t->busy_from) {
        t->usage.busy_ns += now - t->busy_from;
        t->busy_from = now;
    }
}

void gp_board_count(struct gp_board *f, int member, uint64_t launches, uint64_t bytes)
{
    struct gp_board_usage *u = &gp_board_tenant_of(f, &f->members[member])->usage;
    u->launches += launches;
    u->bytes_copied += bytes;
}
