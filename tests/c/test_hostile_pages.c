/*
 * Workers that have been taken over: native code that may write what it likes into its page,
 * ring its bell, hold its turn and keep silent. An honest neighbour beside each of them keeps
 * its memory, its share of the time within the bounds of docs/sharing.md, and its life; what no
 * worker of ours does is named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arbiter_process.h"
#include "page.h"

static struct shared {
    uint64_t worked; /* ns, by the honest one */
    int turns, stop;
    int failed; /* what the honest one did not get though it was its right */
} *shared;

static int begin(void **state)
{
    memset(shared, 0, sizeof *shared);
    return arbiter_begin(state);
}

/* Always work in hand, memory taken and given back all the time. */
static int honest(struct gp_seat *seat, int page_fd, int bell_fd)
{
    (void)page_fd, (void)bell_fd;
    while (!shared->stop) {
        if (!gp_seat_memory_take(seat, 64 * MIB))
            shared->failed++;
        gp_seat_memory_give(seat, 64 * MIB);
        while (!gp_seat_enter(seat) && !shared->stop)
            gp_seat_wait(seat, 1000);
        gp_seat_started(seat);
        shared->turns++;
        do {
            uint64_t from = gp_board_now();
            while (gp_board_now() - from < 300000)
                ;
            shared->worked += gp_board_now() - from;
        } while (!shared->stop && !gp_seat_must_yield(seat) && gp_seat_enter(seat));
        gp_seat_idle(seat, 0);
    }
    gp_seat_leave(seat);
    return 0;
}

static struct gp_page *map(int page_fd)
{
    struct gp_page *page;
    return gp_page_map(page_fd, &page) == 0 ? page : NULL;
}

static void ring(int bell_fd)
{
    const uint64_t one = 1;
    ssize_t ignored = write(bell_fd, &one, sizeof one);
    (void)ignored;
}

static uint64_t random_next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return *seed >> 16;
}

/* --- attackers ---------------------------------------------------------------------------- */

static int garbage(struct gp_seat *seat, int page_fd, int bell_fd)
{
    uint64_t seed = (uint64_t)getpid(), *words = (uint64_t *)map(page_fd);
    (void)seat;
    while (!shared->stop) {
        for (int i = 0; i < 64; i++)
            words[random_next(&seed) % (GP_PAGE_BYTES / 8)] = random_next(&seed) << (seed % 48);
        ring(bell_fd);
    }
    return 0;
}

/* What is checked is changed before it is used. */
static void *flip(void *at)
{
    struct gp_page *page = at;
    while (!shared->stop) {
        page->op = GP_PAGE_COPY;
        page->a = 1;
        page->a = UINT64_MAX;
        page->op = GP_PAGE_TAKE;
        page->held ^= UINT64_MAX >> 8;
        page->a = 0;
        page->runs ^= 1;
    }
    return NULL;
}

static int flips(struct gp_seat *seat, int page_fd, int bell_fd)
{
    struct gp_page *page = map(page_fd);
    pthread_t thread;
    (void)seat;
    if (pthread_create(&thread, NULL, flip, page) != 0)
        return 1;
    while (!shared->stop) {
        __atomic_fetch_add(&page->asked, 1, __ATOMIC_SEQ_CST);
        ring(bell_fd);
        sched_yield();
    }
    return 0;
}

/* Works all the time, and says that it does not; takes each turn and never gives it back. */
static int claims_nothing(struct gp_seat *seat, int page_fd, int bell_fd)
{
    struct gp_page *page = map(page_fd);
    (void)bell_fd;
    while (!shared->stop) {
        while (!gp_seat_enter(seat))
            gp_seat_wait(seat, 1000);
        page->busy_ns = 0;
        page->began = UINT64_MAX;
        sleep_ms(10);
    }
    return 0;
}

/* Grants itself everything, claims it, and asks for more than there is. */
static int grants_itself(struct gp_seat *seat, int page_fd, int bell_fd)
{
    struct gp_page *page = map(page_fd);
    (void)seat;
    while (!shared->stop) {
        page->granted = page->claims = GP_PAGE_MEMORY_MOST;
        page->memory_limit = GP_PAGE_MEMORY_MOST;
        page->members = 0;
        page->op = GP_PAGE_TAKE;
        page->a = shared->turns % 2 ? 60 * MIB : 65 * MIB;
        __atomic_fetch_add(&page->asked, 1, __ATOMIC_SEQ_CST);
        ring(bell_fd);
        sleep_ms(1);
    }
    return 0;
}

/* Says that it wants the turn, and does not begin it. */
static int never_begins(struct gp_seat *seat, int page_fd, int bell_fd)
{
    struct gp_page *page = map(page_fd);
    (void)seat;
    while (!shared->stop) {
        page->op = GP_PAGE_ENTER;
        __atomic_fetch_add(&page->asked, 1, __ATOMIC_SEQ_CST);
        ring(bell_fd);
        sleep_ms(1);
    }
    return 0;
}

/* The bell is the arbiter's too: what makes a reader of it wait must not make that wait. */
static int breaks_the_bell(struct gp_seat *seat, int page_fd, int bell_fd)
{
    uint64_t most = UINT64_MAX - 1;
    (void)seat, (void)page_fd;
    if (ftruncate(page_fd, 0) == 0) /* it is sealed */
        return 1;
    fcntl(bell_fd, F_SETFL, 0); /* blocking */
    while (!shared->stop) {
        ssize_t n = write(bell_fd, &most, sizeof most);
        n += read(bell_fd, &most, sizeof most);
        if (n < 0)
            return 2;
        most = UINT64_MAX - 1;
    }
    return 0;
}

/* --- beside an honest one ------------------------------------------------------------------- */

/* Its weight gives the honest one 2 of 3 parts. This machine may be at work elsewhere, too. */
#define FAIR 0.4
/* Where it is, it is no witness: who is not let run asks for no turn, and a liar has it for 2 s. */
#define TRIES 5

/* ns that the process was ready and had no processor. */
static uint64_t delay_of(pid_t pid)
{
    char path[64];
    unsigned long long ran, delayed = 0;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%llu %llu", &ran, &delayed) != 2)
        delayed = 0;
    if (file)
        fclose(file);
    return delayed;
}

/* What the honest one, of weight 2 beside 1, has of `ms`, and how much of them it or the arbiter had to
 * wait for a processor; in the end both are gone. */
static double share_beside(void **state, int (*attacker)(struct gp_seat *, int, int), unsigned ms,
                           double *delayed)
{
    pid_t arbiter = ((struct arbiter_process *)*state)->pid;
    memset(shared, 0, sizeof *shared);
    struct worker good = worker_start(*state, "b", honest);
    AWAIT(shared->turns > 0);
    struct worker bad = worker_start(*state, "a", attacker);
    sleep_ms(20);
    uint64_t from = gp_board_now(), before = shared->worked;
    uint64_t delay = delay_of(good.pid) + delay_of(arbiter);
    sleep_ms(ms);
    double took = (double)(gp_board_now() - from), share = (double)(shared->worked - before) / took;
    *delayed = (double)(delay_of(good.pid) + delay_of(arbiter) - delay) / took;
    print_message("    the neighbour had %.3f of %u ms, %.3f delayed\n", share, ms, *delayed);
    shared->stop = 1;
    assert_int_equal(worker_end(&good), 0);
    assert_int_equal(shared->failed, 0);
    worker_kill(&bad);
    AWAIT(arbiter_number(*state, "\"a\"", "members") == 0);
    assert_int_equal(arbiter_number(*state, "\"a\"", "memory_used"), 0);
    assert_int_equal(arbiter_number(*state, "\"b\"", "memory_used"), 0);
    assert_int_equal(arbiter_number(*state, "\"b\"", "memory_denied"), 0);
    return share;
}

static void expect_fair(void **state, int (*attacker)(struct gp_seat *, int, int), unsigned ms)
{
    double share = 0, delayed = 1;
    for (int i = 0; i < TRIES && share <= FAIR && delayed > 0.05; i++)
        share = share_beside(state, attacker, ms, &delayed);
    assert_true(share > FAIR);
}

static void bytes_of_all_kinds(void **state)
{
    struct worker bad = worker_start(*state, "a", garbage);
    AWAIT(arbiter_says(*state, "its page") ||
          arbiter_says(*state, "it asks for what there is not") ||
          arbiter_says(*state, "it says that it has more") || arbiter_says(*state, "it charges"));
    worker_kill(&bad);
    expect_fair(state, garbage, 700);
}

static void values_that_change_between_two_looks(void **state)
{
    expect_fair(state, flips, 700);
}

/* It is charged by the arbiter's clock: after at most 2 s of a turn that is not its own the
 * neighbour has what was its right. */
static void a_turn_that_is_never_given_back(void **state)
{
    expect_fair(state, claims_nothing, 5000);
    assert_int_equal(arbiter_say(*state, "tenant a 67108864 1 500 1000 0"), 0);
}

/* The arbiter counts what it gave, whatever the page says that it did. */
static void a_grant_of_ones_own(void **state)
{
    struct worker bad = worker_start(*state, "a", grants_itself);
    AWAIT(arbiter_number(*state, "\"a\"", "memory_denied") > 0);
    shared->turns = 1;
    for (int i = 0; i < 200; i++) {
        assert_true(arbiter_number(*state, "\"processes\"", "memory_given") <=
                    (long long)(64 * MIB));
        assert_int_equal(arbiter_number(*state, "\"a\"", "memory_used"), 0);
    }
    worker_kill(&bad);
    expect_fair(state, grants_itself, 300);
}

static void a_turn_that_is_never_begun(void **state)
{
    expect_fair(state, never_begins, 1500);
}

static void a_bell_that_blocks(void **state)
{
    expect_fair(state, breaks_the_bell, 700);
}

static void a_turn_kept_is_counted(void **state)
{
    struct worker good = worker_start(*state, "b", honest);
    AWAIT(shared->turns > 0);
    struct worker bad = worker_start(*state, "a", claims_nothing);
    AWAIT(arbiter_number(*state, "\"pid\"", "overdue") > 0 ||
          arbiter_number(*state, "\"tenant\": \"a\"", "overdue") > 0);
    shared->stop = 1;
    assert_int_equal(worker_end(&good), 0);
    worker_kill(&bad);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
#define HOSTILE_TEST(name) cmocka_unit_test_setup_teardown(name, begin, arbiter_end)
    const struct CMUnitTest tests[] = {
        HOSTILE_TEST(bytes_of_all_kinds),
        HOSTILE_TEST(values_that_change_between_two_looks),
        HOSTILE_TEST(a_turn_that_is_never_given_back),
        HOSTILE_TEST(a_turn_that_is_never_begun),
        HOSTILE_TEST(a_grant_of_ones_own),
        HOSTILE_TEST(a_bell_that_blocks),
        HOSTILE_TEST(a_turn_kept_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
