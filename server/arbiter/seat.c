#include "seat.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "seat_internal.h"

/* An arbiter that does not answer for so long is not there. */
#define LOST_MS 1000
/* One that waits asks again after so long, should an answer have been missed. */
#define AGAIN_NS UINT64_C(10000000)

int gp_seat_open(int page_fd, int bell_fd, struct gp_seat **seat)
{
    struct gp_seat *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    int r = gp_page_map(page_fd, &s->page);
    if (r == 0 && GP_PAGE_LOAD(s->page->version) != GP_PAGE_VERSION) {
        gp_page_unmap(s->page);
        r = -EPROTO;
    }
    if (r != 0) {
        free(s);
        return r;
    }
    if (s->page->sight == GP_PAGE_UNSAID)
        GP_PAGE_STORE(s->page->sight, GP_PAGE_SEES);
    s->page_fd = page_fd;
    s->bell_fd = bell_fd;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->memory_lock, NULL);
    *seat = s;
    return 0;
}

/* --- requests ------------------------------------------------------------------------- */

/* A bell that has been rung too often is heard all the same. */
void gp_seat_ring(const struct gp_seat *s)
{
    const uint64_t one = 1;
    ssize_t ignored = write(s->bell_fd, &one, sizeof one);
    (void)ignored;
}

static void sleep_on(uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

/* Whether the last request has been answered, now or within `most_ms`. */
static bool answered(struct gp_seat *s, uint64_t most_ms)
{
    struct gp_page *p = s->page;
    uint32_t number = p->asked;
    uint64_t end = gp_board_now() + most_ms * 1000000u;
    for (;;) {
        uint32_t have = GP_PAGE_LOAD(p->answered);
        uint64_t now = gp_board_now();
        if (have == number)
            return true;
        if (now >= end)
            return false;
        sleep_on(&p->answered, have, end - now);
    }
}

enum gp_seat_answer gp_seat_ask(struct gp_seat *s, enum gp_page_op op, uint64_t a, uint64_t b,
                                uint32_t *result)
{
    struct gp_page *p = s->page;
    enum gp_seat_answer answer = GP_SEAT_UNSENT;
    pthread_mutex_lock(&s->lock);
    if (!s->lost || answered(s, 0)) {
        p->op = op;
        p->a = a;
        p->b = b;
        GP_PAGE_STORE(p->asked, p->asked + 1);
        gp_seat_ring(s);
        answer = answered(s, LOST_MS) ? GP_SEAT_ANSWERED : GP_SEAT_LATE;
    }
    s->lost = answer != GP_SEAT_ANSWERED;
    *result = p->result;
    pthread_mutex_unlock(&s->lock);
    return answer;
}

/* True: it was answered. */
static bool call(struct gp_seat *s, enum gp_page_op op, uint32_t *result)
{
    return gp_seat_ask(s, op, 0, 0, result) == GP_SEAT_ANSWERED;
}

void gp_seat_leave(struct gp_seat *s)
{
    uint32_t unused;
    call(s, GP_PAGE_LEAVE, &unused);
}

void gp_seat_close(struct gp_seat *s)
{
    if (!s)
        return;
    gp_page_unmap(s->page);
    close(s->page_fd);
    close(s->bell_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->memory_lock);
    free(s);
}

/* --- turns -------------------------------------------------------------------------------- */

static bool is_busy(const struct gp_page *p)
{
    return p->runs & 1;
}

static bool may_go(const struct gp_page *p, uint64_t now)
{
    uint32_t flags = GP_PAGE_LOAD(p->flags);
    if (flags & GP_PAGE_OPEN)
        return true;
    return (flags & (GP_PAGE_HOLDS | GP_PAGE_YIELD)) == GP_PAGE_HOLDS &&
           now < GP_PAGE_LOAD(p->check_at);
}

static void begin(struct gp_page *p, uint64_t now)
{
    if (is_busy(p))
        return;
    p->began = now;
    GP_PAGE_STORE(p->runs, p->runs + 1);
}

static void tell(const struct gp_seat *s)
{
    if (GP_PAGE_LOAD(s->page->flags) & (GP_PAGE_TELL | GP_PAGE_CONTENDED | GP_PAGE_YIELD))
        gp_seat_ring(s);
}

/* In a turn that is still this worker's it may begin, unless that is ended while it does. */
static bool enter_at_once(struct gp_seat *s, uint64_t now)
{
    struct gp_page *p = s->page;
    if (!may_go(p, now))
        return false;
    if (is_busy(p))
        return true;
    begin(p, now);
    GP_PAGE_FENCE();
    bool open = may_go(p, now);
    if (!open) {
        p->ended = now;
        GP_PAGE_STORE(p->runs, p->runs + 1);
        GP_PAGE_FENCE();
    }
    tell(s);
    return open;
}

bool gp_seat_enter(struct gp_seat *s)
{
    struct gp_page *p = s->page;
    uint32_t mine;
    uint64_t now = gp_board_now();
    s->seen = GP_PAGE_LOAD(p->epoch);
    if (enter_at_once(s, now))
        return true;
    if (GP_PAGE_LOAD(p->flags) & GP_PAGE_WAITS && now - s->asked_at < AGAIN_NS &&
        !(GP_PAGE_LOAD(p->flags) & GP_PAGE_HOLDS))
        return false;
    s->asked_at = now;
    if (!call(s, GP_PAGE_ENTER, &mine)) {
        mine = 1; /* the hardware's slices alone, until there is an arbiter again */
        gp_seat_lost_sight(s);
    }
    if (mine)
        begin(p, gp_board_now());
    return mine;
}

bool gp_seat_waits(const struct gp_seat *s)
{
    return GP_PAGE_LOAD(s->page->flags) & GP_PAGE_WAITS;
}

bool gp_seat_fresh(struct gp_seat *s)
{
    const uint32_t fresh = GP_PAGE_HOLDS | GP_PAGE_FRESH;
    return (GP_PAGE_LOAD(s->page->flags) & fresh) == fresh;
}

void gp_seat_started(struct gp_seat *s)
{
    uint32_t unused;
    if (gp_seat_fresh(s))
        call(s, GP_PAGE_STARTED, &unused);
}

bool gp_seat_must_yield(struct gp_seat *s)
{
    uint32_t flags = GP_PAGE_LOAD(s->page->flags);
    if (!is_busy(s->page) || flags & (GP_PAGE_BESIDE | GP_PAGE_OPEN) || s->lost)
        return false;
    return (flags & (GP_PAGE_HOLDS | GP_PAGE_YIELD)) != GP_PAGE_HOLDS;
}

bool gp_seat_contended(struct gp_seat *s)
{
    uint32_t flags = GP_PAGE_LOAD(s->page->flags);
    return (flags & (GP_PAGE_CONTENDED | GP_PAGE_BESIDE)) == GP_PAGE_CONTENDED;
}

bool gp_seat_goes_on(struct gp_seat *s)
{
    return may_go(s->page, gp_board_now()) && !gp_seat_contended(s);
}

void gp_seat_collective(struct gp_seat *s, uint32_t communicator, uint32_t number)
{
    GP_PAGE_STORE(s->page->collective, GP_PAGE_COLLECTIVE(communicator, number));
}

bool gp_seat_behind(const struct gp_seat *s)
{
    uint64_t mine = s->page->collective, most = GP_PAGE_LOAD(s->page->collective_most);
    return mine >> 32 == most >> 32 && (int32_t)((uint32_t)most - (uint32_t)mine) > 0;
}

void gp_seat_lost_sight(struct gp_seat *s)
{
    GP_PAGE_STORE(s->page->sight, GP_PAGE_LOST);
}

void gp_seat_idle(struct gp_seat *s, uint64_t idle_ns)
{
    struct gp_page *p = s->page;
    uint64_t now = gp_board_now(), ended = idle_ns < now ? now - idle_ns : now;
    if (!is_busy(p))
        return;
    if (ended < p->began)
        ended = p->began;
    p->ended = ended;
    GP_PAGE_STORE(p->busy_ns, p->busy_ns + (ended - p->began));
    GP_PAGE_STORE(p->runs, p->runs + 1);
    GP_PAGE_FENCE();
    tell(s);
}

void gp_seat_wait(struct gp_seat *s, int64_t timeout_us)
{
    if (timeout_us > 0)
        sleep_on(&s->page->epoch, s->seen, (uint64_t)timeout_us * 1000);
}

/* --- copies and counts ---------------------------------------------------------------------- */

bool gp_seat_copy(struct gp_seat *s, enum gp_board_way way, uint64_t bytes)
{
    struct gp_page *p = s->page;
    uint32_t go;
    enum gp_seat_answer answer = GP_SEAT_UNSENT;
    if (gp_board_now() >= GP_PAGE_LOAD(p->alone_until[way]))
        answer = gp_seat_ask(s, GP_PAGE_COPY, (uint64_t)way, bytes, &go);
    if (answer == GP_SEAT_UNSENT)
        __atomic_fetch_add(&p->copied[way], bytes, __ATOMIC_RELAXED);
    return answer != GP_SEAT_ANSWERED || go;
}

void gp_seat_count(struct gp_seat *s, uint64_t launches, uint64_t bytes)
{
    struct gp_page *p = s->page;
    GP_PAGE_STORE(p->launches, p->launches + launches);
    if (bytes)
        GP_PAGE_STORE(p->bytes_copied, p->bytes_copied + bytes);
}

void gp_seat_host_set(struct gp_seat *s, uint64_t bytes)
{
    GP_PAGE_STORE(s->page->host_used, bytes);
}

uint64_t gp_seat_slice_us(struct gp_seat *s)
{
    return GP_PAGE_LOAD(s->page->slice_us);
}
