/* A worker that lies of collectives: of ranks, by which programs have lists, of what went wrong, which
 * they print, and of ids, which they hand on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <unistd.h>

#include "communicator_table.h"
#include "fake_worker.h"
#include "handle.h"

static const struct gpc_communicator_table *const table = &gpc_communicator_table;

static gp_communicator comm;

static int set_up(void **state)
{
    (void)state;
    fake_session();
    comm = (gp_communicator)gpc_handle_new(GP_HANDLE_COMMUNICATOR, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gpc_handle_drop((uint64_t)comm);
    return 0;
}

/* --- where a communicator is ------------------------------------------------------------------ */

static struct gp_rep_gp_nccl_state said;

static void answer_state(const struct gp_header *h)
{
    if (h->op == GP_OP_gp_nccl_state)
        fake_answer(h->seq, &said.r, sizeof said, NULL, 0);
}

static CUresult state_of(int32_t ranks, int32_t rank)
{
    int32_t result = 0, got_ranks = -7, got_rank = -7;
    said = (struct gp_rep_gp_nccl_state){.ranks = ranks, .rank = rank};
    fake_channel.on_send = answer_state;
    CUresult r = table->state(comm, &result, &got_ranks, &got_rank);
    assert_int_equal(got_ranks, r == CUDA_SUCCESS ? ranks : -7);
    assert_int_equal(got_rank, r == CUDA_SUCCESS ? rank : -7);
    return r;
}

static void ranks_that_cannot_be(void **state)
{
    (void)state;
    static const int32_t right[][2] = {{0, 0}, {1, 0}, {8, 7}, {INT32_MAX, INT32_MAX - 1}};
    static const int32_t wrong[][2] = {{-1, 0}, {8, -1}, {8, 8}, {0, 1}, {INT32_MIN, INT32_MIN}};
    for (unsigned i = 0; i < sizeof right / sizeof right[0]; i++)
        assert_int_equal(state_of(right[i][0], right[i][1]), CUDA_SUCCESS);
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(state_of(wrong[i][0], wrong[i][1]), CUDA_ERROR_UNKNOWN);
}

/* --- what went wrong --------------------------------------------------------------------------- */

static const char *line;
static uint32_t line_bytes;

static void answer_error(const struct gp_header *h)
{
    struct gp_rep_gp_nccl_last_error reply = {.n_text = line_bytes};
    if (h->op == GP_OP_gp_nccl_last_error)
        fake_answer(h->seq, &reply.r, sizeof reply, line, line_bytes);
}

/* The text for a line, which ends within its room. */
static void expect(const char *from, uint32_t bytes, const char *text)
{
    char got[GP_NCCL_TEXT_MAX];
    memset(got, '#', sizeof got);
    line = from;
    line_bytes = bytes;
    fake_channel.on_send = answer_error;
    assert_int_equal(table->last_error(NULL, got), CUDA_SUCCESS);
    assert_non_null(memchr(got, '\0', sizeof got));
    assert_string_equal(got, text);
}

static void texts_without_an_end(void **state)
{
    (void)state;
    char whole[GP_NCCL_TEXT_MAX];
    memset(whole, 'x', sizeof whole);
    char most[GP_NCCL_TEXT_MAX] = "";
    memset(most, 'x', sizeof most - 1);
    expect("a rank\0is gone", sizeof "a rank\0is gone", "a rank");
    expect(whole, sizeof whole, most);
    expect(whole, 3, "xxx");
    expect("", 0, "");
    expect("\033[2J\nrank", 9, " [2J rank");
}

/* --- half of an answer --------------------------------------------------------------------------- */

static uint32_t part;

static void answer_in_part(const struct gp_header *h)
{
    static const char bytes[GP_NCCL_ID_BYTES];
    struct gp_rep_gp_nccl_unique_id id = {.n_id = part};
    struct gp_rep_gp_nccl_settled results = {.n_results = part};
    struct gp_rep_gp_nccl_end ended = {.n_results = part};
    if (h->op == GP_OP_gp_nccl_unique_id)
        fake_answer(h->seq, &id.r, sizeof id, bytes, part);
    else if (h->op == GP_OP_gp_nccl_settled)
        fake_answer(h->seq, &results.r, sizeof results, bytes, part);
    else if (h->op == GP_OP_gp_nccl_end)
        fake_answer(h->seq, &ended.r, sizeof ended, bytes, part);
}

static void answers_that_are_cut(void **state)
{
    (void)state;
    int32_t results[2] = {0};
    uint8_t id[GP_NCCL_ID_BYTES];
    fake_channel.on_send = answer_in_part;
    part = sizeof id - 1;
    assert_int_equal(table->unique_id(results, id), CUDA_ERROR_UNKNOWN);
    part = sizeof id;
    assert_int_equal(table->unique_id(results, id), CUDA_SUCCESS);
    part = sizeof results[0];
    assert_int_equal(table->settled(comm, results), CUDA_ERROR_UNKNOWN);
    part = sizeof results;
    assert_int_equal(table->settled(comm, results), CUDA_SUCCESS);
    part = 0;
    assert_int_equal(table->end(comm, 0, results), CUDA_ERROR_UNKNOWN);
}

int main(void)
{
    alarm(120);
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(ranks_that_cannot_be),
        CASE(texts_without_an_end),
        CASE(answers_that_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
