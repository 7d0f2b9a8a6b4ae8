/* The arbiter, its pages and the workers that ask it, in processes of their own: turns that
 * are one's alone, workers that die or are stopped at any moment, and an arbiter that dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accept_lacks.h"
#include "arbiter.h"
#include "arbiter_process.h"
#include "board_internal.h"

/* What all children of a test see. */
static struct shared {
    int inside;         /* who works on the "GPU" now */
    int clashes;        /* two at once */
    uint64_t worked[2]; /* ns, by worker */
    int turns[2], stop, flag;
} *shared;

static int begin(void **state)
{
    memset(shared, 0, sizeof *shared);
    return arbiter_begin(state);
}

/* --- the dead ------------------------------------------------------------------------------ */

static int take_and_stay(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    if (!gp_seat_memory_take(seat, 60 * MIB) || !gp_seat_enter(seat))
        return 1;
    shared->flag = 1;
    for (;;)
        pause();
}

static void the_dead_have_nothing(void **state)
{
    struct worker w = worker_start(*state, "a", take_and_stay);
    AWAIT(shared->flag);
    assert_int_equal(arbiter_number(*state, "\"a\"", "memory_used"), 60 * MIB);
    worker_kill(&w);
    AWAIT(arbiter_number(*state, "\"a\"", "members") == 0);
    assert_int_equal(arbiter_number(*state, "\"a\"", "memory_used"), 0);
    /* and a seat whose worker never came goes with its server */
    assert_true(arbiter_say(*state, "join a") >= 0);
    assert_int_equal(arbiter_number(*state, "\"a\"", "members"), 1);
}

/* --- turns --------------------------------------------------------------------------------- */

static int run_on(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    while (!gp_seat_enter(seat))
        gp_seat_wait(seat, 1000);
    shared->flag = 1;
    while (!shared->stop)
        sleep_ms(1);
    gp_seat_idle(seat, 0);
    pause();
    return 0;
}

/* A policy without turns let it begin what it is at: that is nobody's fault, until it has ended. */
static void who_needed_no_turn_is_late_where_turns_begin(void **state)
{
    assert_int_equal(arbiter_say(*state, "gpu 4 20 90 1 1073741824"), 0); /* weak */
    struct worker w = worker_start(*state, "a", run_on);
    AWAIT(shared->flag);
    assert_true(arbiter_say(*state, "describe") >= 0);
    assert_true(arbiter_says(*state, "\"late\": false"));
    assert_int_equal(arbiter_say(*state, "gpu 2 20 90 1 1073741824"), 0); /* weighted */
    assert_true(arbiter_say(*state, "describe") >= 0);
    assert_true(arbiter_says(*state, "\"late\": true"));
    shared->stop = 1;
    AWAIT(arbiter_say(*state, "describe") >= 0 && arbiter_says(*state, "\"late\": false"));
    worker_kill(&w);
}

static bool enter(struct gp_seat *seat)
{
    while (!gp_seat_enter(seat)) {
        if (shared->stop)
            return false;
        gp_seat_wait(seat, 1000);
    }
    return true;
}

/* One who has always work: kernels of about 0.3 ms until its turn must end. */
static int worker_of(struct gp_seat *seat, int index)
{
    while (!shared->stop) {
        if (!enter(seat))
            break;
        gp_seat_started(seat);
        if (__atomic_exchange_n(&shared->inside, index + 1, __ATOMIC_SEQ_CST) != 0)
            __atomic_fetch_add(&shared->clashes, 1, __ATOMIC_SEQ_CST);
        shared->turns[index]++;
        do {
            uint64_t from = gp_board_now();
            while (gp_board_now() - from < 300000 && !shared->stop)
                ;
            shared->worked[index] += gp_board_now() - from;
        } while (!shared->stop && !gp_seat_must_yield(seat) && gp_seat_enter(seat));
        __atomic_store_n(&shared->inside, 0, __ATOMIC_SEQ_CST);
        gp_seat_idle(seat, 0);
    }
    gp_seat_leave(seat);
    return 0;
}

static int work_a(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    return worker_of(seat, 0);
}

static int work_b(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    return worker_of(seat, 1);
}

static void two_take_turns_by_their_weights(void **state)
{
    struct worker a = worker_start(*state, "a", work_a), b = worker_start(*state, "b", work_b);
    AWAIT(shared->turns[0] > 2 && shared->turns[1] > 2);
    uint64_t before[2] = {shared->worked[0], shared->worked[1]};
    sleep_ms(1500);
    double ratio = (double)(shared->worked[1] - before[1]) /
                   (double)(shared->worked[0] - before[0]);
    shared->stop = 1;
    assert_int_equal(worker_end(&a), 0);
    assert_int_equal(worker_end(&b), 0);
    print_message("    1 : %.3f of 1 : 2, %d and %d turns\n", ratio, shared->turns[0],
                  shared->turns[1]);
    assert_int_equal(shared->clashes, 0);
    assert_true(ratio > 1.5 && ratio < 2.6); /* by a clock of the test's: test_board_shares.c */
    assert_true(arbiter_number(*state, "\"b\"", "turns") > 2);
}

/* One who works in short steps, and waits between them. */
static int steps(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    for (int i = 0; i < 200; i++) {
        if (!gp_seat_enter(seat))
            return 1; /* nobody else wants it */
        gp_seat_started(seat);
        sleep_ms(1);
        gp_seat_idle(seat, 0);
        sleep_ms(1);
    }
    shared->flag = 1;
    pause();
    return 0;
}

/* Alone it need not ask, and is accounted for all the same. */
static void steps_alone(void **state)
{
    struct worker w = worker_start(*state, "a", steps);
    AWAIT(shared->flag);
    long long busy = arbiter_number(*state, "\"a\"", "busy_ns");
    assert_true(busy >= 200 * (long long)MS);
    assert_true(arbiter_number(*state, "\"processes\"", "busy_ns") >= 200 * (long long)MS);
    worker_kill(&w);
}

static void a_dead_holders_turn_is_the_next_ones(void **state)
{
    struct worker a = worker_start(*state, "a", work_a);
    AWAIT(shared->turns[0] > 0);
    struct worker b = worker_start(*state, "b", work_b);
    for (int i = 0; i < 10; i++) { /* at any moment */
        AWAIT(shared->turns[0] > 1 && shared->turns[1] > 1);
        worker_kill(&a);
        int was = shared->turns[1];
        __atomic_store_n(&shared->inside, 0, __ATOMIC_SEQ_CST);
        AWAIT(shared->turns[1] > was || shared->worked[1] > 0);
        shared->turns[0] = 0;
        a = worker_start(*state, "a", work_a);
    }
    shared->stop = 1;
    worker_end(&a);
    worker_end(&b);
}

/* Stopped while it has the turn or waits for it: it harms itself. */
static void a_stopped_worker_does_not_keep_the_gpu(void **state)
{
    struct worker a = worker_start(*state, "a", work_a), b = worker_start(*state, "b", work_b);
    for (int i = 0; i < 3; i++) {
        AWAIT(shared->turns[0] > 1 && shared->turns[1] > 1);
        AWAIT(i != 1 || shared->inside == 1); /* in its turn, and by chance */
        kill(a.pid, SIGSTOP);
        uint64_t was = shared->worked[1];
        AWAIT(shared->worked[1] > was + 100 * MS);
        kill(a.pid, SIGCONT);
        shared->turns[0] = shared->turns[1] = 0;
    }
    shared->stop = 1;
    assert_int_equal(worker_end(&a), 0);
    assert_int_equal(worker_end(&b), 0);
}

/* --- an arbiter that dies ------------------------------------------------------------------ */

static int keep(struct gp_seat *seat, int page, int bell)
{
    (void)page, (void)bell;
    if (!gp_seat_memory_take(seat, 40 * MIB))
        return 1;
    shared->flag = 1;
    while (shared->flag != 2)
        sleep_ms(1);
    if (!gp_seat_memory_take(seat, 8 * MIB)) /* there is no arbiter */
        return 2;
    while (!gp_seat_enter(seat))
        gp_seat_wait(seat, 1000);
    shared->flag = 3;
    while (shared->flag != 4)
        sleep_ms(1);
    gp_seat_idle(seat, 0);
    if (gp_seat_memory_take(seat, 20 * MIB) || !gp_seat_memory_take(seat, 16 * MIB))
        return 3;
    return gp_seat_memory_left(seat) == 0 && gp_seat_enter(seat) ? 0 : 4;
}

static void workers_go_on_without_an_arbiter(void **state)
{
    struct arbiter_process *a = *state;
    struct worker w = worker_start(a, "a", keep);
    AWAIT(shared->flag == 1);
    assert_true(arbiter_says(a, "\"late\": false, \"unseen\": false"));
    kill(a->pid, SIGKILL);
    waitpid(a->pid, NULL, 0);
    close(a->fd);
    shared->flag = 2;
    AWAIT(shared->flag == 3);
    arbiter_start(a);
    char line[64];
    const int fds[2] = {w.page_fd, w.bell_fd};
    assert_int_equal(arbiter_say(a, "tenant a 67108864 1 500 1000 0"), 0);
    snprintf(line, sizeof line, "adopt a %d", w.pid);
    assert_true(arbiter_say_with(a, line, fds) >= 0);
    assert_int_equal(arbiter_number(a, "\"a\"", "memory_used"), 48 * MIB);
    /* nobody has let in what is under way, and the watchdog is told so */
    assert_true(arbiter_says(a, "\"late\": true, \"unseen\": true"));
    shared->flag = 4;
    assert_int_equal(worker_end(&w), 0);
}

static void what_a_server_says_is_checked(void **state)
{
    struct arbiter_process *a = *state;
    int pipe_fds[2];
    assert_int_equal(arbiter_say(a, "hello 2"), 0);
    assert_int_equal(arbiter_say(a, "hello 1"), -EPROTO);
    assert_int_equal(arbiter_say(a, "nonsense"), -ENOSYS);
    assert_int_equal(arbiter_say(a, "tenant a"), -EINVAL);
    assert_int_equal(arbiter_say(a, "tenant a\"b 0 1 1 1 0"), -EINVAL);
    assert_int_equal(arbiter_say(a, "gpu 99 1 90 0 0"), -EINVAL);
    assert_int_equal(arbiter_say(a, "join nobody"), -ENOENT);
    assert_int_equal(arbiter_say(a, "started 0 1"), -ENOENT);
    assert_int_equal(arbiter_say(a, "started -1 1"), -ENOENT);
    assert_int_equal(arbiter_say(a, "seat 1"), -ENOENT);
    assert_int_equal(arbiter_say(a, "remove nobody"), -ENOENT);
    assert_int_equal(arbiter_say(a, "adopt a 1"), -EINVAL); /* without descriptors */
    assert_int_equal(pipe(pipe_fds), 0);
    assert_int_equal(arbiter_say_with(a, "adopt a 1", pipe_fds), -EPROTO);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    assert_int_equal(arbiter_number(a, "\"a\"", "members"), 0);
}

/* A message with four descriptors and so many bytes; true: the arbiter hangs up. */
static bool hangs_up(const struct arbiter_process *a, const char *line, size_t bytes)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control = {0};
    int fd = arbiter_reach(a);
    const int fds[4] = {fd, fd, fd, fd};
    char answer[64];
    struct iovec part = {(char *)(uintptr_t)line, bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    *c = (struct cmsghdr){CMSG_LEN(sizeof fds), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    assert_true(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)bytes);
    bool gone = recv(fd, answer, sizeof answer, 0) <= 0;
    close(fd);
    return gone;
}

/* Whatever is wrong with a message: what came with it is closed. */
static void descriptors_of_bad_messages_are_closed(void **state)
{
    struct arbiter_process *a = *state;
    static char line[8192];
    assert_int_equal(arbiter_say(a, "hello 2"), 0);
    unsigned before = arbiter_descriptors(a);
    for (int i = 0; i < 500; i++) {
        assert_true(hangs_up(a, line, 0));
        assert_true(hangs_up(a, line, sizeof line)); /* longer than any command */
    }
    assert_false(hangs_up(a, "nonsense", 8));
    AWAIT(arbiter_descriptors(a) == before);
}

/* It asked without end, at its high priority, while all who use the GPU waited for it. */
static void a_server_waits_for_descriptors(void **state)
{
    (void)state;
    const struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct arbiter_process p = {.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    struct gp_arbiter *a;
    char answer[4096];
    assert_int_equal(bind(p.listener, (const struct sockaddr *)&address, sizeof address.sun_family),
                     0);
    assert_int_equal(listen(p.listener, 4), 0);
    assert_int_equal(gp_arbiter_new(p.listener, &a), 0);
    int fd = arbiter_reach(&p);
    assert_int_equal(send(fd, "hello 2", 7, 0), 7);
    accept_lacks(true);
    for (int i = 0; i < 1000; i++)
        gp_arbiter_step(a, 0);
    assert_in_range(accept_calls(), 1, 100);
    accept_lacks(false);
    while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) <= 0)
        gp_arbiter_step(a, -1);
    close(fd);
    gp_arbiter_free(a);
    close(p.listener);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
#define ARBITER_TEST(name) cmocka_unit_test_setup_teardown(name, begin, arbiter_end)
    const struct CMUnitTest tests[] = {
        ARBITER_TEST(the_dead_have_nothing),
        ARBITER_TEST(who_needed_no_turn_is_late_where_turns_begin),
        ARBITER_TEST(two_take_turns_by_their_weights),
        ARBITER_TEST(steps_alone),
        ARBITER_TEST(a_dead_holders_turn_is_the_next_ones),
        ARBITER_TEST(a_stopped_worker_does_not_keep_the_gpu),
        ARBITER_TEST(workers_go_on_without_an_arbiter),
        ARBITER_TEST(what_a_server_says_is_checked),
        ARBITER_TEST(descriptors_of_bad_messages_are_closed),
        cmocka_unit_test(a_server_waits_for_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
