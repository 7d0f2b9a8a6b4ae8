/* The board between real processes: limits, names, members that die, bad files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "board_internal.h"

#define MIB (UINT64_C(1) << 20)

static const struct gp_board_grant plain = {.memory_limit = 64 * MIB,
                                            .weight = 1,
                                            .share = 500,
                                            .ceiling = 1000};
static char path[64];

static int make(void **state)
{
    struct gp_board *b;
    strcpy(path, "/tmp/gp-board-XXXXXX");
    close(mkstemp(path));
    *state = NULL;
    if (gp_board_open(path, &b) != 0 || gp_board_tenant_set(b, "a", &plain) != 0)
        return -1;
    *state = b;
    return 0;
}

static int unmake(void **state)
{
    gp_board_close(*state);
    return unlink(path);
}

static struct gp_board_tenant look(struct gp_board *b, const char *name)
{
    static struct gp_board_tenant all[GP_BOARD_TENANTS];
    int n = gp_board_tenants(b, all, GP_BOARD_TENANTS);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i];
    fail_msg("no tenant %s", name);
    return all[0];
}

/* Run `body` in a process of its own; its exit code, or minus the signal. */
static int in_child(struct gp_board *b, int (*body)(struct gp_board *))
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(body(b));
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void memory_is_limited(void **state)
{
    struct gp_board *b = *state;
    int one = gp_board_join(b, "a"), two = gp_board_join(b, "a");
    uint64_t limit;
    assert_true(one >= 0 && two >= 0 && one != two);
    assert_true(gp_board_memory_take(b, one, 40 * MIB));
    assert_false(gp_board_memory_take(b, two, 24 * MIB + 1)); /* one limit for both */
    assert_true(gp_board_memory_take(b, two, 24 * MIB));
    assert_false(gp_board_memory_take(b, one, 1));
    assert_false(gp_board_memory_take(b, one, UINT64_MAX));
    assert_int_equal(gp_board_memory_left(b, one, &limit), 0);
    assert_int_equal(limit, 64 * MIB);
    gp_board_memory_give(b, one, 8 * MIB);
    assert_true(gp_board_memory_take(b, two, 8 * MIB));
    assert_int_equal(look(b, "a").usage.memory_used, 64 * MIB);
    assert_int_equal(look(b, "a").usage.memory_peak, 64 * MIB);
    assert_int_equal(look(b, "a").usage.memory_denied, 3);
    gp_board_memory_give(b, one, UINT64_MAX); /* more than it has: what it has */
    assert_int_equal(look(b, "a").usage.memory_used, 32 * MIB);
    gp_board_leave(b, two);
    assert_int_equal(look(b, "a").usage.memory_used, 0);
    gp_board_leave(b, one);
    gp_board_leave(b, one); /* again: nothing */
    assert_int_equal(look(b, "a").usage.members, 0);
}

static void limits_change_while_in_use(void **state)
{
    struct gp_board *b = *state;
    struct gp_board_grant grant = plain;
    int m = gp_board_join(b, "a");
    assert_true(gp_board_memory_take(b, m, 32 * MIB));
    grant.memory_limit = 31 * MIB;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), -EBUSY);
    assert_int_equal(look(b, "a").grant.memory_limit, 64 * MIB);
    grant.memory_limit = 32 * MIB;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_false(gp_board_memory_take(b, m, 1));
    grant.memory_limit = 0; /* all of the GPU */
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_true(gp_board_memory_take(b, m, 1000 * MIB));
}

static void nonsense_is_refused(void **state)
{
    struct gp_board *b = *state;
    struct gp_board_gpu gpu = {GP_POLICY_SHARE + 1, 20, 90, 0, 0};
    struct gp_board_grant grant = plain;
    char name[200];
    memset(name, 'x', sizeof name);
    name[GP_BOARD_NAME] = '\0';
    assert_int_equal(gp_board_gpu_set(b, &gpu), -EINVAL);
    gpu = (struct gp_board_gpu){GP_POLICY_FIXED, 26, 90, 0, 0};
    assert_int_equal(gp_board_gpu_set(b, &gpu), -EINVAL);
    gpu = (struct gp_board_gpu){GP_POLICY_FIXED, 25, 19, 0, 0};
    assert_int_equal(gp_board_gpu_set(b, &gpu), -EINVAL);
    assert_int_equal(gp_board_tenant_set(b, "", &grant), -EINVAL);
    assert_int_equal(gp_board_tenant_set(b, name, &grant), -EINVAL);
    assert_int_equal(gp_board_tenant_set(b, "a\"b", &grant), -EINVAL);
    grant.share = 0;
    assert_int_equal(gp_board_tenant_set(b, "x", &grant), -EINVAL);
    grant = plain;
    grant.ceiling = grant.share - 1;
    assert_int_equal(gp_board_tenant_set(b, "x", &grant), -EINVAL);
    assert_int_equal(gp_board_join(b, "nobody"), -ENOENT);
    assert_int_equal(gp_board_join(b, ""), -ENOENT);
    assert_int_equal(gp_board_tenant_remove(b, "nobody"), -ENOENT);
    assert_true(gp_board_join(b, "a") >= 0);
    assert_int_equal(gp_board_tenant_remove(b, "a"), -EBUSY);
}

static void there_is_an_end_of_room(void **state)
{
    struct gp_board *b = *state;
    char name[16];
    for (int i = 1; i < GP_BOARD_TENANTS; i++) {
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(gp_board_tenant_set(b, name, &plain), 0);
    }
    assert_int_equal(gp_board_tenant_set(b, "more", &plain), -ENOSPC);
    assert_int_equal(gp_board_tenant_remove(b, "t7"), 0);
    assert_int_equal(gp_board_tenant_set(b, "more", &plain), 0);
    for (int i = 0; i < GP_BOARD_MEMBERS; i++)
        assert_true(gp_board_join(b, "a") >= 0);
    assert_int_equal(gp_board_join(b, "a"), -ENOSPC);
}

static int take_and_die(struct gp_board *b)
{
    int m = gp_board_join(b, "a");
    if (!gp_board_memory_take(b, m, 60 * MIB) || !gp_board_enter(b, m))
        return 1;
    return kill(getpid(), SIGKILL);
}

static int die_with_the_lock(struct gp_board *b)
{
    int m = gp_board_join(b, "a");
    gp_board_lock(b->file);
    /* half done: the member has it, the sum does not */
    b->file->members[m].memory_used = 7 * MIB;
    return kill(getpid(), SIGKILL);
}

static void the_dead_have_nothing(void **state)
{
    struct gp_board *b = *state;
    assert_int_equal(in_child(b, take_and_die), -SIGKILL);
    assert_int_equal(look(b, "a").usage.memory_used, 60 * MIB);
    assert_int_equal(b->file->holder, 0); /* and its turn goes on, as far as one can see */
    assert_int_equal(gp_board_reap(b, 0), 1);
    assert_int_equal(look(b, "a").usage.memory_used, 0);
    assert_int_equal(look(b, "a").usage.members, 0);
    assert_int_equal(gp_board_reap(b, 0), 0);
    int m = gp_board_join(b, "a");
    assert_true(gp_board_enter(b, m));
    assert_int_equal(gp_board_reap(b, 0), 0); /* the living stay */
}

static void a_lock_outlives_its_owner(void **state)
{
    struct gp_board *b = *state;
    assert_int_equal(in_child(b, die_with_the_lock), -SIGKILL);
    assert_int_equal(look(b, "a").usage.memory_used, 7 * MIB); /* counted anew */
    assert_int_equal(gp_board_reap(b, 0), 1);
    assert_int_equal(look(b, "a").usage.memory_used, 0);
}

static int hammer(struct gp_board *b)
{
    int m = gp_board_join(b, "a");
    uint64_t held = 0;
    for (int i = 0; i < 20000; i++) {
        uint64_t bytes = (uint64_t)(i % 31 + 1) * MIB;
        if (gp_board_memory_take(b, m, bytes))
            held += bytes;
        uint64_t limit, left = gp_board_memory_left(b, m, &limit);
        if (left > limit)
            return 1;
        if (i % 3 == 0 && held) {
            gp_board_memory_give(b, m, held);
            held = 0;
        }
    }
    gp_board_leave(b, m);
    return 0;
}

static void many_take_and_give_at_once(void **state)
{
    struct gp_board *b = *state;
    pid_t children[4];
    for (int i = 0; i < 4; i++)
        if ((children[i] = fork()) == 0)
            _exit(hammer(b));
    for (int i = 0; i < 4; i++) {
        int status;
        waitpid(children[i], &status, 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(look(b, "a").usage.memory_used, 0);
    assert_true(look(b, "a").usage.memory_peak <= 64 * MIB);
}

static void another_release_is_told_apart(void **state)
{
    struct gp_board *b = *state, *other = NULL;
    assert_int_equal(gp_board_open("/nowhere/board", &other), -ENOENT);
    b->file->version++;
    assert_int_equal(gp_board_open(path, &other), -EPROTO);
    b->file->version--;
    assert_int_equal(gp_board_open(path, &other), 0);
    gp_board_close(other);
    char file[] = "/tmp/gp-board-XXXXXX";
    int fd = mkstemp(file);
    assert_int_equal(write(fd, "garbage", 7), 7);
    assert_int_equal(gp_board_open(file, &other), -EPROTO);
    close(fd);
    unlink(file);
}

static void it_is_described(void **state)
{
    struct gp_board *b = *state;
    static char text[65536];
    int m = gp_board_join(b, "a");
    assert_true(gp_board_memory_take(b, m, 5 * MIB));
    int n = gp_board_describe(b, text, sizeof text);
    assert_int_equal(n, (int)strlen(text));
    assert_non_null(strstr(text, "\"name\": \"a\""));
    assert_non_null(strstr(text, "\"memory_used\": 5242880"));
    char cut[10];
    assert_int_equal(gp_board_describe(b, cut, sizeof cut), n); /* says how much it needs */
    assert_int_equal(strlen(cut), sizeof cut - 1);
}

int main(void)
{
#define BOARD_TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)
    const struct CMUnitTest tests[] = {
        BOARD_TEST(memory_is_limited),
        BOARD_TEST(limits_change_while_in_use),
        BOARD_TEST(nonsense_is_refused),
        BOARD_TEST(there_is_an_end_of_room),
        BOARD_TEST(the_dead_have_nothing),
        BOARD_TEST(a_lock_outlives_its_owner),
        BOARD_TEST(many_take_and_give_at_once),
        BOARD_TEST(another_release_is_told_apart),
        BOARD_TEST(it_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
