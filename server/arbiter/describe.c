/* The board as JSON, for the server. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "board_internal.h"
#include "page.h"

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
        "\"ceiling\": %u, \"high_priority\": %s, \"gang\": %s, ",
        x->name, (unsigned long long)g->memory_limit, g->weight, g->share, g->ceiling,
        g->high_priority ? "true" : "false", g->gang ? "true" : "false");
    say(t,
        "\"memory_used\": %llu, \"memory_peak\": %llu, \"memory_denied\": %llu, "
        "\"busy_ns\": %llu, \"held_ns\": %llu, \"ending_ns\": %llu, \"waited_ns\": %llu, ",
        (unsigned long long)u->memory_used, (unsigned long long)u->memory_peak,
        (unsigned long long)u->memory_denied, (unsigned long long)u->busy_ns,
        (unsigned long long)u->held_ns, (unsigned long long)u->ending_ns,
        (unsigned long long)u->waited_ns);
    say(t,
        "\"turns\": %llu, \"launches\": %llu, \"bytes_copied\": %llu, \"copy_ns\": %llu, "
        "\"host_used\": %llu, \"members\": %u, \"entitled\": %u, \"due\": %u}",
        (unsigned long long)u->turns, (unsigned long long)u->launches,
        (unsigned long long)u->bytes_copied, (unsigned long long)u->copy_ns,
        (unsigned long long)u->host_used, u->members, u->entitled, u->due);
}

/* One that has never asked for anything has let nothing in, and is of no release. */
static const char *unseen_of(const struct member_slot *m)
{
    if (m->sight == GP_PAGE_UNSAID && m->questions)
        return "null";
    return m->sight == GP_PAGE_LOST ? "true" : "false";
}

static void say_processes(struct text *t, struct gp_board *f)
{
    const char *comma = "";
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        const struct member_slot *m = &f->members[i];
        if (!m->pid || m->pid == GP_BOARD_NOT_STARTED)
            continue;
        say(t,
            "%s{\"pid\": %d, \"tenant\": \"%s\", \"memory_used\": %llu, \"memory_given\": %llu, "
            "\"questions\": %llu, \"slice_us\": %llu, \"busy_ns\": %llu, \"overdue\": %u, "
            "\"late\": %s, \"unseen\": %s, \"fault\": \"%s\"}",
            comma, m->pid, gp_board_tenant_of(f, m)->name, (unsigned long long)m->memory_used,
            (unsigned long long)m->memory_given, (unsigned long long)m->questions,
            (unsigned long long)m->slice_us, (unsigned long long)m->busy_ns, m->overdue,
            m->late || (m->busy && m->beside) ? "true" : "false", unseen_of(m),
            m->fault ? m->fault : "");
        comma = ", ";
    }
}

int gp_board_describe(struct gp_board *f, char *out, int size)
{
    struct text t = {out, size, 0};
    const struct gp_board_gpu *gpu = &f->gpu;
    struct gp_board_tenant *tenants = calloc(GP_BOARD_TENANTS, sizeof *tenants);
    if (!tenants)
        return -ENOMEM;
    say(&t,
        "{\"gpu\": {\"policy\": %u, \"max_inst\": %u, \"prio_ratio\": %u, \"hardware\": %s, "
        "\"memory_total\": %llu}, \"now_ns\": %llu, \"tenants\": [",
        gpu->policy, gpu->max_inst, gpu->prio_ratio, gpu->hardware ? "true" : "false",
        (unsigned long long)gpu->memory_total, (unsigned long long)gp_board_now());
    int n = gp_board_tenants(f, tenants, GP_BOARD_TENANTS);
    for (int i = 0; i < n; i++) {
        say(&t, "%s", i ? ", " : "");
        say_tenant(&t, &tenants[i]);
    }
    say(&t, "], \"processes\": [");
    say_processes(&t, f);
    say(&t, "]}");
    free(tenants);
    return t.used;
}

static const char *name_of(const struct gp_board *f, int32_t tenant)
{
    return tenant >= 0 ? f->tenants[tenant].name : "";
}

int gp_board_describe_turns(const struct gp_board *f, uint64_t since, char *out, int size)
{
    struct text t = {out, size, 0};
    uint64_t first = f->turns_over > GP_BOARD_TURNS ? f->turns_over - GP_BOARD_TURNS : 0;
    first = since < first ? first : since > f->turns_over ? f->turns_over : since;
    say(&t, "{\"now_ns\": %llu, \"holder\": \"%s\", \"began_ns\": %llu, \"first\": %llu, ",
        (unsigned long long)gp_board_now(), name_of(f, f->holder),
        (unsigned long long)f->turn_began, (unsigned long long)first);
    say(&t, "\"turns\": [");
    for (uint64_t number = first; number < f->turns_over; number++) {
        const struct turn_slot *turn = &f->turns[number % GP_BOARD_TURNS];
        say(&t, "%s[\"%s\", %llu, %llu]", number == first ? "" : ", ", name_of(f, turn->tenant),
            (unsigned long long)turn->began, (unsigned long long)turn->ended);
    }
    say(&t, "]}");
    return t.used;
}
