/* Nodes of the worker's own in captured graphs: hidden for as long as their graph lives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "graph.h"
#include "handles.h"

#define REAL(n) ((uint64_t)(n) << 8)
#define STREAM ((CUstream)REAL(1))
#define GRAPH ((CUgraph)REAL(2))
#define NODE ((CUgraphNode)REAL(3))

static struct gpw_session session;
static struct gpw_driver driver;
static CUstreamCaptureStatus capturing;
static cuuint64_t capture;

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                             CUgraph *graph, const CUgraphNode **nodes,
                             const CUgraphEdgeData **edges, size_t *count)
{
    static const CUgraphNode last[] = {NODE};
    (void)stream, (void)edges;
    *status = capturing;
    *id = capture;
    *graph = GRAPH;
    *nodes = last;
    *count = 1;
    return CUDA_SUCCESS;
}

static CUresult no_context(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

/* A capture is under way, with a hidden node. */
static int begin(void **state)
{
    (void)state;
    driver = (struct gpw_driver){.cuCtxGetCurrent = no_context,
                                 .cuStreamGetCaptureInfo_v3 = capture_info};
    session = (struct gpw_session){.driver = &driver, .handles = gpw_handles_new()};
    if (!session.handles || gpw_graphs_open(&session) != 0)
        return -1;
    uint64_t stream = gp_handle_make(GP_HANDLE_STREAM, 1, 0);
    assert_true(gpw_handle_free(&session, GP_HANDLE_STREAM, stream));
    gpw_handle_put(&session, GP_HANDLE_STREAM, stream, (uint64_t)STREAM, CUDA_SUCCESS);
    capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture = 7;
    gpw_capture_begun(&session, CUDA_SUCCESS);
    assert_int_equal(gpw_graph_hide_last(&session, STREAM), CUDA_SUCCESS);
    assert_true(gpw_graph_has_hidden(&session, GRAPH));
    return 0;
}

static int end(void **state)
{
    /* They go with the worker's process: the sanitizer finds them here. */
    static struct gpw_graphs *kept[8];
    static unsigned count;
    (void)state;
    assert_true(count < sizeof kept / sizeof kept[0]);
    kept[count++] = session.graphs;
    gpw_handles_free(session.handles);
    return 0;
}

static void capture_ends(CUresult r)
{
    capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    gpw_capture_ended(&session, r, r == CUDA_SUCCESS ? GRAPH : NULL);
}

static void they_stay_with_the_graph_of_a_capture(void **state)
{
    (void)state;
    capture_ends(CUDA_SUCCESS);
    assert_true(gpw_graph_has_hidden(&session, GRAPH));
    gpw_graph_ending(&session, GRAPH);
    assert_false(gpw_graph_has_hidden(&session, GRAPH));
}

/* The driver lets go of the graph, and gives its address to another. */
static void they_go_with_a_capture_that_was_given_up(void **state)
{
    (void)state;
    capture_ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_false(gpw_graph_has_hidden(&session, GRAPH));
}

static void one_that_is_invalid_has_none(void **state)
{
    (void)state;
    capturing = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    assert_false(gpw_graph_has_hidden(&session, GRAPH));
}

static void another_capture_is_not_theirs(void **state)
{
    (void)state;
    capture = 8;
    assert_false(gpw_graph_has_hidden(&session, GRAPH));
}

/* Whose end harms none that goes on. */
static void the_end_of_another_harms_them_not(void **state)
{
    (void)state;
    gpw_capture_begun(&session, CUDA_SUCCESS);
    gpw_capture_ended(&session, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, NULL);
    assert_true(gpw_graph_has_hidden(&session, GRAPH));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(they_stay_with_the_graph_of_a_capture), CASE(they_go_with_a_capture_that_was_given_up),
        CASE(one_that_is_invalid_has_none),          CASE(another_capture_is_not_theirs),
        CASE(the_end_of_another_harms_them_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
