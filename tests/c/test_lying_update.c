/* A worker that lies of graphs: of updates, whose results programs look up in tables, and of host
 * functions that a graph has come to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <unistd.h>

#include "fake_worker.h"
#include "graph_node.h"
#include "handle.h"
#include "host_function.h"

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

static void CUDA_CB run_up(void *at)
{
    __atomic_fetch_add((int *)at, 1, __ATOMIC_SEQ_CST);
}

/* No graph was launched since it was put into one. */
static void functions_of_no_launch(void **state)
{
    (void)state;
    struct gpc_session *s = fake_session();
    const struct timespec moment = {0, 1000000};
    int runs = 0;
    const CUDA_HOST_NODE_PARAMS p = {run_up, &runs};
    const uint64_t graph = gpc_handle_new(GP_HANDLE_GRAPH, 0);
    CUgraphNode node;
    s->graph_launches++;
    assert_int_equal(gpc_host_function_node(&p, NULL, (CUgraph)graph, &node, NULL, NULL),
                     CUDA_SUCCESS);
    const struct gp_req_gp_host_call call = {.h = {.size = sizeof call, .op = GP_OP_gp_host_call},
                                             .cookie = 1}; /* the first one's name */
    for (int i = 0; i < 10; i++)
        gpc_on_gp_host_call(s, &call);
    assert_int_equal(gpc_host_functions_outstanding(), 1); /* none of them is to run */
    s->graph_launches++;
    fake_say(&call, sizeof call); /* as a message: the thread that runs it may wait for one */
    while (__atomic_load_n(&runs, __ATOMIC_SEQ_CST) == 0)
        nanosleep(&moment, NULL);
    assert_int_equal(__atomic_load_n(&runs, __ATOMIC_SEQ_CST), 1);
}

/* A worker that says it of none, or twice, or before its last call was run: the function is let go
 * of once, behind what is due of it, and never runs again. */
static void functions_that_are_gone(void **state)
{
    (void)state;
    struct gpc_session *s = fake_session();
    const struct timespec moment = {0, 1000000};
    int runs = 0, gone = 0;
    const CUDA_HOST_NODE_PARAMS p = {run_up, &runs}, of_ours = {run_up, &gone};
    const uint64_t graph = gpc_handle_new(GP_HANDLE_GRAPH, 0);
    CUgraphNode node;
    unsigned before = gpc_host_functions_outstanding();
    assert_int_equal(gpc_host_function_node(&p, NULL, (CUgraph)graph, &node, NULL, NULL),
                     CUDA_SUCCESS);
    assert_int_equal(gpc_host_function_node(&of_ours, run_up, (CUgraph)graph, &node, NULL, NULL),
                     CUDA_SUCCESS);
    assert_int_equal(gpc_host_functions_outstanding(), before + 2);
    const uint64_t names[] = {99, 2, 2, 3, 3, UINT64_MAX}; /* 1 was the first test's */
    s->graph_launches++;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        const struct gp_req_gp_host_gone said = {
            .h = {.size = sizeof said, .op = GP_OP_gp_host_gone}, .cookie = names[i]};
        const struct gp_req_gp_host_call call = {
            .h = {.size = sizeof call, .op = GP_OP_gp_host_call}, .cookie = names[i]};
        fake_say(&said, sizeof said);
        fake_say(&call, sizeof call);
    }
    while (gpc_host_functions_outstanding() > before)
        nanosleep(&moment, NULL);
    assert_int_equal(__atomic_load_n(&runs, __ATOMIC_SEQ_CST), 0);
    assert_int_equal(__atomic_load_n(&gone, __ATOMIC_SEQ_CST), 1);
}

int main(void)
{
    alarm(120);
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_of_an_update),
                                       cmocka_unit_test(functions_of_no_launch),
                                       cmocka_unit_test(functions_that_are_gone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
