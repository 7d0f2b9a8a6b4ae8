/*
 * An arbiter between two workers, one of which writes what it likes into its page. The input is
 * a list of writes: 1 byte where (in words of 4), 1 byte how many words and whether the arbiter
 * looks then, and the words. Whatever there is in the page, the arbiter neither crashes nor
 * hangs, and the neighbour's memory and rights are what they were.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arbiter_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MIB (UINT64_C(1) << 20)
#define LIMIT (64 * MIB)

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void command(struct gp_arbiter *a, const char *line)
{
    char answer[256];
    int none[2] = {-1, -1}, sent[2];
    require(gp_arbiter_command(a, line, none, answer, sizeof answer, sent) > 0);
    require(atoi(answer) == 0);
}

static struct gp_arbiter *start(int members[2])
{
    struct gp_arbiter *a;
    int page, bell;
    require(gp_arbiter_new(-1, &a) == 0);
    command(a, "gpu 6 20 90 1 1073741824");
    command(a, "tenant liar 67108864 1 500 900 0");
    command(a, "tenant neighbour 67108864 1 500 900 0");
    members[0] = gp_arbiter_join(a, "liar", &page, &bell);
    members[1] = gp_arbiter_join(a, "neighbour", &page, &bell);
    require(gp_arbiter_started(a, members[0], getpid()) == 0);
    return a;
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

static void look(struct gp_arbiter *a, const int members[2])
{
    const struct gp_board *b = a->board;
    struct gp_page *other = a->seats[members[1]].page;
    if (a->seats[members[0]].page)
        a->seats[members[0]].rang = true;
    gp_arbiter_step(a, 0);
    uint64_t before = b->members[members[1]].memory_used;
    require(before == MIB && other->memory_others == 0 && other->memory_limit == LIMIT);
    ask(a, members[1], GP_PAGE_TAKE, LIMIT);
    require(other->result == 1 && other->granted == LIMIT);
    ask(a, members[1], GP_PAGE_TAKE, LIMIT + 1);
    require(other->result == 0 && other->granted == LIMIT);
    ask(a, members[1], GP_PAGE_ENTER, 0);
    require(b->members[members[1]].fault == NULL);
    require(b->tenants[b->members[members[1]].tenant].usage.memory_used == MIB);
    sums(b, b->members[members[0]].tenant);
    require(b->holder >= -1 && b->holder < GP_BOARD_TENANTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[1 << 16];
    int members[2];
    struct gp_arbiter *a = start(members);
    struct gp_page *page = a->seats[members[0]].page;
    ask(a, members[1], GP_PAGE_TAKE, MIB);
    a->seats[members[1]].page->held = MIB;
    while (size >= 2 && a->seats[members[0]].page) {
        size_t begin = (size_t)data[0] * 4 % sizeof *page, bytes = (size_t)(data[1] & 0x7f) * 4;
        bool looks = data[1] & 0x80;
        data += 2, size -= 2;
        bytes = bytes > size ? size : bytes;
        bytes = bytes > sizeof *page - begin ? sizeof *page - begin : bytes;
        memcpy((char *)page + begin, data, bytes);
        data += bytes, size -= bytes;
        if (looks)
            look(a, members);
    }
    look(a, members);
    require(gp_board_describe(a->board, text, sizeof text) > 0);
    gp_arbiter_free(a);
    return 0;
}
