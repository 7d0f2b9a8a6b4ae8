/*
 * An arbiter between two workers, one of which writes what it likes into its page, and whose
 * limits the server changes meanwhile. The input is a list of writes: 1 byte where (in words of
 * 4), 1 byte how many words and whether the arbiter looks then, and the words. Instead of a write
 * (LIMITS) each byte of its words is a change of limits: whose, whether it is forced, how many
 * MiB; (RULES) of how the GPU is shared: the policy, and what the worker and its neighbour are; or
 * (TIME) so much time passes, as a power of two; (RING) the worker rings its bell so often before
 * the arbiter looks; or (CHARGE) one of them pays for time in the other's turns. Whatever there is in the page, the arbiter neither crashes nor hangs, and the neighbour's
 * memory and rights are what the server says.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "arbiter_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MIB (UINT64_C(1) << 20)
#define TOTAL (1024 * MIB)
#define HELD (8 * MIB) /* by the neighbour */
/* In the place of where: no write */
#define LIMITS 0xff
#define RULES 0xfe
#define TIME 0xfd
#define RING 0xfc
#define CHARGE 0xfb
#define POLICIES 7
/* More is no news. */
#define STEPS_MOST 16
#define CHANGES_MOST 4

enum who { LIAR, NEIGHBOUR, BOTH }; /* and at which seat */

/* The two workers, and what their tenants may have. */
struct game {
    struct gp_arbiter *a;
    uint64_t limits[BOTH];
    unsigned high_priority, gang; /* bits: of whom */
};

/* What was freed is not kept for long: that costs more than what is looked at. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=4";
}

static const char *const names[BOTH] = {"liar", "neighbour"};
static uint64_t now;

static int rings; /* of the liar's bell, that the arbiter is to hear */

static void require(bool holds)
{
    if (!holds)
        abort();
}

uint64_t gp_board_now(void)
{
    return now += 1000;
}

/* --- what the system does for an arbiter ------------------------------------------------- */

/* What is opened is counted. */
#define DESCRIPTOR 1000
static int open_now;

static int opened(void)
{
    open_now++;
    return DESCRIPTOR;
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms)
{
    (void)epoll, (void)timeout_ms;
    int count = rings < most ? rings : most;
    rings -= count;
    for (int i = 0; i < count; i++)
        events[i].data.u64 = (uint64_t)GP_ARBITER_BELL << 32 | LIAR;
    return count;
}

int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
    (void)epoll, (void)what, (void)fd, (void)event;
    return 0;
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *to, struct itimerspec *was);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *to, struct itimerspec *was)
{
    (void)fd, (void)flags, (void)to, (void)was;
    return 0;
}

int __wrap_epoll_create1(int flags);
int __wrap_epoll_create1(int flags)
{
    (void)flags;
    return opened();
}

int __wrap_timerfd_create(int clock, int flags);
int __wrap_timerfd_create(int clock, int flags)
{
    (void)clock, (void)flags;
    return opened();
}

/* A wake-up, or a descriptor of a worker's process. */
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    return number == SYS_pidfd_open ? opened() : 0;
}

int __wrap_close(int fd);
int __wrap_close(int fd)
{
    require(fd == DESCRIPTOR && open_now > 0);
    open_now--;
    return 0;
}

int gp_page_make(int *page_fd, int *bell_fd)
{
    *page_fd = opened();
    *bell_fd = opened();
    return 0;
}

int gp_page_map(int page_fd, struct gp_page **page)
{
    (void)page_fd;
    *page = calloc(1, GP_PAGE_BYTES);
    return *page ? 0 : -ENOMEM;
}

void gp_page_unmap(struct gp_page *page)
{
    free(page);
}

/* --- the game ---------------------------------------------------------------------------- */

static int command(struct gp_arbiter *a, const char *line)
{
    char answer[256];
    int none[2] = {-1, -1}, sent[2];
    require(gp_arbiter_command(a, line, none, answer, sizeof answer, sent) > 0);
    return atoi(answer);
}

static int set_limit(struct game *g, enum who who, uint64_t limit, bool forced)
{
    char line[128];
    snprintf(line, sizeof line, "tenant %s %llu 1 500 900 %u %d %u", names[who],
             (unsigned long long)limit, g->high_priority >> who & 1, forced, g->gang >> who & 1);
    int r = command(g->a, line);
    if (r == 0)
        g->limits[who] = limit;
    return r;
}

static void set_policy(struct game *g, unsigned policy)
{
    char line[64];
    snprintf(line, sizeof line, "gpu %u 20 90 1 1073741824", policy);
    require(command(g->a, line) == 0);
}

static void start(struct game *g)
{
    int page, bell;
    now = UINT64_C(1) << 40;
    *g = (struct game){0};
    require(gp_arbiter_new(-1, &g->a) == 0);
    set_policy(g, 6);
    for (enum who who = LIAR; who < BOTH; who++) {
        require(set_limit(g, who, 64 * MIB, false) == 0);
        require(gp_arbiter_join(g->a, names[who], &page, &bell) == (int)who);
    }
    require(gp_arbiter_started(g->a, LIAR, 2) == 0);
}

/* What is in use refuses a lower limit, unless that is forced: then nothing comes to it. */
static void change(struct game *g, uint8_t how)
{
    bool forced = how & 2;
    enum who who = how & 1 ? NEIGHBOUR : LIAR;
    uint64_t limit = (how >> 2) * MIB;
    int r = set_limit(g, who, limit, forced);
    require(r == 0 || (r == -EBUSY && !forced && limit));
    if (who == NEIGHBOUR)
        require((r == 0) == (forced || !limit || limit >= HELD));
}

static void change_rules(struct game *g, uint8_t how)
{
    set_policy(g, how % POLICIES);
    g->high_priority = how >> 3 & 3;
    g->gang = how >> 5 & 3;
    for (enum who who = LIAR; who < BOTH; who++)
        require(set_limit(g, who, g->limits[who], true) == 0);
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
    const struct member_slot *liar = &b->members[LIAR], *other = &b->members[NEIGHBOUR];
    struct gp_page *page = a->seats[NEIGHBOUR].page;
    uint64_t limit = g->limits[NEIGHBOUR] ? g->limits[NEIGHBOUR] : TOTAL;
    uint64_t most = limit > HELD ? limit : HELD;
    if (a->seats[LIAR].page)
        a->seats[LIAR].rang = true;
    gp_arbiter_step(a, 0);
    require(other->memory_used == HELD && page->memory_others == 0);
    require(page->memory_limit == limit);
    ask(a, NEIGHBOUR, GP_PAGE_TAKE, most);
    require(page->result == 1 && page->granted == most);
    ask(a, NEIGHBOUR, GP_PAGE_TAKE, most + 1);
    require(page->result == 0 && page->granted == most);
    ask(a, NEIGHBOUR, GP_PAGE_ENTER, 0);
    require(other->fault == NULL);
    require(b->tenants[other->tenant].usage.memory_used == HELD);
    sums(b, liar->tenant);
    require(b->holder >= -1 && b->holder < GP_BOARD_TENANTS);
}

static void change_each(struct game *g, void (*change_so)(struct game *, uint8_t),
                        const uint8_t *words, size_t bytes)
{
    for (size_t i = 0; i < bytes && i < CHANGES_MOST; i++)
        change_so(g, words[i]);
}

static void pass(struct game *g, uint8_t how)
{
    (void)g;
    now += UINT64_C(1) << how % 40;
}

/* What one of them is found at in the other's turns, up to all that a watchdog can say. */
static void charge(struct game *g, uint8_t how)
{
    char line[96];
    enum who who = how & 1 ? NEIGHBOUR : LIAR;
    unsigned long long ns = how >> 1 == 127 ? GP_BOARD_CHARGE_MOST : 1ull << (how >> 1) % 36;
    snprintf(line, sizeof line, "charge %s %llu %s", names[who], ns, names[!who]);
    require(command(g->a, line) == (ns > GP_BOARD_CHARGE_MOST ? -EINVAL : 0));
}

static void ring(struct game *g, uint8_t times)
{
    rings = times;
    gp_arbiter_step(g->a, 0);
    rings = 0;
}

static void (*const changes[])(struct game *, uint8_t) = {charge, ring, pass, change_rules, change};

/* The words of one step of the input: into the page from `begin` on, or what they change. */
static void step(struct game *g, uint8_t where, const uint8_t *words, size_t bytes)
{
    struct gp_page *page = g->a->seats[LIAR].page;
    size_t begin = (size_t)where * 4 % sizeof *page;
    if (where >= CHARGE)
        change_each(g, changes[where - CHARGE], words, bytes);
    else
        memcpy((char *)page + begin, words,
               bytes > sizeof *page - begin ? sizeof *page - begin : bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[1 << 18];
    struct game g;
    start(&g);
    ask(g.a, NEIGHBOUR, GP_PAGE_TAKE, HELD);
    g.a->seats[NEIGHBOUR].page->held = HELD;
    for (int i = 0; i < STEPS_MOST && size >= 2 && g.a->seats[LIAR].page; i++) {
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
    int turns = gp_board_describe_turns(g.a->board, size, text, sizeof text);
    require(turns > 0 && turns < (int)sizeof text);
    gp_arbiter_free(g.a);
    require(open_now == 0);
    return 0;
}
