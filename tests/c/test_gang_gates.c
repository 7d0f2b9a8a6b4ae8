/*
 * Jobs on two GPUs beside another tenant on each, through all that decides there: arbiters, pages,
 * seats and gates, on GPUs that are simulated. Counted are steps, as parts of what each makes
 * alone.
 */
#include <stdio.h>
#include <string.h>

#include "simulated_cards.h"

#define SECONDS 4

/* One process on both GPUs, or a process on each, which may sum as NCCL's ranks do. */
struct job {
    const char *what;
    bool process_each, gang;
    uint32_t share;
    unsigned kernels;
    uint64_t kernel, think;
    uint64_t sum, launch, jitter;
};

static struct sim_actor part_of(const struct job *j, bool first, bool second)
{
    return (struct sim_actor){
        .tenant = "red/job",
        .grant = {.weight = 1, .share = j->share, .ceiling = 1000, .gang = j->gang},
        .on = {first, second},
        .kernels = j->kernels,
        .kernel = j->kernel,
        .last = 20 * US,
        .think = j->think,
        .jitter = j->jitter,
        .sum = j->sum,
        .launch = j->launch};
}

static struct sim_actor neighbour(const struct job *j, unsigned card, uint64_t kernel)
{
    return (struct sim_actor){.tenant = card ? "yellow" : "blue",
                              .grant = {.weight = 1, .share = 1000 - j->share, .ceiling = 1000},
                              .on = {card == 0, card == 1},
                              .kernels = 4,
                              .kernel = kernel,
                              .last = 10 * US,
                              .think = 40 * US};
}

struct parts {
    double job, neighbours[SIM_CARDS];
};

/* What neighbours make without the job is the same each time: most tests ask for one pair. */
static void run_alone(const struct job *j, uint64_t first, uint64_t second, unsigned *steps)
{
    static struct {
        uint32_t share;
        uint64_t first, second;
        unsigned steps[SIM_CARDS];
    } known;
    if (known.share != j->share || known.first != first || known.second != second) {
        struct sim_actor alone[SIM_CARDS] = {neighbour(j, 0, first), neighbour(j, 1, second)};
        sim_run(alone, SIM_CARDS, SECONDS * 1000 * MS);
        known.share = j->share;
        known.first = first;
        known.second = second;
        for (unsigned i = 0; i < SIM_CARDS; i++)
            known.steps[i] = alone[i].steps;
    }
    memcpy(steps, known.steps, sizeof known.steps);
}

/* Neighbours with kernels of these lengths. */
static struct parts run(const struct job *j, uint64_t first, uint64_t second)
{
    struct sim_actor all[SIM_ACTORS] = {neighbour(j, 0, first), neighbour(j, 1, second)};
    unsigned count = 2, alone[SIM_CARDS];
    all[count++] = part_of(j, true, !j->process_each);
    if (j->process_each)
        all[count++] = part_of(j, false, true);
    sim_run(&all[2], count - 2, SECONDS * 1000 * MS);
    double job = all[2].steps;
    run_alone(j, first, second, alone);
    sim_run(all, count, SECONDS * 1000 * MS);
    struct parts parts = {.job = all[2].steps / job};
    for (unsigned i = 0; i < SIM_CARDS; i++)
        parts.neighbours[i] = (double)all[i].steps / alone[i];
    print_message("    %-44s %.3f; neighbours %.3f and %.3f\n", j->what, parts.job,
                  parts.neighbours[0], parts.neighbours[1]);
    return parts;
}

/* The job has so much of its share, and neighbours all of theirs. */
static void check(const struct job *j, uint64_t first, uint64_t second, double least)
{
    struct parts parts = run(j, first, second);
    assert_true(parts.job * 1000 >= least * j->share);
    assert_true(parts.job * 1000 <= 1.02 * j->share);
    for (unsigned i = 0; i < SIM_CARDS; i++)
        assert_true(parts.neighbours[i] * 1000 >= 0.98 * (1000 - j->share));
}

static void gangs_have_their_share_and_leave_neighbours_theirs(void **state)
{
    (void)state;
    const struct job jobs[] = {
        {"one process, as in tests/gpu/gang.py", false, true, 500, 4, 420 * US, 60 * US},
        {"a process on each", true, true, 500, 4, 420 * US, 60 * US},
        {"short kernels", true, true, 500, 20, 50 * US, 60 * US},
        {"a quarter of each", true, true, 250, 4, 420 * US, 60 * US},
        {"three quarters of each", true, true, 750, 4, 420 * US, 60 * US},
    };
    for (unsigned i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        check(&jobs[i], 590 * US, 1100 * US, 0.9);
}

/* A turn is not lost for what a program does between two steps. */
static void a_pause_in_its_window_costs_a_gang_no_turn(void **state)
{
    (void)state;
    const struct job job = {"thinks", true, true, 500, 4, 420 * US, 1200 * US};
    check(&job, 590 * US, 1100 * US, 0.9);
}

/* At the end of a window one rank has begun a collective and the other one has not: it does then, or
 * the first would keep its GPU from its neighbour, and be charged for it, until the next window. */
static void ranks_end_a_window_with_the_same_collective(void **state)
{
    (void)state;
    const struct job jobs[] = {
        {"ranks, as in tests/gpu/gang.py", true, true, 500, 4, 420 * US, 60 * US, 130 * US, 80 * US,
         80 * US},
        {"ranks that wait for each other", true, true, 500, 4, 420 * US, 60 * US, 130 * US, 40 * US,
         640 * US},
        {"ranks with long steps", true, true, 500, 20, MS, 60 * US, 130 * US, 80 * US, 160 * US},
        {"ranks with a quarter of each", true, true, 250, 4, 420 * US, 60 * US, 130 * US, 80 * US,
         320 * US},
    };
    for (unsigned i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        check(&jobs[i], 590 * US, 1100 * US, 0.94);
}

/* Nobody has to say that they are a gang. */
static void ranks_that_sum_are_a_gang(void **state)
{
    (void)state;
    const struct job job = {"ranks, and nobody says so",
                            true,
                            false,
                            500,
                            4,
                            420 * US,
                            60 * US,
                            130 * US,
                            80 * US,
                            80 * US};
    check(&job, 590 * US, 1100 * US, 0.94);
}

/* A kernel is not interrupted: where a neighbour's are long, each window begins late. */
static void long_kernels_take_of_a_window(void **state)
{
    (void)state;
    const struct job job = {"beside kernels of 5 ms", true, true, 500, 4, 420 * US, 60 * US};
    check(&job, 50 * US, 5 * MS, 0.78);
}

/* What gangs are for, and that this is what two real GPUs did: 0.41, 0.57 and 0.58. */
static void without_gangs_a_step_waits_for_the_slowest_turn(void **state)
{
    (void)state;
    const struct job one = {"one process, no gang", false, false, 500, 4, 420 * US, 60 * US};
    const struct job each = {"a process on each, no gang", true, false, 500, 4, 420 * US, 60 * US};
    struct parts parts = run(&one, 590 * US, 1100 * US);
    assert_true(parts.job < 0.45 && parts.neighbours[0] > 0.53 && parts.neighbours[1] > 0.53);
    assert_true(run(&each, 590 * US, 1100 * US).job < 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gangs_have_their_share_and_leave_neighbours_theirs),
        cmocka_unit_test(a_pause_in_its_window_costs_a_gang_no_turn),
        cmocka_unit_test(ranks_end_a_window_with_the_same_collective),
        cmocka_unit_test(ranks_that_sum_are_a_gang),
        cmocka_unit_test(long_kernels_take_of_a_window),
        cmocka_unit_test(without_gangs_a_step_waits_for_the_slowest_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
