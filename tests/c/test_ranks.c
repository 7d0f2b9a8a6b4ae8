/* Communicators that have lost a rank: what the server is told, and what is given up, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "gate.h"
#include "ipc.h"
#include "ranks.h"
#include "unique_id.h"

#define SECONDS UINT64_C(1000000000)
#define REAL ((ncclComm_t)1)

/* --- what stands in for the worker around it ------------------------------------------------ */

static struct {
    char said[256]; /* to the server, each line with its end */
    uint64_t servers;
    bool pending, busy;
} world;

bool gpw_ipc_say(struct gpw_session *s, const char *line)
{
    (void)s;
    size_t at = strlen(world.said);
    snprintf(world.said + at, sizeof world.said - at, "%s\n", line);
    return true;
}

uint64_t gpw_ipc_servers(struct gpw_session *s)
{
    (void)s;
    return world.servers;
}

void gpw_ipc_listen(struct gpw_session *s)
{
    (void)s;
}

bool gpw_gate_busy(struct gpw_session *s)
{
    (void)s;
    return world.busy;
}

ncclResult_t gpw_communicator_state(struct gpw_session *s, struct gp_communicator *c)
{
    (void)s;
    return c->failed != ncclSuccess ? c->failed : c->ranks ? ncclSuccess : ncclInProgress;
}

bool gpw_communicator_pending(struct gpw_session *s, struct gp_communicator *c)
{
    (void)s, (void)c;
    return world.pending;
}

/* --- a session with one communicator ---------------------------------------------------------- */

static struct gp_communicator one;
static struct gpw_nccl nccl = {.communicators = &one};
static struct gpw_session session = {.nccl = &nccl};
static uint8_t sealed[NCCL_UNIQUE_ID_BYTES];
static char lost[64];

static int set_up(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.servers = 1;
    memset(sealed + GPW_ID_BODY, 0xab, sizeof sealed - GPW_ID_BODY);
    one = (struct gp_communicator){.real = REAL, .ranks = 2};
    gpw_ranks_key(&one, sealed);
    snprintf(lost, sizeof lost, "lost %s", "abababababababababababababababab");
    return 0;
}

/* Nothing has changed since this many seconds more. */
static ncclResult_t after(uint64_t seconds)
{
    if (one.stuck_since)
        one.stuck_since -= seconds * SECONDS;
    gpw_ranks_tick(&session);
    return one.failed;
}

static void each_server_is_told_once(void **state)
{
    (void)state;
    world.servers = 0;
    gpw_ranks_tick(&session);
    assert_string_equal(world.said, "");
    world.servers = 1;
    gpw_ranks_tick(&session);
    gpw_ranks_tick(&session);
    assert_string_equal(world.said, "rank abababababababababababababababab\n");
    world.servers = 2;
    gpw_ranks_tick(&session);
    gpw_ranks_left(&session, &one);
    assert_string_equal(world.said, "rank abababababababababababababababab\n"
                                    "rank abababababababababababababababab\n"
                                    "left abababababababababababababababab\n");
}

static void what_is_no_word_of_a_loss(void **state)
{
    (void)state;
    static const char *const lines[] = {"",
                                        "lost",
                                        "lost ",
                                        "lost abababababababababababababababa",
                                        "lost ababababababababababababababababab",
                                        "lost abababababababababababababababag",
                                        "lost cdabababababababababababababababab",
                                        "gone abababababababababababababababab"};
    for (unsigned i = 0; i < sizeof lines / sizeof lines[0]; i++)
        gpw_ranks_heard(&session, lines[i]);
    assert_false(one.lost);
    gpw_ranks_heard(&session, lost);
    assert_true(one.lost);
}

/* What the dead one had done before may still be on its way. */
static void one_that_is_begun_is_waited_for(void **state)
{
    (void)state;
    one.ranks = 0;
    gpw_ranks_heard(&session, lost);
    assert_int_equal(after(0), ncclSuccess);
    assert_int_equal(after(4), ncclSuccess);
    assert_int_equal(after(2), ncclRemoteError);
    assert_true(one.given_up);
}

static void work_that_goes_on_is_left_alone(void **state)
{
    (void)state;
    world.pending = true;
    assert_int_equal(after(9), ncclSuccess); /* nobody is lost */
    gpw_ranks_heard(&session, lost);
    for (int i = 0; i < 5; i++) {
        one.batch++;
        assert_int_equal(after(9), ncclSuccess);
    }
    assert_int_equal(after(9), ncclRemoteError);
}

static void what_does_not_wait_goes_on(void **state)
{
    (void)state;
    gpw_ranks_heard(&session, lost);
    for (int i = 0; i < 5; i++)
        assert_int_equal(after(9), ncclSuccess);
    one.captured = true;
    assert_int_equal(after(9), ncclSuccess);
    world.busy = true;
    assert_int_equal(after(0), ncclSuccess);
    assert_int_equal(after(9), ncclRemoteError);
}

static bool alike(const struct gp_communicator *x, const struct gp_communicator *y)
{
    assert_true(x->keyed && y->keyed);
    return memcmp(x->key, y->key, sizeof x->key) == 0;
}

/* Ranks that were excluded from one communicator may be in the next part with the others. */
static void all_ranks_find_one_key(void **state)
{
    (void)state;
    static const int32_t excluded[] = {5, 3}, the_same[] = {3, 5}, others[] = {3, 4};
    struct gp_communicator parent = one, excluded_parent = one, rest, rest_elsewhere, part, again,
                           part_of_excluded;
    gpw_ranks_key_of_rest(&rest, &parent, excluded, 2);
    gpw_ranks_key_of_rest(&rest_elsewhere, &parent, the_same, 2);
    assert_true(alike(&rest, &rest_elsewhere));
    assert_false(alike(&rest, &parent));
    gpw_ranks_key_of_rest(&rest_elsewhere, &parent, others, 2);
    assert_false(alike(&rest, &rest_elsewhere));
    gpw_ranks_key_of_part(&part, &parent, 7);
    gpw_ranks_key_of_part(&part_of_excluded, &excluded_parent, 7);
    assert_true(alike(&part, &part_of_excluded));
    gpw_ranks_key_of_part(&again, &parent, 7);
    assert_false(alike(&part, &again));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        CASE(each_server_is_told_once),        CASE(what_is_no_word_of_a_loss),
        CASE(one_that_is_begun_is_waited_for), CASE(work_that_goes_on_is_left_alone),
        CASE(what_does_not_wait_goes_on),      CASE(all_ranks_find_one_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
