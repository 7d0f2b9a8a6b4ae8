/* The board for Python: settings by plain numbers, everything else as JSON. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board_internal.h"

int gp_board_gpu_put(struct gp_board *b, uint32_t policy, uint32_t max_inst, uint32_t prio_ratio,
                     uint32_t hardware, uint64_t memory_total)
{
    const struct gp_board_gpu gpu = {policy, max_inst, prio_ratio, hardware, memory_total};
    return gp_board_gpu_set(b, &gpu);
}

int gp_board_tenant_put(struct gp_board *b, const char *name, uint64_t memory_limit,
                        uint32_t weight, uint32_t share, uint32_t ceiling, uint32_t high_priority)
{
    const struct gp_board_grant grant = {memory_limit, weight, share, ceiling, high_priority};
    return gp_board_tenant_set(b, name, &grant);
}

struct text {
    char *out;
    int size, used;
};

static void say(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int room = t->used < t->size ? t->size - t->used : 0;
    int n = vsnprintf(room ? t->out + t->used : NULL, (size_t)room, format, args);
    va_end(args);
    t->used += n > 0 ? n : 0;
}

static void say_tenant(struct text *t, const struct gp_board_tenant *x)
{
    const struct gp_board_grant *g = &x->grant;
    const struct gp_board_usage *u = &x->usage;
    say(t,
        "{\"name\": \"%s\", \"memory_limit\": %llu, \"weight\": %u, \"share\": %u, "
        "\"ceiling\": %u, \"high_priority\": %s, ",
        x->name, (unsigned long long)g->memory_limit, g->weight, g->share, g->ceiling,
        g->high_priority ? "true" : "false");
    say(t,
        "\"memory_used\": %llu, \"memory_peak\": %llu, \"memory_denied\": %llu, "
        "\"busy_ns\": %llu, \"waited_ns\": %llu, ",
        (unsigned long long)u->memory_used, (unsigned long long)u->memory_peak,
        (unsigned long long)u->memory_denied, (unsigned long long)u->busy_ns,
        (unsigned long long)u->waited_ns);
    say(t,
        "\"turns\": %llu, \"launches\": %llu, \"bytes_copied\": %llu, \"copy_ns\": %llu, "
        "\"host_used\": %llu, \"members\": %u, \"entitled\": %u}",
        (unsigned long long)u->turns, (unsigned long long)u->launches,
        (unsigned long long)u->bytes_copied, (unsigned long long)u->copy_ns,
        (unsigned long long)u->host_used, u->members, u->entitled);
}

static void say_processes(struct text *t, struct gp_board *b)
{
    struct board_file *f = b->file;
    const char *comma = "";
    gp_board_lock(f);
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        const struct member_slot *m = &f->members[i];
        char name[GP_BOARD_NAME];
        memcpy(name, gp_board_tenant_of(f, m)->name, sizeof name);
        if (!m->pid || !gp_board_name_ok(name))
            continue;
        say(t, "%s{\"pid\": %d, \"tenant\": \"%s\", \"memory_used\": %llu, \"slice_us\": %llu}",
            comma, m->pid, name, (unsigned long long)m->memory_used,
            (unsigned long long)m->slice_us);
        comma = ", ";
    }
    gp_board_unlock(f);
}

int gp_board_describe(struct gp_board *b, char *out, int size)
{
    struct text t = {out, size, 0};
    struct gp_board_gpu gpu;
    int r = gp_board_check(b);
    if (r != 0)
        return r;
    struct gp_board_tenant *tenants = calloc(GP_BOARD_TENANTS, sizeof *tenants);
    if (!tenants)
        return -ENOMEM;
    gp_board_gpu_get(b, &gpu);
    say(&t,
        "{\"gpu\": {\"policy\": %u, \"max_inst\": %u, \"prio_ratio\": %u, \"hardware\": %s, "
        "\"memory_total\": %llu}, \"now_ns\": %llu, \"tenants\": [",
        gpu.policy, gpu.max_inst, gpu.prio_ratio, gpu.hardware ? "true" : "false",
        (unsigned long long)gpu.memory_total, (unsigned long long)gp_board_now());
    int n = gp_board_tenants(b, tenants, GP_BOARD_TENANTS);
    for (int i = 0; i < n; i++) {
        say(&t, "%s", i ? ", " : "");
        say_tenant(&t, &tenants[i]);
    }
    say(&t, "], \"processes\": [");
    say_processes(&t, b);
    say(&t, "]}");
    free(tenants);
    return t.used;
}
