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
struct trial {
    const char *what;
    uint32_t share;
    bool gang, neighbours_gang; /* the neighbour on both cards is one tenant */
    uint64_t kernel[CARDS];
    double exact; /* of the share; 0: not asked */
};

static double job_part(const struct card *c)
{
    return (double)c->worked[JOB] / (double)(c->worked[JOB] + c->worked[NEIGHBOUR]);
}

/* The job's steps. */
static unsigned run(const struct trial *t)
{
    static const char *const names[CARDS] = {"blue/x", "yellow/y"};
    struct card cards[CARDS];
    const struct gp_board_grant grants[ACTORS] = {
        {.weight = 1, .share = t->share, .ceiling = 1000, .gang = t->gang},
        {.weight = 1, .share = 1000 - t->share, .ceiling = 1000, .gang = t->neighbours_gang}};
    for (int i = 0; i < CARDS; i++) {
        cards[i] = (struct card){.last = ACTORS, .kernel = {MS, t->kernel[i]}};
        card_open(&cards[i], grants, names[t->neighbours_gang ? 0 : i]);
    }
    clock_ns = 1000 * MS;
    unsigned steps = steps_within(cards, 10000 * MS);
    print_message("    %-40s %5u steps, %.3f and %.3f of the cards\n", t->what, steps,
                  job_part(&cards[0]), job_part(&cards[1]));
    for (int i = 0; i < CARDS; i++) {
        double off = job_part(&cards[i]) * 1000 / t->share - 1;
        assert_true(t->exact == 0 || (off < t->exact && off > -t->exact));
        gp_board_free(cards[i].board);
    }
    return steps;
}

static void a_gang_has_its_turns_on_both_cards_at_once(void **state)
{
    (void)state;
    unsigned alone = run(&(struct trial){.what = "alone", .share = 500, .gang = true});
    unsigned apart = run(&(struct trial){.what = "half of each, each card for itself",
                                         .share = 500,
                                         .kernel = {700 * US, 1300 * US}});
    unsigned gang = run(&(struct trial){.what = "half of each, as a gang",
                                        .share = 500,
                                        .gang = true,
                                        .kernel = {700 * US, 1300 * US},
                                        .exact = 0.02});
    assert_true(gang * 100 >= alone * 45);
    assert_true(gang > 2 * apart);
    gang = run(&(struct trial){.what = "a quarter of each",
                               .share = 250,
                               .gang = true,
                               .kernel = {300 * US, 2 * MS},
                               .exact = 0.02});
    assert_true(gang * 1000 >= alone * 210);
    gang = run(&(struct trial){.what = "a tenth of each",
                               .share = 100,
                               .gang = true,
                               .kernel = {MS, 300 * US},
                               .exact = 0.03});
    assert_true(gang * 1000 >= alone * 80);
}

static void two_gangs_have_theirs_one_behind_the_other(void **state)
{
    (void)state;
    unsigned alone = run(&(struct trial){.what = "alone", .share = 500, .gang = true});
    unsigned gang = run(&(struct trial){.what = "half of each, beside another gang",
                                        .share = 500,
                                        .gang = true,
                                        .neighbours_gang = true,
                                        .kernel = {700 * US, 1300 * US},
                                        .exact = 0.06});
    assert_true(gang * 100 >= alone * 45);
}

/* --- a gang that has nothing to do when its window ends ------------------------------------- */

struct ended {
    struct gp_board *board;
    int gang, other;
};

/* It was at work until shortly before, and another one waits; whether it may begin again `late`
 * after the end. */
static bool begins_after_its_window(struct ended *e, bool behind, uint64_t late)
{
    static const struct gp_board_gpu shares = {GP_POLICY_SHARE, 20, 90, 0, 0};
    const struct gp_board_grant gang = {.weight = 1, .share = 500, .ceiling = 1000, .gang = 1},
                                other = {.weight = 1, .share = 500, .ceiling = 1000};
    assert_int_equal(gp_board_new(&e->board), 0);
    assert_int_equal(gp_board_gpu_set(e->board, &shares), 0);
    assert_int_equal(gp_board_tenant_set(e->board, "red/job", &gang), 0);
    assert_int_equal(gp_board_tenant_set(e->board, "blue", &other), 0);
    e->gang = gp_board_join(e->board, "red/job");
    e->other = gp_board_join(e->board, "blue");
    uint64_t begin = 1020 * MS, end = begin + 30 * MS; /* of half of a period of 60 ms */
    clock_ns = begin - MS;
    assert_true(gp_board_enter(e->board, e->other));
    assert_false(gp_board_enter(e->board, e->gang));
    clock_ns = begin;
    gp_board_idle(e->board, e->other, 0);
    clock_ns = begin + MS;
    assert_true(gp_board_enter(e->board, e->gang));
    assert_false(gp_board_enter(e->board, e->other));
    for (; clock_ns < end - 100 * US; clock_ns += 100 * US)
        gp_board_turn(e->board, clock_ns);
    gp_board_idle(e->board, e->gang, 0);
    assert_true(gp_board_holder(e->board) ==
                gp_board_tenant_of(e->board, &e->board->members[e->gang]));
    gp_board_tenant_of(e->board, &e->board->members[e->gang])->behind = behind;
    clock_ns = end + late;
    return gp_board_enter(e->board, e->gang);
}

/* On another card it may have ended its turn, and does not come as far. */
static void a_gang_begins_nothing_after_its_window(void **state)
{
    (void)state;
    struct ended e;
    assert_false(begins_after_its_window(&e, false, 0));
    assert_true(gp_board_enter(e.board, e.other));
    gp_board_free(e.board);
}

static void a_gang_whose_other_rank_waits_for_it_does(void **state)
{
    (void)state;
    struct ended e;
    assert_true(begins_after_its_window(&e, true, 4 * MS - 1));
    gp_board_turn(e.board, clock_ns);
    assert_true(gp_board_must_yield(e.board, e.gang));
    clock_ns += 300 * US;
    gp_board_idle(e.board, e.gang, 0);
    struct tenant_slot *gang = gp_board_tenant_of(e.board, &e.board->members[e.gang]);
    assert_int_equal(gang->usage.ending_ns, 300 * US);
    assert_true(gp_board_enter(e.board, e.other));
    gp_board_free(e.board);
    assert_false(begins_after_its_window(&e, true, 4 * MS));
    gp_board_free(e.board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gang_has_its_turns_on_both_cards_at_once),
        cmocka_unit_test(a_gang_begins_nothing_after_its_window),
        cmocka_unit_test(a_gang_whose_other_rank_waits_for_it_does),
        cmocka_unit_test(two_gangs_have_theirs_one_behind_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
