/*
 * What a tenant feels whose client waits for each of its steps, beside one that always has work: how
 * long its steps take, of what they would with its share of the GPU at every moment. On the real
 * board, by a clock that only the test moves; the GPU runs one kernel after another and needs
 * 0.3 ms to change tenants, and workers submit 2 ms ahead.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "board_internal.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define TICK (20 * US)
#define CHANGE (300 * US)
#define AHEAD (2 * MS)
/* When a worker has seen that a turn's work is over it needs so long until it submits again. */
#define WAKES (160 * US)
#define WORKERS 4
#define STEPS 500000
#define QUEUE 4096

static uint64_t clock_ns;

uint64_t gp_board_now(void)
{
    return clock_ns;
}

struct worker {
    const char *name;
    struct gp_board_grant grant;
    uint64_t kernel;
    unsigned per_step;    /* kernels before its client waits; 0: it never does */
    unsigned starts_with; /* steps of one kernel before these, as programs have */
    uint64_t think;       /* from the end of a step to the next */
    bool absent;
    /* state */
    int member;
    unsigned submitted, done; /* of this step */
    uint64_t began, wake, queued, looks;
    unsigned started;
    bool busy, starts, waits;
    /* what came of it */
    uint64_t work, steps[STEPS];
    unsigned count;
};

static struct world {
    struct gp_board *board;
    struct worker worker[WORKERS];
    struct {
        int whose;
        uint64_t left;
    } queue[QUEUE];
    unsigned head, tail;
    int last;
    uint64_t changing;
    unsigned changes;
} w;

static void gpu_run(uint64_t ns)
{
    while (ns && w.head != w.tail) {
        int whose = w.queue[w.head % QUEUE].whose;
        struct worker *of = &w.worker[whose];
        if (whose != w.last) {
            w.last = whose;
            w.changing = CHANGE;
            w.changes++;
        }
        uint64_t *left = w.changing ? &w.changing : &w.queue[w.head % QUEUE].left;
        uint64_t part = *left < ns ? *left : ns;
        *left -= part;
        ns -= part;
        if (left == &w.changing)
            continue;
        of->work += part;
        of->queued -= part;
        if (*left == 0) {
            of->done++;
            w.head++;
        }
    }
}

/* Kernels of the step that it is at. */
static unsigned per_step(const struct worker *p)
{
    return p->per_step && p->started < p->starts_with ? 1 : p->per_step;
}

static void step_over(struct worker *p)
{
    p->started++;
    if (p->count < STEPS)
        p->steps[p->count++] = clock_ns - p->began;
    p->submitted = p->done = 0;
    p->wake = clock_ns + p->think;
}

static void worker_submit(int index)
{
    struct worker *p = &w.worker[index];
    bool ends = p->busy && gp_board_must_yield(w.board, p->member);
    bool ahead = gp_board_contended(w.board, p->member) || p->queued >= 50 * MS;
    if (clock_ns < p->looks || (ends && p->waits) || (!ends && p->queued >= AHEAD && ahead))
        return;
    if (!p->waits && p->submitted == 0)
        p->began = clock_ns;
    p->waits = !gp_board_enter(w.board, p->member);
    if (p->waits)
        return;
    p->busy = true;
    p->starts |= gp_board_fresh(w.board, p->member);
    w.queue[w.tail % QUEUE].whose = index;
    w.queue[w.tail++ % QUEUE].left = p->kernel;
    p->queued += p->kernel;
    p->submitted++;
}

static void worker_run(int index)
{
    struct worker *p = &w.worker[index];
    if (p->absent)
        return;
    if (p->starts && w.last == index && !w.changing) {
        p->starts = false;
        gp_board_started(w.board, p->member);
    }
    if (p->queued == 0 && p->busy) {
        p->busy = false;
        if (gp_board_must_yield(w.board, p->member))
            p->looks = clock_ns + WAKES;
        gp_board_idle(w.board, p->member, 0);
    }
    if (p->per_step && p->done == per_step(p))
        step_over(p);
    if (clock_ns < p->wake)
        return;
    for (unsigned before = ~0U; before != p->submitted;) {
        before = p->submitted;
        if (!p->per_step || p->submitted < per_step(p))
            worker_submit(index);
    }
}

/* The first second is not counted. */
static void simulate(uint64_t duration)
{
    const struct gp_board_gpu shares = {GP_POLICY_SHARE, 20, 90, 0, 0};
    clock_ns = 1000 * MS;
    w.last = -1;
    assert_int_equal(gp_board_new(&w.board), 0);
    assert_int_equal(gp_board_gpu_set(w.board, &shares), 0);
    for (int i = 0; i < WORKERS; i++) {
        struct worker *p = &w.worker[i];
        p->absent |= !p->name;
        if (p->absent)
            continue;
        assert_int_equal(gp_board_tenant_set(w.board, p->name, &p->grant), 0);
        p->member = gp_board_join(w.board, p->name);
        assert_true(p->member >= 0);
    }
    uint64_t from = clock_ns + 1000 * MS;
    for (uint64_t end = from + duration; clock_ns < end; clock_ns += TICK) {
        for (int i = 0; i < WORKERS; i++) {
            if (clock_ns == from)
                w.worker[i].count = w.worker[i].work = w.changes = 0;
            worker_run(i);
        }
        gpu_run(TICK);
    }
    gp_board_free(w.board);
}

static int by_length(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Of its steps, in parts of what one takes with its share of the GPU. */
static double of_fair(struct worker *p, unsigned percent)
{
    assert_in_range(p->count, 50, STEPS - 1);
    qsort(p->steps, p->count, sizeof p->steps[0], by_length);
    double fair = (double)(p->kernel * p->per_step) * 1000 / p->grant.share;
    return (double)p->steps[p->count * percent / 100] / fair;
}

static struct worker worker(const char *name, uint32_t share, uint64_t kernel)
{
    return (struct worker){
        .name = name, .grant = {.share = share, .ceiling = 1000}, .kernel = kernel};
}

static void check(unsigned ms, uint64_t kernel, uint64_t think, uint64_t other, double most)
{
    const uint64_t duration = 20000 * MS;
    memset(&w, 0, sizeof w);
    struct worker *serves = &w.worker[0], *trains = &w.worker[1];
    *serves = worker("serves", 250, kernel);
    serves->per_step = (unsigned)(ms * MS / kernel);
    serves->think = think;
    serves->starts_with = 20;
    *trains = worker("trains", 750, other);
    simulate(duration);
    double work = (double)serves->work, all = work + (double)trains->work;
    double p50 = of_fair(serves, 50), p99 = of_fair(serves, 99);
    print_message("    %2u ms, beside %.1f, thinks %.2f: p50 %.2f p99 %.2f of fair, share %.4f, "
                  "sum %.4f, %u changes/s\n",
                  ms, (double)other / MS, (double)think / MS, p50, p99, work / all,
                  all / (double)duration, (unsigned)(w.changes * 1000 * MS / duration));
    if (most == 0)
        return;
    assert_true(p99 <= most);
    /* a pause within its turn is its own */
    assert_true(work / all >= 0.245 - 0.25 * (double)think / (double)(ms * MS));
    assert_true(work / all <= 0.255);
    assert_true(all / (double)duration >= 0.95);
    /* what one turn has room for has one */
    if (ms == 10)
        assert_true(w.changes <= 2.5 * serves->count);
}

/* Kernels of 0.3 and of 3 ms beside it. */
static void steps_take_little_more_than_their_fair_time(void **state)
{
    (void)state;
    static const unsigned lengths[] = {4, 10, 20, 40};
    for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (uint64_t other = 300 * US; other <= 3 * MS; other *= 10)
            for (uint64_t think = 20 * US; think <= 500 * US; think *= 5)
                check(lengths[i], 200 * US, think, other, 1.5);
}

/* Both wait: each has its part of the round. */
static void two_that_wait_have_their_parts(void **state)
{
    (void)state;
    memset(&w, 0, sizeof w);
    struct worker *one = &w.worker[0], *other = &w.worker[1];
    *one = worker("one", 250, 200 * US);
    *other = worker("other", 750, 300 * US);
    one->per_step = 50;
    other->per_step = 100;
    one->think = other->think = 100 * US;
    simulate(20000 * MS);
    double work = (double)one->work, all = work + (double)other->work;
    double p99 = of_fair(one, 99), its = of_fair(other, 99);
    print_message("    steps of 10 and of 30 ms: p99 %.2f and %.2f of fair, share %.4f, sum %.4f\n",
                  p99, its, work / all, all / (20000.0 * MS));
    assert_true(p99 <= 1.5 && its <= 1.5);
    assert_true(work / all >= 0.245 && work / all <= 0.255);
    assert_true(all / (20000.0 * MS) >= 0.95);
}

/* Of tenants, in a second. */
static void check_changes(unsigned least, unsigned most)
{
    simulate(20000 * MS);
    print_message("    %u changes/s\n", w.changes / 20);
    assert_in_range(w.changes / 20, least, most);
}

static void nobody_waits_and_turns_are_long(void **state)
{
    (void)state;
    memset(&w, 0, sizeof w);
    w.worker[0] = worker("one", 250, 300 * US);
    w.worker[1] = worker("other", 750, 300 * US);
    check_changes(20, 25);
}

/* A round with room for a step of a small share is long: others take turns within it. */
static void a_small_share_makes_no_turn_long(void **state)
{
    (void)state;
    memset(&w, 0, sizeof w);
    w.worker[0] = worker("small", 10, 200 * US);
    w.worker[0].per_step = 50;
    w.worker[1] = worker("one", 490, 300 * US);
    w.worker[2] = worker("other", 500, 300 * US);
    check_changes(40, 62);
}

/* Not held to anything: changes cost too much for turns that are as short. */
static void shorter_steps_take_longer(void **state)
{
    (void)state;
    for (unsigned ms = 1; ms <= 3; ms++)
        check(ms, 200 * US, 100 * US, 300 * US, 0);
}

/* Whatever its steps look like, it gains no time, and others lose none but for changes. */
static void steps_that_look_short_gain_nothing(void **state)
{
    (void)state;
    static const uint64_t thinks[] = {0, 20 * US, 60 * US, 900 * US, 1500 * US, 5 * MS};
    static const uint32_t shares[] = {100, 250, 500, 750};
    const uint64_t duration = 10000 * MS;
    for (unsigned k = 0; k < sizeof shares / sizeof shares[0]; k++)
        for (unsigned i = 0; i < sizeof thinks / sizeof thinks[0]; i++) {
            memset(&w, 0, sizeof w);
            struct worker *hostile = &w.worker[0], *other = &w.worker[1];
            *hostile = worker("hostile", shares[k], 20 * US);
            hostile->per_step = 1;
            hostile->think = thinks[i];
            *other = worker("other", 1000 - shares[k], 300 * US);
            simulate(duration);
            double share = shares[k] / 1000.0, has = (double)hostile->work / (double)duration,
                   left = (double)other->work / (double)duration;
            print_message("    of %.2f, thinks %.2f ms: has %.4f, the other %.4f, %u changes/s\n",
                          share, (double)thinks[i] / MS, has, left,
                          (unsigned)(w.changes * 1000 * MS / duration));
            assert_true(has <= 1.02 * share);
            assert_true(left >= 0.95 * (1 - share));
            assert_true(w.changes <= 2 * duration / (16 * MS));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_take_little_more_than_their_fair_time),
        cmocka_unit_test(two_that_wait_have_their_parts),
        cmocka_unit_test(nobody_waits_and_turns_are_long),
        cmocka_unit_test(a_small_share_makes_no_turn_long),
        cmocka_unit_test(shorter_steps_take_longer),
        cmocka_unit_test(steps_that_look_short_gain_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
