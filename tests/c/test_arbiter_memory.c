/* Memory that workers in processes of their own ask an arbiter for: limits that hold, questions
 * that are not asked, and what is known after an arbiter that was away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arbiter_process.h"

/* What all children of a test see. */
static struct shared {
    int flag, stop, looked;
} *shared;

static int begin(void **state)
{
    memset(shared, 0, sizeof *shared);
    return arbiter_begin(state);
}

static int hammer(struct gp_seat *seat, int page, int bell)
{
    uint64_t held = 0, limit = gp_seat_memory_limit(seat);
    (void)page, (void)bell;
    for (int i = 0; i < 3000; i++) {
        uint64_t bytes = (uint64_t)(i % 31 + 1) * MIB;
        if (gp_seat_memory_take(seat, bytes))
            held += bytes;
        if (limit != 64 * MIB || held > limit || gp_seat_memory_left(seat) > limit - held)
            return 1;
        if (i % 3 == 0 && held) {
            gp_seat_memory_give(seat, held);
            held = 0;
        }
    }
    gp_seat_leave(seat);
    return 0;
}

static void many_take_and_give_at_once(void **state)
{
    struct worker w[3];
    for (int i = 0; i < 3; i++)
        w[i] = worker_start(*state, "a", hammer);
    for (int i = 0; i < 3; i++)
        assert_int_equal(worker_end(&w[i]), 0);
    assert_int_equal(arbiter_number(*state, "\"a\"", "memory_used"), 0);
    assert_true(arbiter_number(*state, "\"a\"", "memory_peak") <= (long long)(64 * MIB));
    assert_true(arbiter_number(*state, "\"a\"", "memory_denied") > 0);
}

/* Takes and gives back, small and often: the arbiter hears of it once. */
static int pairs(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    for (int i = 0; i < 1000; i++) {
        if (!gp_seat_memory_take(seat, MIB))
            return 1;
        if (i < 999)
            gp_seat_memory_give(seat, MIB);
    }
    shared->flag = 1;
    pause();
    return 0;
}

static void pairs_cost_no_questions(void **state)
{
    struct worker w = worker_start(*state, "a", pairs);
    AWAIT(shared->flag);
    assert_int_equal(arbiter_number(*state, "\"processes\"", "questions"), 1);
    assert_int_equal(arbiter_number(*state, "\"a\"", "memory_used"), MIB);
    assert_int_equal(arbiter_number(*state, "\"processes\"", "memory_used"), MIB);
    assert_int_equal(arbiter_number(*state, "\"processes\"", "memory_given"), 9 * MIB);
    worker_kill(&w);
}

/* Within its advance, while the arbiter looks nowhere. */
static int leap(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    if (!gp_seat_memory_take(seat, MIB))
        return 1;
    shared->flag = 1;
    while (shared->flag != 2)
        sleep_ms(1);
    if (!gp_seat_memory_take(seat, 8 * MIB))
        return 2;
    gp_seat_memory_give(seat, 8 * MIB);
    shared->flag = 3;
    pause();
    return 0;
}

static void a_peak_within_an_advance_is_seen(void **state)
{
    struct arbiter_process *a = *state;
    struct worker w = worker_start(a, "a", leap);
    AWAIT(shared->flag == 1);
    assert_int_equal(arbiter_number(a, "\"a\"", "memory_peak"), MIB);
    kill(a->pid, SIGSTOP);
    shared->flag = 2;
    AWAIT(shared->flag == 3);
    kill(a->pid, SIGCONT);
    assert_int_equal(arbiter_number(a, "\"a\"", "memory_peak"), 9 * MIB);
    assert_int_equal(arbiter_number(a, "\"a\"", "memory_used"), MIB);
    assert_int_equal(arbiter_number(a, "\"processes\"", "questions"), 1);
    worker_kill(&w);
}

/* Takes its part of the limit in steps, and has it. */
static int quarter(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    for (int i = 0; i < 8; i++)
        if (!gp_seat_memory_take(seat, 2 * MIB))
            return 1;
    __atomic_fetch_add(&shared->flag, 1, __ATOMIC_SEQ_CST);
    while (!shared->stop)
        sleep_ms(1);
    /* all is in use, and each can tell */
    int wrong = gp_seat_memory_take(seat, 1) || gp_seat_memory_left(seat) != 0;
    __atomic_fetch_add(&shared->looked, 1, __ATOMIC_SEQ_CST);
    while (shared->looked < 4)
        sleep_ms(1);
    return wrong;
}

/* Nobody is refused what another was only given ahead, also if that one is stopped. */
static void together_they_have_exactly_the_limit(void **state)
{
    for (int round = 0; round < 20; round++) {
        struct worker w[4];
        shared->flag = shared->stop = shared->looked = 0;
        for (int i = 0; i < 4; i++) {
            w[i] = worker_start(*state, "a", quarter);
            if (i == 0 && round % 2) {
                AWAIT(shared->flag == 1);
                kill(w[0].pid, SIGSTOP);
            }
        }
        AWAIT(shared->flag == 4);
        assert_int_equal(arbiter_number(*state, "\"a\"", "memory_used"), 64 * MIB);
        assert_int_equal(arbiter_number(*state, "\"a\"", "memory_peak"), 64 * MIB);
        kill(w[0].pid, SIGCONT);
        shared->stop = 1;
        for (int i = 0; i < 4; i++)
            assert_int_equal(worker_end(&w[i]), 0);
        AWAIT(arbiter_number(*state, "\"a\"", "members") == 0);
    }
}

/* --- an arbiter that is away --------------------------------------------------------------- */

/* Has 24 MiB, and while the arbiter is away takes, gives back and is charged. */
static int change(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    if (!gp_seat_memory_take(seat, 24 * MIB))
        return 1;
    shared->flag = 1;
    while (shared->flag != 2)
        sleep_ms(1);
    if (!gp_seat_memory_take(seat, 20 * MIB)) /* waits for a second, in vain */
        return 2;
    gp_seat_memory_charge(seat, 15 * MIB);
    gp_seat_memory_give(seat, 30 * MIB);
    if (!gp_seat_memory_take(seat, 11 * MIB) || gp_seat_memory_take(seat, 32 * MIB))
        return 3;
    for (int i = 0; i < 3; i++)
        if (!gp_seat_copy(seat, GP_BOARD_UPLOAD, MIB))
            return 4;
    gp_seat_count(seat, 7, 3 * MIB);
    shared->flag = 3;
    while (shared->flag != 4)
        sleep_ms(1);
    return gp_seat_memory_take(seat, 25 * MIB) || !gp_seat_memory_take(seat, 24 * MIB) ? 5 : 0;
}

/* What was not heard is known afterwards: 24 + 20 + 15 - 30 + 11 = 40. */
static void changes_are_known(struct arbiter_process *a, struct worker *w)
{
    AWAIT(arbiter_number(a, "\"a\"", "memory_used") == 40 * MIB);
    assert_int_equal(arbiter_number(a, "\"a\"", "launches"), 7);
    shared->flag = 4;
    assert_int_equal(worker_end(w), 0);
}

static void a_stalled_arbiter_knows_all_afterwards(void **state)
{
    struct arbiter_process *a = *state;
    struct worker w = worker_start(a, "a", change);
    AWAIT(shared->flag == 1);
    kill(a->pid, SIGSTOP);
    shared->flag = 2;
    AWAIT(shared->flag == 3);
    kill(a->pid, SIGCONT);
    changes_are_known(a, &w);
    assert_int_equal(arbiter_number(a, "\"a\"", "memory_used"), 0);
}

/* Told twice, it counts once: also by an arbiter that is stopped between two of its words. */
static void an_arbiter_that_is_stopped_again_and_again(void **state)
{
    struct arbiter_process *a = *state;
    struct worker w[3];
    for (int i = 0; i < 3; i++)
        w[i] = worker_start(a, "a", hammer);
    for (int i = 0; i < 5; i++) {
        kill(a->pid, SIGSTOP);
        sleep_ms(i == 2 ? 2500 : 50);
        kill(a->pid, SIGCONT);
        sleep_ms(10);
    }
    for (int i = 0; i < 3; i++)
        worker_end(&w[i]); /* what they were told meanwhile may be old */
    AWAIT(arbiter_number(a, "\"a\"", "members") == 0);
    assert_int_equal(arbiter_number(a, "\"a\"", "memory_used"), 0);
}

static void the_next_arbiter_knows_all(void **state)
{
    struct arbiter_process *a = *state;
    struct worker w = worker_start(a, "a", change);
    char line[64];
    const int fds[2] = {w.page_fd, w.bell_fd};
    AWAIT(shared->flag == 1);
    kill(a->pid, SIGKILL);
    waitpid(a->pid, NULL, 0);
    close(a->fd);
    shared->flag = 2;
    AWAIT(shared->flag == 3);
    arbiter_start(a);
    assert_int_equal(arbiter_say(a, "tenant a 67108864 1 500 1000 0"), 0);
    snprintf(line, sizeof line, "adopt a %d", w.pid);
    assert_true(arbiter_say_with(a, line, fds) >= 0);
    shared->flag = 4;
    assert_int_equal(worker_end(&w), 0);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
#define MEMORY_TEST(name) cmocka_unit_test_setup_teardown(name, begin, arbiter_end)
    const struct CMUnitTest tests[] = {
        MEMORY_TEST(many_take_and_give_at_once),
        MEMORY_TEST(pairs_cost_no_questions),
        MEMORY_TEST(a_peak_within_an_advance_is_seen),
        MEMORY_TEST(together_they_have_exactly_the_limit),
        MEMORY_TEST(a_stalled_arbiter_knows_all_afterwards),
        MEMORY_TEST(an_arbiter_that_is_stopped_again_and_again),
        MEMORY_TEST(the_next_arbiter_knows_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
