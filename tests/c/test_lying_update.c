/* A worker that lies of a graph's update: programs look what it says up in tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include "fake_worker.h"
#include "graph_node.h"
#include "handle.h"

struct update {
    pthread_t thread;
    CUresult result;
    CUgraphExecUpdateResultInfo info;
};

static void *update(void *arg)
{
    struct update *u = arg;
    const uint64_t exec = gpc_handle_new(GP_HANDLE_GRAPH_EXEC, 0);
    const uint64_t graph = gpc_handle_new(GP_HANDLE_GRAPH, 0);
    u->result = gpc_exec_update((CUgraphExec)exec, (CUgraph)graph, &u->info, NULL, NULL);
    gpc_handle_drop(exec);
    gpc_handle_drop(graph);
    return NULL;
}

/* What the program gets of an update that the worker says these numbers of. */
static struct update updated(uint32_t status, uint32_t result)
{
    struct gp_rep_gp_graph_exec_update reply = {.status = status, .result = result};
    struct update u = {.result = CUDA_SUCCESS};
    fake_session();
    assert_int_equal(pthread_create(&u.thread, NULL, update, &u), 0);
    fake_answer(fake_asked(0), &reply.r, sizeof reply, NULL, 0);
    pthread_join(u.thread, NULL);
    return u;
}

static void results_of_an_update(void **state)
{
    (void)state;
    struct update u = updated(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                              CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED);
    assert_int_equal(u.result, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    assert_int_equal(u.info.result, CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED);
    static const uint32_t wrong[] = {CUDA_ERROR_UNKNOWN + 1, INT32_MAX, UINT32_MAX};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        u = updated(wrong[i], wrong[i]);
        assert_int_equal(u.result, CUDA_ERROR_UNKNOWN);
        assert_int_equal(u.info.result, CU_GRAPH_EXEC_UPDATE_ERROR);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_of_an_update)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
