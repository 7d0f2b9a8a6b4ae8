/*
 * An arbiter between two workers, one of which writes what it likes into its page, and whose
 * limits the server changes meanwhile. The input is a list of writes: 1 byte where (in words of
 * 4), 1 byte how many words and whether the arbiter looks then, and the words. Instead of a write
 * (LIMITS) each byte of its words is a change of limits: whose, whether it is forced, how many
 * MiB. Whatever there is in the page, the arbiter neither crashes nor hangs, and the neighbour's
 * memory and rights are what the server says.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arbiter_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MIB (UINT64_C(1) << 20)
#define TOTAL (1024 * MIB)
#define HELD (8 * MIB) /* by the neighbour */
#define LIMITS 0xff    /* in the place of where: a change of limits, and no write */

/* The two workers, and the neighbour's limit. */
struct game {
    struct gp_arbiter *a;
    int members[2];
    uint64_t limit;
};

static void require(bool holds)
{
    if (!holds)
        abort();
}

static int command(struct gp_arbiter *a, const char *line)
{
    char answer[256];
    int none[2] = {-1, -1}, sent[2];
    require(gp_arbiter_command(a, line, none, answer, sizeof answer, sent) > 0);
    return atoi(answer);
}

static int set_limit(struct game *g, const char *tenant, uint64_t limit, bool forced)
{
    char line[128];
    snprintf(line, sizeof line, "tenant %s %llu 1 500 900 0 %d", tenant, (unsigned long long)limit,
             forced);
    return command(g->a, line);
}

static void start(struct game *g)
{
    int page, bell;
    require(gp_arbiter_new(-1, &g->a) == 0);
    g->limit = 64 * MIB;
    require(command(g->a, "gpu 6 20 90 1 1073741824") == 0);
    require(set_limit(g, "liar", g->limit, false) == 0);
    require(set_limit(g, "neighbour", g->limit, false) == 0);
    g->members[0] = gp_arbiter_join(g->a, "liar", &page, &bell);
    g->members[1] = gp_arbiter_join(g->a, "neighbour", &page, &bell);
    require(gp_arbiter_started(g->a, g->members[0], getpid()) == 0);
}

/* What is in use refuses a lower limit, unless that is forced: then nothing comes to it. */
static void change(struct game *g, uint8_t how)
{
    bool forced = how & 2;
    uint64_t limit = (how >> 2) * MIB;
    int r = set_limit(g, how & 1 ? "neighbour" : "liar", limit, forced);
    require(r == 0 || (r == -EBUSY && !forced && limit));
    if (!(how & 1))
        return;
    require((r == 0) == (forced || !limit || limit >= HELD));
    if (r == 0)
        g->limit = limit ? limit : TOTAL;
}

static void ask(struct gp_arbiter *a, int member, enum gp_page_op op, uint64_t value)
{
    struct gp_page *p = a->seats[member].page;
    p->op = op;
    p->a = value;
    p->asked++;
    a->seats[member].rang = true;
    gp_arbiter_step(a, 0);
    require(p->answered == p->asked);
}

/* Nobody uses what was not given, and what was given is all charged. */
static void sums(const struct gp_board *b, uint32_t tenant)
{
    uint64_t given = 0;
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        const struct member_slot *m = &b->members[i];
        require(m->memory_used <= m->memory_given);
        given += m->pid && m->tenant == tenant ? m->memory_given : 0;
    }
    require(given == b->tenants[tenant].memory_given);
}

static void look(struct game *g)
{
    struct gp_arbiter *a = g->a;
    const struct gp_board *b = a->board;
    const struct member_slot *liar = &b->members[g->members[0]],
                             *other = &b->members[g->members[1]];
    struct gp_page *page = a->seats[g->members[1]].page;
    uint64_t most = g->limit > HELD ? g->limit : HELD;
    if (a->seats[g->members[0]].page)
        a->seats[g->members[0]].rang = true;
    gp_arbiter_step(a, 0);
    require(other->memory_used == HELD && page->memory_others == 0);
    require(page->memory_limit == g->limit);
    ask(a, g->members[1], GP_PAGE_TAKE, most);
    require(page->result == 1 && page->granted == most);
    ask(a, g->members[1], GP_PAGE_TAKE, most + 1);
    require(page->result == 0 && page->granted == most);
    ask(a, g->members[1], GP_PAGE_ENTER, 0);
    require(other->fault == NULL);
    require(b->tenants[other->tenant].usage.memory_used == HELD);
    sums(b, liar->tenant);
    require(b->holder >= -1 && b->holder < GP_BOARD_TENANTS);
}

/* The words of one step of the input: into the page from `begin` on, or as limits. */
static void step(struct game *g, uint8_t where, const uint8_t *words, size_t bytes)
{
    struct gp_page *page = g->a->seats[g->members[0]].page;
    size_t begin = (size_t)where * 4 % sizeof *page;
    if (where == LIMITS)
        for (size_t i = 0; i < bytes; i++)
            change(g, words[i]);
    else
        memcpy((char *)page + begin, words,
               bytes > sizeof *page - begin ? sizeof *page - begin : bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[1 << 16];
    struct game g;
    start(&g);
    ask(g.a, g.members[1], GP_PAGE_TAKE, HELD);
    g.a->seats[g.members[1]].page->held = HELD;
    while (size >= 2 && g.a->seats[g.members[0]].page) {
        size_t bytes = (size_t)(data[1] & 0x7f) * 4;
        bool looks = data[1] & 0x80;
        uint8_t where = data[0];
        data += 2, size -= 2;
        bytes = bytes > size ? size : bytes;
        step(&g, where, data, bytes);
        data += bytes, size -= bytes;
        if (looks)
            look(&g);
    }
    look(&g);
    require(gp_board_describe(g.a->board, text, sizeof text) > 0);
    gp_arbiter_free(g.a);
    return 0;
}
