/* User objects: ended once, when neither the program nor any graph has a reference any more. */
#include "driver.h"

#include <stdbool.h>
#include <time.h>

static CUstream stream;
static CUdeviceptr word;

/* What an object stands for: how often it was ended. */
struct thing {
    int ended;
};

static void CUDA_CB end_thing(void *argument)
{
    __atomic_fetch_add(&((struct thing *)argument)->ended, 1, __ATOMIC_SEQ_CST);
}

static int ended(struct thing *thing)
{
    return __atomic_load_n(&thing->ended, __ATOMIC_SEQ_CST);
}

/* The function runs on some other thread, in its own time, and no call waits for it. */
static void expect_ended(struct thing *thing, const char *when)
{
    const struct timespec pause = {0, 5000000};
    for (int i = 0; i < 6000 && !ended(thing); i++)
        nanosleep(&pause, NULL);
    EXPECT(ended(thing) == 1, "%s: ended %d times, expected once", when, ended(thing));
}

static void expect_alive(struct thing *thing, const char *when)
{
    CU(cuCtxSynchronize());
    EXPECT(ended(thing) == 0, "%s: ended %d times", when, ended(thing));
}

static CUuserObject object_of(struct thing *thing, unsigned references)
{
    CUuserObject object = NULL;
    thing->ended = 0;
    CU(cuUserObjectCreate(&object, thing, end_thing, references,
                          CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return object;
}

static CUgraph graph_with_a_node(void)
{
    CUgraph graph;
    CUgraphNode node;
    const CUDA_MEMSET_NODE_PARAMS set = {
        .dst = word, .value = 1, .elementSize = 4, .width = 1, .height = 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, driver_context));
    return graph;
}

static void of_the_program(void)
{
    struct thing thing;
    CUuserObject object = object_of(&thing, 1);
    CU(cuUserObjectRetain(object, 2));
    CU(cuUserObjectRelease(object, 2));
    expect_alive(&thing, "a reference is left");
    CU(cuUserObjectRelease(object, 1));
    expect_ended(&thing, "the last reference went");
}

static void of_a_graph(void)
{
    struct thing moved, shared;
    CUuserObject object = object_of(&moved, 1), other = object_of(&shared, 1);
    CUgraph graph = graph_with_a_node();
    CU(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CU(cuGraphRetainUserObject(graph, other, 1, 0));
    expect_alive(&moved, "the graph has it");
    CU(cuGraphDestroy(graph));
    expect_ended(&moved, "the graph that had it went");
    expect_alive(&shared, "the program has it, too");
    CU(cuUserObjectRelease(other, 1));
    expect_ended(&shared, "the graph went, then the program's reference");
}

static void released_by_a_graph(void)
{
    struct thing thing;
    CUuserObject object = object_of(&thing, 3);
    CUgraph graph = graph_with_a_node();
    CU(cuGraphRetainUserObject(graph, object, 3, CU_GRAPH_USER_OBJECT_MOVE));
    CU(cuGraphReleaseUserObject(graph, object, 2));
    expect_alive(&thing, "the graph has one reference");
    CU(cuGraphReleaseUserObject(graph, object, 1));
    expect_ended(&thing, "the graph gave it back");
    CU(cuGraphDestroy(graph));
    EXPECT(ended(&thing) == 1, "it was ended again");
}

static void of_what_is_made_of_a_graph(void)
{
    struct thing cloned, instantiated, launched;
    CUgraph graph = graph_with_a_node(), clone;
    CUgraphExec exec;
    CU(cuGraphRetainUserObject(graph, object_of(&cloned, 1), 1, CU_GRAPH_USER_OBJECT_MOVE));
    CU(cuGraphClone(&clone, graph));
    CU(cuGraphDestroy(graph));
    expect_alive(&cloned, "a clone has it");
    CU(cuGraphDestroy(clone));
    expect_ended(&cloned, "the clone went");

    graph = graph_with_a_node();
    CU(cuGraphRetainUserObject(graph, object_of(&instantiated, 1), 1, CU_GRAPH_USER_OBJECT_MOVE));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    expect_alive(&instantiated, "an instantiated graph has it");
    CU(cuGraphLaunch(exec, stream));
    CU(cuGraphExecDestroy(exec));
    expect_ended(&instantiated, "the instantiated graph went behind a launch");

    graph = graph_with_a_node();
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphRetainUserObject(graph, object_of(&launched, 1), 1, CU_GRAPH_USER_OBJECT_MOVE));
    CU(cuGraphDestroy(graph));
    expect_ended(&launched, "what was instantiated before has nothing of it");
    CU(cuGraphExecDestroy(exec));
}

static void of_a_captured_graph(void)
{
    struct thing thing;
    CUgraph graph;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemsetD32Async(word, 2, 1, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphRetainUserObject(graph, object_of(&thing, 1), 1, CU_GRAPH_USER_OBJECT_MOVE));
    expect_alive(&thing, "a captured graph has it");
    CU(cuGraphDestroy(graph));
    expect_ended(&thing, "the captured graph went");
}

static void wrong(void)
{
    struct thing thing;
    CUuserObject none = NULL, object = object_of(&thing, 1);
    CUgraph graph = graph_with_a_node();
    const unsigned sync = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, many = 0x80000000u;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(NULL, &thing, end_thing, 1, sync));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&none, &thing, NULL, 1, sync));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&none, &thing, end_thing, 0, sync));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&none, &thing, end_thing, 1, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(NULL, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(object, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(NULL, object, 1, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(graph, NULL, 1, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(graph, object, 0, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(graph, object, many, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(graph, object, 1, 8));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(graph, object, 1));
    expect_alive(&thing, "nothing was done");
    CU(cuUserObjectRelease(object, 1));
    expect_ended(&thing, "after what was refused");
    CU(cuGraphDestroy(graph));
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&word, 4));
    of_the_program();
    of_a_graph();
    released_by_a_graph();
    of_what_is_made_of_a_graph();
    of_a_captured_graph();
    wrong();
    CU(cuMemFree(word));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_user_objects");
}
