/* A board on which another process has written what it liked: nothing crashes or hangs, and
 * gp_board_check says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "board_calls.h"
#include "board_internal.h"

static char path[64];
static int members[3];
static struct board_file good;

static int make(void **state)
{
    struct gp_board *b;
    strcpy(path, "/tmp/gp-board-XXXXXX");
    close(mkstemp(path));
    if (gp_board_open(path, &b) != 0 || board_furnish(b, members) != 0)
        return -1;
    good = *b->file;
    *state = b;
    return 0;
}

static int unmake(void **state)
{
    gp_board_close(*state);
    return unlink(path);
}

static uint32_t random_next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 4;
}

/* Values that are more often wrong than others. */
static uint64_t odd_value(uint32_t *seed)
{
    static const uint64_t values[] = {0,
                                      1,
                                      64,
                                      65,
                                      512,
                                      0x7fffffff,
                                      0x80000000u,
                                      0xffffffffu,
                                      UINT64_MAX,
                                      UINT64_C(1) << 63,
                                      0x4141414141414141};
    uint32_t which = random_next(seed) % 16;
    return which < 11 ? values[which] : (uint64_t)random_next(seed) << 32 | random_next(seed);
}

static void damage(struct board_file *f, uint32_t *seed)
{
    for (uint32_t n = 1 + random_next(seed) % 24; n > 0; n--) {
        uint64_t value = odd_value(seed);
        size_t size = random_next(seed) % 2 ? 8 : 4;
        size_t at = random_next(seed) % (sizeof *f / size) * size;
        if (at / 8 != offsetof(struct board_file, lock) / 8) /* a test of its own */
            memcpy((char *)f + at, &value, size);
    }
}

static void every_call_on_a_damaged_board(void **state)
{
    struct gp_board *b = *state;
    unsigned found = 0;
    for (uint32_t round = 0; round < 4000; round++) {
        uint32_t seed = round;
        *b->file = good;
        damage(b->file, &seed);
        found += gp_board_check(b) == -EUCLEAN;
        board_call_all(b, members);
    }
    assert_true(found > 1000);
}

static void the_same_while_it_is_damaged(void **state)
{
    struct gp_board *b = *state;
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t seed = round;
        *b->file = good;
        for (size_t i = 0; i < GP_BOARD_MEMBERS; i++)
            b->file->members[i].tenant = (uint32_t)odd_value(&seed);
        for (size_t i = 0; i < GP_BOARD_TENANTS; i++) {
            b->file->tenants[i].usage.members = (uint32_t)odd_value(&seed);
            b->file->tenants[i].weight = (uint32_t)odd_value(&seed);
        }
        b->file->holder = (int32_t)odd_value(&seed);
        board_call_all(b, members);
    }
}

static void expect_damaged(struct gp_board *b)
{
    struct gp_board *other;
    assert_int_equal(gp_board_check(b), -EUCLEAN);
    assert_int_equal(gp_board_open(path, &other), -EUCLEAN);
    *b->file = good;
    assert_int_equal(gp_board_check(b), 0);
}

static void what_cannot_be_is_found(void **state)
{
    struct gp_board *b = *state;
    struct board_file *f = b->file;
    assert_int_equal(gp_board_check(b), 0);
    f->members[members[1]].tenant = GP_BOARD_TENANTS;
    expect_damaged(b);
    f->members[members[1]].tenant = 7; /* a slot that is free */
    expect_damaged(b);
    f->holder = 1000000;
    expect_damaged(b);
    memset(f->tenants[0].name, 'x', GP_BOARD_NAME); /* without an end */
    expect_damaged(b);
    strcpy(f->tenants[0].name, "a\", \"x\": \"");
    expect_damaged(b);
    strcpy(f->tenants[1].name, "a"); /* twice */
    expect_damaged(b);
    f->gpu.policy = 99;
    expect_damaged(b);
    f->tenants[0].grant.ceiling = 0;
    expect_damaged(b);
    f->check_at = UINT64_MAX; /* the holder would never look again */
    expect_damaged(b);
    f->magic = 0;
    expect_damaged(b);
}

static void a_lock_that_nobody_gives_back(void **state)
{
    struct gp_board *b = *state;
    b->file->lock = (uint32_t)getppid(); /* lives, and knows nothing of it */
    board_call_all(b, members);
    assert_int_equal(gp_board_check(b), -EUCLEAN);
    *b->file = good;
    const uint32_t values[] = {0x80000000u, 0xffffffffu, 0x7fffffffu, 1};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        b->file->lock = values[i];
        gp_board_reap(b, 0);
        assert_int_equal(b->file->lock, 0);
    }
}

/* Before cmocka has a handler of its own for the signal. */
static int cut_in_child(void)
{
    void *state;
    pid_t pid = fork();
    if (pid == 0) {
        if (make(&state) != 0 || truncate(path, 0) != 0)
            _exit(1);
        board_call_all(state, members);
        _exit(gp_board_check(state) == -EUCLEAN && unmake(&state) == 0 ? 0 : 2);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static int cut_status;

static void a_file_that_is_cut(void **state)
{
    (void)state;
    assert_int_equal(cut_status, 0); /* and no SIGBUS */
}

static void a_file_that_is_another_by_now(void **state)
{
    struct gp_board *b = *state, *other;
    char aside[80];
    assert_false(gp_board_replaced(b, path));
    snprintf(aside, sizeof aside, "%s.damaged", path);
    assert_int_equal(rename(path, aside), 0);
    assert_false(gp_board_replaced(b, path)); /* there is none yet */
    assert_int_equal(gp_board_open(path, &other), 0);
    assert_true(gp_board_replaced(b, path));
    assert_false(gp_board_replaced(other, path));
    gp_board_close(other);
    unlink(aside);
}

int main(void)
{
    cut_status = cut_in_child();
#define BOARD_TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)
    const struct CMUnitTest tests[] = {
        BOARD_TEST(every_call_on_a_damaged_board),
        BOARD_TEST(the_same_while_it_is_damaged),
        BOARD_TEST(what_cannot_be_is_found),
        BOARD_TEST(a_lock_that_nobody_gives_back),
        BOARD_TEST(a_file_that_is_cut),
        BOARD_TEST(a_file_that_is_another_by_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
