/* The worker's handles: an id lives no longer than what it belongs to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "budget.h"
#include "handles.h"

#define REAL(n) ((uint64_t)(n) << 8)

static struct gpw_session session;
static struct gpw_driver driver;
static CUcontext current;
static CUstreamCaptureStatus capturing;
static uint64_t captured_graph;

static CUresult get_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                             CUgraph *graph, const CUgraphNode **nodes,
                             const CUgraphEdgeData **edges, size_t *count)
{
    (void)stream, (void)nodes, (void)edges, (void)count;
    *status = capturing;
    *id = 7;
    *graph = (CUgraph)captured_graph;
    return CUDA_SUCCESS;
}

static int begin(void **state)
{
    (void)state;
    driver = (struct gpw_driver){.cuCtxGetCurrent = get_current,
                                 .cuStreamGetCaptureInfo_v3 = capture_info};
    session = (struct gpw_session){.driver = &driver, .handles = gpw_handles_new()};
    current = NULL;
    capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return session.handles ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    gpw_handles_free(session.handles);
    return 0;
}

static uint64_t made(enum gp_handle_kind kind, uint32_t index, uint64_t real, uint64_t parent,
                     bool of_context)
{
    uint64_t id = gp_handle_make(kind, index, 0);
    assert_true(gpw_handle_free(&session, kind, id));
    gpw_handle_put(&session, kind, id, real, CUDA_SUCCESS);
    gpw_handle_bind(&session, kind, id, parent, of_context, 0);
    return id;
}

static CUresult asked(enum gp_handle_kind kind, uint64_t id)
{
    uint64_t real;
    return gpw_handle_get(&session, kind, id, false, &real);
}

static void destroyed(enum gp_handle_kind kind, uint64_t id)
{
    uint64_t real;
    assert_int_equal(gpw_handle_take(&session, kind, id, false, &real), CUDA_SUCCESS);
}

static void children_go_with_their_parents(void **state)
{
    (void)state;
    uint64_t library = made(GP_HANDLE_LIBRARY, 1, REAL(1), 0, false);
    uint64_t kernel = made(GP_HANDLE_FUNCTION, 1, REAL(2), library, false);
    uint64_t function = made(GP_HANDLE_FUNCTION, 2, REAL(3), kernel, true);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, function), CUDA_SUCCESS);
    destroyed(GP_HANDLE_LIBRARY, library);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, kernel), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, function), CUDA_ERROR_INVALID_HANDLE);
    /* the same place in the table, and another library in it */
    gpw_handle_put(&session, GP_HANDLE_LIBRARY, gp_handle_make(GP_HANDLE_LIBRARY, 1, 1), REAL(1),
                   CUDA_SUCCESS);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, kernel), CUDA_ERROR_INVALID_HANDLE);
}

static void a_contexts_own_go_with_it(void **state)
{
    (void)state;
    uint64_t first = made(GP_HANDLE_CONTEXT, 1, REAL(1), 0, false);
    uint64_t second = made(GP_HANDLE_CONTEXT, 2, REAL(2), 0, false);
    current = (CUcontext)REAL(2);
    uint64_t stream = made(GP_HANDLE_STREAM, 1, REAL(3), 0, true);
    uint64_t module = made(GP_HANDLE_MODULE, 1, REAL(4), 0, true);
    uint64_t function = made(GP_HANDLE_FUNCTION, 1, REAL(5), module, false);
    current = (CUcontext)REAL(1);
    uint64_t event = made(GP_HANDLE_EVENT, 1, REAL(6), 0, true);
    destroyed(GP_HANDLE_CONTEXT, second);
    assert_int_equal(asked(GP_HANDLE_STREAM, stream), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, function), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(asked(GP_HANDLE_EVENT, event), CUDA_SUCCESS);
    assert_int_equal(gpw_handle_find(&session, GP_HANDLE_STREAM, REAL(3)), 0);
    assert_int_equal(gpw_handle_find(&session, GP_HANDLE_CONTEXT, REAL(1)), first);
}

/* A primary context has one id for good, and a hostile client uses any id again. */
static void nothing_comes_to_life_with_an_id(void **state)
{
    (void)state;
    uint64_t context = made(GP_HANDLE_CONTEXT, 1, REAL(1), 0, false);
    current = (CUcontext)REAL(1);
    uint64_t stream = made(GP_HANDLE_STREAM, 1, REAL(2), 0, true);
    uint64_t module = made(GP_HANDLE_MODULE, 1, REAL(3), 0, false);
    uint64_t function = made(GP_HANDLE_FUNCTION, 1, REAL(4), module, false);
    assert_int_equal(asked(GP_HANDLE_STREAM, stream), CUDA_SUCCESS);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, function), CUDA_SUCCESS);
    destroyed(GP_HANDLE_CONTEXT, context);
    destroyed(GP_HANDLE_MODULE, module);
    assert_int_equal(made(GP_HANDLE_CONTEXT, 1, REAL(1), 0, false), context);
    assert_int_equal(made(GP_HANDLE_MODULE, 1, REAL(3), 0, false), module);
    assert_int_equal(asked(GP_HANDLE_STREAM, stream), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, function), CUDA_ERROR_INVALID_HANDLE);
    /* nor does what is bound to nothing */
    uint64_t orphan = made(GP_HANDLE_FUNCTION, 2, REAL(5), gp_handle_make(GP_HANDLE_MODULE, 2, 0),
                           false);
    made(GP_HANDLE_MODULE, 2, REAL(6), 0, false);
    assert_int_equal(asked(GP_HANDLE_FUNCTION, orphan), CUDA_ERROR_INVALID_HANDLE);
}

static void nodes_go_with_their_graph(void **state)
{
    (void)state;
    uint64_t graph = made(GP_HANDLE_GRAPH, 1, REAL(1), 0, false);
    uint64_t node = gpw_handle_name(&session, REAL(2), REAL(1));
    assert_int_equal(gpw_handle_name(&session, REAL(2), REAL(1)), node);
    assert_int_equal(asked(GP_HANDLE_GRAPH_NODE, node), CUDA_SUCCESS);
    destroyed(GP_HANDLE_GRAPH, graph);
    assert_int_equal(asked(GP_HANDLE_GRAPH_NODE, node), CUDA_ERROR_INVALID_VALUE);
    made(GP_HANDLE_GRAPH, 2, REAL(1), 0, false); /* where it was */
    assert_int_equal(asked(GP_HANDLE_GRAPH_NODE, node), CUDA_ERROR_INVALID_VALUE);
    assert_true(gpw_handle_name(&session, REAL(2), REAL(1)) != node);
}

/* The driver gives their addresses again, to a graph that is another's child or nobody's. */
static void nodes_go_with_the_parent_of_their_graph(void **state)
{
    (void)state;
    uint64_t outer = made(GP_HANDLE_GRAPH, 1, REAL(1), 0, false);
    uint64_t node = made(GP_HANDLE_GRAPH_NODE, 1, REAL(2), outer, false);
    made(GP_HANDLE_GRAPH, 2, REAL(3), node, false);
    uint64_t within = gpw_handle_name(&session, REAL(4), REAL(3));
    assert_int_equal(asked(GP_HANDLE_GRAPH_NODE, within), CUDA_SUCCESS);
    destroyed(GP_HANDLE_GRAPH, outer);
    uint64_t other = made(GP_HANDLE_GRAPH, 3, REAL(3), 0, false);
    assert_int_equal(asked(GP_HANDLE_GRAPH_NODE, within), CUDA_ERROR_INVALID_VALUE);
    assert_true(gpw_handle_name(&session, REAL(4), REAL(3)) != within);
    assert_int_equal(gpw_handle_graph_of(&session, REAL(4)), other);
}

static void a_node_takes_the_graph_that_it_has_along(void **state)
{
    (void)state;
    uint64_t outer = made(GP_HANDLE_GRAPH, 1, REAL(1), 0, false);
    uint64_t node = made(GP_HANDLE_GRAPH_NODE, 1, REAL(2), outer, false);
    made(GP_HANDLE_GRAPH, 2, REAL(3), node, false);
    uint64_t within = gpw_handle_name(&session, REAL(4), REAL(3));
    gpw_handle_node_gone(&session, REAL(2));
    made(GP_HANDLE_GRAPH, 3, REAL(3), 0, false);
    assert_int_equal(asked(GP_HANDLE_GRAPH_NODE, within), CUDA_ERROR_INVALID_VALUE);
}

/* A name of another graph, which the driver has let go of unasked, says nothing of a node. */
static void a_node_is_of_a_graph_that_lives(void **state)
{
    (void)state;
    uint64_t stream = made(GP_HANDLE_STREAM, 1, REAL(1), 0, false);
    capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    captured_graph = REAL(2);
    gpw_handle_next_graph(&session, 0, 7);
    made(GP_HANDLE_GRAPH, 1, REAL(2), stream, false);
    gpw_handle_name(&session, REAL(3), REAL(2));
    capturing = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    uint64_t graph = made(GP_HANDLE_GRAPH, 2, REAL(4), 0, false);
    gpw_handle_name(&session, REAL(3), REAL(4));
    assert_int_equal(gpw_handle_graph_of(&session, REAL(3)), graph);
}

static void a_graph_is_lent_while_it_is_captured(void **state)
{
    uint64_t real;
    (void)state;
    uint64_t stream = made(GP_HANDLE_STREAM, 1, REAL(1), 0, false);
    capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    captured_graph = REAL(2);
    gpw_handle_next_graph(&session, 0, 7);
    uint64_t lent = made(GP_HANDLE_GRAPH, 1, REAL(2), stream, false);
    assert_int_equal(asked(GP_HANDLE_GRAPH, lent), CUDA_SUCCESS);
    assert_int_equal(gpw_handle_take(&session, GP_HANDLE_GRAPH, lent, false, &real),
                     CUDA_ERROR_INVALID_VALUE);
    capturing = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    assert_int_equal(asked(GP_HANDLE_GRAPH, lent), CUDA_ERROR_INVALID_VALUE);
    made(GP_HANDLE_GRAPH, 2, REAL(2), 0, false); /* another graph, in its place */
    capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_int_equal(asked(GP_HANDLE_GRAPH, lent), CUDA_ERROR_INVALID_VALUE);
}

/* The worker names nodes itself, too, by numbers that a client's may have. */
static void a_child_graph_goes_with_the_node_that_it_was_bound_to(void **state)
{
    (void)state;
    uint64_t captured = made(GP_HANDLE_GRAPH, 1, REAL(1), 0, false);
    uint64_t graph = made(GP_HANDLE_GRAPH, 2, REAL(2), 0, false);
    assert_true(gpw_handle_name(&session, REAL(3), REAL(1)) & GP_HANDLE_WORKER_NAMED);
    uint64_t node = made(GP_HANDLE_GRAPH_NODE, 1, REAL(4), graph, false);
    uint64_t child = made(GP_HANDLE_GRAPH, 3, REAL(5), node, false);
    destroyed(GP_HANDLE_GRAPH, captured);
    assert_int_equal(asked(GP_HANDLE_GRAPH, child), CUDA_SUCCESS);
    destroyed(GP_HANDLE_GRAPH, graph);
    assert_int_equal(asked(GP_HANDLE_GRAPH, child), CUDA_ERROR_INVALID_VALUE);
}

/* What was found is remembered, until its place in the table has another object, or none. */
static void what_was_found_is_found_no_longer_than_it_lives(void **state)
{
    (void)state;
    uint64_t id = made(GP_HANDLE_STREAM, 1, REAL(1), 0, false), real = 0;
    uint64_t other = made(GP_HANDLE_STREAM, 17, REAL(2), 0,
                          false); /* remembered where the first is */
    uint64_t next = gp_handle_make(GP_HANDLE_STREAM, 1, 1);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(gpw_handle_get(&session, GP_HANDLE_STREAM, id, false, &real),
                         CUDA_SUCCESS);
        assert_int_equal(real, REAL(1));
        assert_int_equal(gpw_handle_get(&session, GP_HANDLE_STREAM, other, false, &real),
                         CUDA_SUCCESS);
        assert_int_equal(real, REAL(2));
    }
    assert_int_equal(asked(GP_HANDLE_FUNCTION, other), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(asked(GP_HANDLE_STREAM, id), CUDA_SUCCESS);
    gpw_handle_put(&session, GP_HANDLE_STREAM, next, REAL(3), CUDA_SUCCESS);
    assert_int_equal(asked(GP_HANDLE_STREAM, id), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(gpw_handle_get(&session, GP_HANDLE_STREAM, next, false, &real), CUDA_SUCCESS);
    assert_int_equal(real, REAL(3));
    gpw_handle_put(&session, GP_HANDLE_STREAM, next, REAL(4), CUDA_SUCCESS);
    assert_int_equal(gpw_handle_get(&session, GP_HANDLE_STREAM, next, false, &real), CUDA_SUCCESS);
    assert_int_equal(real, REAL(4));
    destroyed(GP_HANDLE_STREAM, next);
    assert_int_equal(asked(GP_HANDLE_STREAM, next), CUDA_ERROR_INVALID_HANDLE);
}

/* A client that asks for the graph of a capture names it anew each time, and keeps one name. */
static void an_object_lives_by_any_of_its_ids(void **state)
{
    (void)state;
    uint64_t first = made(GP_HANDLE_GRAPH, 1, REAL(1), 0, false);
    uint64_t birth = gpw_handle_birth(&session, first);
    uint64_t kept = made(GP_HANDLE_GRAPH, 2, REAL(1), 0, false);
    assert_int_equal(gpw_handle_birth(&session, kept), birth);
    gpw_handle_put(&session, GP_HANDLE_GRAPH, gp_handle_make(GP_HANDLE_GRAPH, 1, 1), REAL(2),
                   CUDA_SUCCESS);
    assert_int_equal(gpw_handle_real(&session, first, birth), REAL(1));
    destroyed(GP_HANDLE_GRAPH, kept);
    assert_int_equal(gpw_handle_real(&session, first, birth), 0);
    uint64_t next = made(GP_HANDLE_GRAPH, 3, REAL(1), 0, false);
    assert_int_not_equal(gpw_handle_birth(&session, next), birth);
}

/* A client that uses one index again and again, without a word of destroying, would have as
 * many streams as it likes for the price of one. */
static void what_the_driver_still_has_is_charged(void **state)
{
    (void)state;
    made(GP_HANDLE_STREAM, 1, REAL(1), 0, false);
    uint64_t before = gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY);
    gpw_handle_put(&session, GP_HANDLE_STREAM, gp_handle_make(GP_HANDLE_STREAM, 1, 1), REAL(2),
                   CUDA_SUCCESS);
    assert_true(gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY) > before);
}

static void what_has_gone_is_charged_no_more(void **state)
{
    (void)state;
    uint64_t context = made(GP_HANDLE_CONTEXT, 1, REAL(1), 0, false);
    current = (CUcontext)REAL(1);
    made(GP_HANDLE_STREAM, 1, REAL(2), 0, true);
    uint64_t library = made(GP_HANDLE_LIBRARY, 1, REAL(3), 0, false);
    made(GP_HANDLE_FUNCTION, 1, REAL(4), library, false);
    uint64_t before = gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY);
    destroyed(GP_HANDLE_CONTEXT, context);
    uint64_t without = gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY);
    assert_true(without < before);
    gpw_handle_put(&session, GP_HANDLE_STREAM, gp_handle_make(GP_HANDLE_STREAM, 1, 1), REAL(5),
                   CUDA_SUCCESS);
    gpw_handle_put(&session, GP_HANDLE_FUNCTION, gp_handle_make(GP_HANDLE_FUNCTION, 1, 1), REAL(4),
                   CUDA_SUCCESS); /* it was looked up twice */
    assert_true(gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY) == without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(children_go_with_their_parents, begin, end),
        cmocka_unit_test_setup_teardown(a_contexts_own_go_with_it, begin, end),
        cmocka_unit_test_setup_teardown(nothing_comes_to_life_with_an_id, begin, end),
        cmocka_unit_test_setup_teardown(nodes_go_with_their_graph, begin, end),
        cmocka_unit_test_setup_teardown(nodes_go_with_the_parent_of_their_graph, begin, end),
        cmocka_unit_test_setup_teardown(a_node_takes_the_graph_that_it_has_along, begin, end),
        cmocka_unit_test_setup_teardown(a_node_is_of_a_graph_that_lives, begin, end),
        cmocka_unit_test_setup_teardown(a_graph_is_lent_while_it_is_captured, begin, end),
        cmocka_unit_test_setup_teardown(a_child_graph_goes_with_the_node_that_it_was_bound_to,
                                        begin, end),
        cmocka_unit_test_setup_teardown(what_was_found_is_found_no_longer_than_it_lives, begin,
                                        end),
        cmocka_unit_test_setup_teardown(an_object_lives_by_any_of_its_ids, begin, end),
        cmocka_unit_test_setup_teardown(what_the_driver_still_has_is_charged, begin, end),
        cmocka_unit_test_setup_teardown(what_has_gone_is_charged_no_more, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
