/*
 * A job on two GPUs whose every step ends with what needs both of them at once, beside another
 * tenant on each: two real boards, two simulated GPUs, and a clock that only the test moves. What
 * is counted is steps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "board_internal.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define TICK (20 * US)
#define CARDS 2
/* A job's step on each card: kernels, then a collective, which runs while it runs on all cards,
 * and keeps its card until then. */
#define KERNELS 4
#define STEP (KERNELS + 1)
#define COLLECTIVE (400 * US)
#define THINK (50 * US)
/* How much a worker submits ahead, and what a change of tenants takes. */
#define AHEAD 2
#define CHANGE (200 * US)
#define QUEUE 16

enum who { JOB, NEIGHBOUR, ACTORS };

static uint64_t clock_ns;

uint64_t gp_board_now(void)
{
    return clock_ns;
}

struct item {
    enum who who;
    bool collective;
    uint64_t left;
};

struct card {
    struct gp_board *board;
    int member[ACTORS];
    bool busy[ACTORS];
    uint64_t worked[ACTORS];
    unsigned queued[ACTORS];
    struct item queue[QUEUE];
    unsigned head, tail, submitted, done; /* the last two: of the job's step */
    enum who last;
    uint64_t changing, kernel[ACTORS];
};

static struct item *front(struct card *c)
{
    return c->head == c->tail ? NULL : &c->queue[c->head % QUEUE];
}

static void card_open(struct card *c, const struct gp_board_grant grants[ACTORS],
                      const char *neighbour)
{
    static const struct gp_board_gpu shares = {GP_POLICY_SHARE, 20, 90, 0, 0};
    const char *names[ACTORS] = {"red/job", neighbour};
    assert_int_equal(gp_board_new(&c->board), 0);
    assert_int_equal(gp_board_gpu_set(c->board, &shares), 0);
    for (int i = 0; i < ACTORS; i++) {
        assert_int_equal(gp_board_tenant_set(c->board, names[i], &grants[i]), 0);
        c->member[i] = gp_board_join(c->board, names[i]);
        assert_true(c->member[i] >= 0);
    }
}

static bool has_more(const struct card *c, enum who who)
{
    return c->kernel[who] && (who == NEIGHBOUR || c->submitted < STEP);
}

/* What a worker does at the gate. */
static void submit(struct card *c, enum who who)
{
    struct gp_board *b = c->board;
    if (c->busy[who] && !c->queued[who]) {
        c->busy[who] = false;
        gp_board_idle(b, c->member[who], 0);
    }
    while (has_more(c, who) && c->queued[who] < AHEAD) {
        if ((c->busy[who] && gp_board_must_yield(b, c->member[who])) ||
            !gp_board_enter(b, c->member[who]))
            return;
        if (gp_board_fresh(b, c->member[who]))
            gp_board_started(b, c->member[who]);
        c->busy[who] = true;
        bool collective = who == JOB && c->submitted == KERNELS;
        c->queue[c->tail++ % QUEUE] = (struct item){who, collective,
                                                    collective ? COLLECTIVE : c->kernel[who]};
        c->queued[who]++;
        c->submitted += who == JOB;
    }
}

static void advance(struct card *c, bool together)
{
    struct item *item = front(c);
    if (!item)
        return;
    if (item->who != c->last) {
        c->last = item->who;
        c->changing = CHANGE;
    }
    if (c->changing) {
        c->changing -= TICK;
        return;
    }
    c->worked[item->who] += TICK;
    if (item->collective && !together)
        return;
    item->left = item->left > TICK ? item->left - TICK : 0;
    if (item->left)
        return;
    c->queued[item->who]--;
    c->done += item->who == JOB;
    c->head++;
}

/* Steps of the job within so long; what each has worked stays in the cards. */
static unsigned steps_within(struct card cards[CARDS], uint64_t duration)
{
    unsigned steps = 0;
    uint64_t wake = 0;
    for (uint64_t end = clock_ns + duration; clock_ns < end; clock_ns += TICK) {
        bool together = true, over = true;
        for (int i = 0; i < CARDS; i++) {
            if (clock_ns >= wake)
                submit(&cards[i], JOB);
            submit(&cards[i], NEIGHBOUR);
            const struct item *item = front(&cards[i]);
            together &= item && item->collective && cards[i].last == JOB && !cards[i].changing;
        }
        for (int i = 0; i < CARDS; i++) {
            advance(&cards[i], together);
            over &= cards[i].done == STEP;
        }
        if (!over)
            continue;
        for (int i = 0; i < CARDS; i++)
            cards[i].submitted = cards[i].done = 0;
        wake = clock_ns + THINK;
        steps++;
    }
    return steps;
}

/* The job beside neighbours with kernels of these lengths (0: they do nothing) for ten seconds. */
static unsigned run(struct card cards[CARDS], bool gang, uint64_t one, uint64_t other,
                    uint32_t share)
{
    struct gp_board_grant grants[ACTORS] = {
        {.weight = 1, .share = share, .ceiling = 1000, .gang = gang},
        {.weight = 1, .share = 1000 - share, .ceiling = 1000}};
    for (int i = 0; i < CARDS; i++) {
        cards[i] = (struct card){.last = ACTORS, .kernel = {MS, i == 0 ? one : other}};
        card_open(&cards[i], grants, i == 0 ? "blue/x" : "yellow/y");
    }
    clock_ns = 1000 * MS;
    return steps_within(cards, 10000 * MS);
}

static void close_all(struct card cards[CARDS])
{
    for (int i = 0; i < CARDS; i++)
        gp_board_free(cards[i].board);
}

static double job_part(const struct card *c)
{
    return (double)c->worked[JOB] / (double)(c->worked[JOB] + c->worked[NEIGHBOUR]);
}

static unsigned counted(const char *what, bool gang, uint64_t one, uint64_t other, uint32_t share)
{
    struct card cards[CARDS];
    unsigned steps = run(cards, gang, one, other, share);
    print_message("    %-40s %5u steps, %.3f and %.3f of the cards\n", what, steps,
                  job_part(&cards[0]), job_part(&cards[1]));
    for (int i = 0; i < CARDS && gang && one; i++) /* shares are as exact as ever */
        assert_true(job_part(&cards[i]) * 1000 > share * 0.97 &&
                    job_part(&cards[i]) * 1000 < share * 1.03);
    close_all(cards);
    return steps;
}

static void a_gang_has_its_turns_on_both_cards_at_once(void **state)
{
    (void)state;
    unsigned alone = counted("alone", true, 0, 0, 500);
    unsigned apart = counted("half of each, each card for itself", false, 700 * US, 1300 * US, 500);
    unsigned gang = counted("half of each, as a gang", true, 700 * US, 1300 * US, 500);
    assert_true(gang * 100 >= alone * 45);
    assert_true(gang * 10 > apart * 11);
    gang = counted("a quarter of each, as a gang", true, 300 * US, 2 * MS, 250);
    assert_true(gang * 1000 >= alone * 210);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gang_has_its_turns_on_both_cards_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
