/* Graphs built by hand: every kind of node, edges, lists, clones, and changes after the fact. */
#include "driver.h"

#include <stdbool.h>

enum { COUNT = 256, SIZE = COUNT * (int)sizeof(int) };

static CUmodule module;
static CUstream stream;
static CUfunction multiply_add;
static CUdeviceptr values, copied;
static int calls, other_calls;

static void CUDA_CB count_call(void *argument)
{
    __sync_fetch_and_add((int *)argument, 1);
}

static void expect_values(CUdeviceptr at, int wanted, const char *when)
{
    int got[COUNT];
    CU(cuMemcpyDtoH(got, at, SIZE));
    for (int i = 0; i < COUNT; i++)
        if (got[i] != wanted) {
            EXPECT(false, "%s: value %d is %d, expected %d", when, i, got[i], wanted);
            return;
        }
}

static void run(CUgraphExec exec)
{
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
}

static CUDA_MEMCPY3D line(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .Depth = 1};
}

/* What one graph holds: set -> kernel -> copy -> host function. */
struct chain {
    CUgraph graph;
    CUgraphNode set, kernel, copy, host;
};

static CUDA_MEMSET_NODE_PARAMS set_to(unsigned value)
{
    return (CUDA_MEMSET_NODE_PARAMS){
        .dst = values, .value = value, .elementSize = 4, .width = COUNT, .height = 1};
}

static CUDA_KERNEL_NODE_PARAMS kernel_with(void **parameters)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = multiply_add,
                                     .gridDimX = 2,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = COUNT / 2,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = parameters};
}

static struct chain build(int factor, int term)
{
    struct chain c;
    int n = COUNT;
    void *parameters[] = {&values, &n, &factor, &term};
    const CUDA_MEMSET_NODE_PARAMS set = set_to(2);
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_with(parameters);
    const CUDA_MEMCPY3D copy = line(copied, values, SIZE);
    const CUDA_HOST_NODE_PARAMS host = {count_call, &calls};

    CU(cuGraphCreate(&c.graph, 0));
    CU(cuGraphAddMemsetNode(&c.set, c.graph, NULL, 0, &set, driver_context));
    CU(cuGraphAddKernelNode(&c.kernel, c.graph, &c.set, 1, &kernel));
    CU(cuGraphAddMemcpyNode(&c.copy, c.graph, &c.kernel, 1, &copy, driver_context));
    CU(cuGraphAddHostNode(&c.host, c.graph, &c.copy, 1, &host));
    return c;
}

static void built_and_launched(void)
{
    struct chain c = build(3, 1);
    CUgraphExec exec;
    cuuint64_t flags = 99;
    calls = 0;
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    CU(cuGraphExecGetFlags(exec, &flags));
    EXPECT(flags == 0, "flags are %llu", (unsigned long long)flags);
    CU(cuGraphUpload(exec, stream));
    for (int round = 1; round <= 2; round++) {
        CU(cuMemsetD32(copied, 0, COUNT));
        run(exec);
        expect_values(copied, 7, "the chain");
        EXPECT(calls == round, "the host node ran %d times, expected %d", calls, round);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(c.graph));
}

static void wrong_nodes(void)
{
    struct chain c = build(3, 1);
    CUgraph other;
    CUgraphNode node = NULL, twice[2] = {c.set, c.set};
    int n = COUNT, factor = 1, term = 1;
    void *parameters[] = {&values, &n, &factor, &term};
    CUDA_KERNEL_NODE_PARAMS kernel = kernel_with(parameters);
    CUDA_MEMSET_NODE_PARAMS set = set_to(1);
    CUDA_HOST_NODE_PARAMS host = {NULL, NULL};

    CU(cuGraphCreate(&other, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&other, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(NULL, other, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, NULL, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, other, NULL, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, other, &c.set, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, c.graph, twice, 2));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&node, other, NULL, 0, NULL));
    kernel.gridDimX = 0;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&node, other, NULL, 0, &kernel));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphAddMemcpyNode(&node, other, NULL, 0, NULL, driver_context));
    set.elementSize = 3;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphAddMemsetNode(&node, other, NULL, 0, &set, driver_context));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddHostNode(&node, other, NULL, 0, &host));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddChildGraphNode(&node, other, NULL, 0, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeGetParams(c.set, &kernel));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeSetParams(c.kernel, &set));
    CU(cuGraphDestroy(other));
    CU(cuGraphDestroy(c.graph));
}

static void what_nodes_say(void)
{
    struct chain c = build(3, 1);
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_MEMCPY3D copy;
    CUDA_HOST_NODE_PARAMS host;
    CUgraphNodeType type;

    CU(cuGraphKernelNodeGetParams(c.kernel, &kernel));
    EXPECT(kernel.func == multiply_add && kernel.gridDimX == 2 && kernel.blockDimX == COUNT / 2,
           "the kernel node launches %u x %u", kernel.gridDimX, kernel.blockDimX);
    EXPECT(*(int *)kernel.kernelParams[1] == COUNT && *(int *)kernel.kernelParams[2] == 3,
           "its parameters are %d and %d", *(int *)kernel.kernelParams[1],
           *(int *)kernel.kernelParams[2]);
    CU(cuGraphMemsetNodeGetParams(c.set, &set));
    EXPECT(set.dst == values && set.value == 2 && set.width == COUNT, "the set node sets %u",
           set.value);
    CU(cuGraphMemcpyNodeGetParams(c.copy, &copy));
    EXPECT(copy.dstDevice == copied && copy.WidthInBytes == SIZE, "the copy node copies %zu",
           copy.WidthInBytes);
    CU(cuGraphHostNodeGetParams(c.host, &host));
    EXPECT(host.fn == count_call && host.userData == &calls, "the host node has another function");
    CU(cuGraphNodeGetType(c.kernel, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_KERNEL, "the kernel node is of type %d", (int)type);
    CU(cuGraphNodeGetType(c.host, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_HOST, "the host node is of type %d", (int)type);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetType(c.host, NULL));
    CU(cuGraphDestroy(c.graph));
}

static bool holds(const CUgraphNode *list, size_t count, CUgraphNode node)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == node)
            return true;
    return false;
}

/* a -> b, a -> c, b -> d, c -> d; then without a -> c, and without b. */
static void lists_and_edges(void)
{
    CUgraph graph;
    CUgraphNode a, b, c, d, list[8], to[8];
    CUgraphEdgeData data[8];
    size_t count = 0;

    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddEmptyNode(&a, graph, NULL, 0));
    CU(cuGraphAddEmptyNode(&b, graph, &a, 1));
    CU(cuGraphAddEmptyNode(&c, graph, NULL, 0));
    CU(cuGraphAddEmptyNode(&d, graph, NULL, 0));
    const CUgraphNode from[] = {a, b, c}, behind[] = {c, d, d};
    CU(cuGraphAddDependencies(graph, from, behind, NULL, 3));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, from, behind, NULL, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &a, &a, NULL, 1));
    CU(cuGraphGetNodes(graph, NULL, &count));
    EXPECT(count == 4, "%zu nodes, expected 4", count);
    count = 8;
    CU(cuGraphGetNodes(graph, list, &count));
    EXPECT(count == 4 && holds(list, 4, a) && holds(list, 4, d) && list[4] == NULL,
           "the list has %zu nodes", count);
    count = 8;
    CU(cuGraphGetRootNodes(graph, list, &count));
    EXPECT(count == 1 && list[0] == a, "%zu roots, expected one", count);
    count = 8;
    CU(cuGraphGetEdges(graph, list, to, data, &count));
    EXPECT(count == 4, "%zu edges, expected 4", count);
    count = 8;
    CU(cuGraphNodeGetDependencies(d, list, data, &count));
    EXPECT(count == 2 && holds(list, 2, b) && holds(list, 2, c), "d waits for %zu nodes", count);
    count = 8;
    CU(cuGraphNodeGetDependentNodes(a, list, NULL, &count));
    EXPECT(count == 2 && holds(list, 2, b) && holds(list, 2, c), "%zu nodes wait for a", count);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphGetEdges(graph, list, NULL, NULL, &count));
    CU(cuGraphRemoveDependencies(graph, &a, &c, NULL, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &a, &c, NULL, 1));
    count = 8;
    CU(cuGraphGetRootNodes(graph, list, &count));
    EXPECT(count == 2 && holds(list, 2, c), "%zu roots, expected 2", count);
    CU(cuGraphDestroyNode(b));
    CU(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
    EXPECT(count == 1, "%zu edges after a node went, expected 1", count);
    CU(cuGraphDestroy(graph));
}

static void changed_before(void)
{
    struct chain c = build(3, 1);
    int n = COUNT, factor = 5, term = 2;
    void *parameters[] = {&values, &n, &factor, &term};
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_with(parameters);
    const CUDA_MEMSET_NODE_PARAMS set = set_to(4);
    const CUDA_MEMCPY3D copy = line(copied, values, SIZE / 2);
    const CUDA_HOST_NODE_PARAMS host = {count_call, &other_calls};
    CUgraphExec exec;

    calls = other_calls = 0;
    CU(cuGraphKernelNodeSetParams(c.kernel, &kernel));
    CU(cuGraphMemsetNodeSetParams(c.set, &set));
    CU(cuGraphMemcpyNodeSetParams(c.copy, &copy));
    CU(cuGraphHostNodeSetParams(c.host, &host));
    CU(cuMemsetD32(copied, 9, COUNT));
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    run(exec);
    expect_values(values, 22, "the changed chain");
    int got[COUNT];
    CU(cuMemcpyDtoH(got, copied, SIZE));
    EXPECT(got[0] == 22 && got[COUNT - 1] == 9, "half was to be copied: %d, %d", got[0],
           got[COUNT - 1]);
    EXPECT(calls == 0 && other_calls == 1, "host functions ran %d and %d times", calls,
           other_calls);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(c.graph));
}

static void changed_after(void)
{
    struct chain c = build(3, 1), same = build(10, 4);
    int n = COUNT, factor = 5, term = 2;
    void *parameters[] = {&values, &n, &factor, &term};
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_with(parameters);
    const CUDA_MEMSET_NODE_PARAMS set = set_to(6);
    const CUDA_MEMCPY3D copy = line(copied, values, SIZE);
    const CUDA_HOST_NODE_PARAMS host = {count_call, &other_calls};
    CUgraphExecUpdateResultInfo info;
    CUgraphExec exec;
    unsigned enabled = 9;

    other_calls = 0;
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    CU(cuGraphExecKernelNodeSetParams(exec, c.kernel, &kernel));
    CU(cuGraphExecMemsetNodeSetParams(exec, c.set, &set, driver_context));
    CU(cuGraphExecMemcpyNodeSetParams(exec, c.copy, &copy, driver_context));
    CU(cuGraphExecHostNodeSetParams(exec, c.host, &host));
    run(exec);
    expect_values(copied, 32, "the changed instance");
    EXPECT(other_calls == 1, "the new host function ran %d times", other_calls);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams(NULL, c.kernel, &kernel));
    CU(cuGraphNodeGetEnabled(exec, c.kernel, &enabled));
    EXPECT(enabled == 1, "a node begins as %u", enabled);
    CU(cuGraphNodeSetEnabled(exec, c.kernel, 0));
    CU(cuGraphNodeGetEnabled(exec, c.kernel, &enabled));
    EXPECT(enabled == 0, "a node that is off says %u", enabled);
    run(exec);
    expect_values(copied, 6, "without the kernel");
    CU(cuGraphNodeSetEnabled(exec, c.kernel, 1));
    CU(cuGraphExecUpdate(exec, same.graph, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, "the update says %d", (int)info.result);
    run(exec);
    expect_values(copied, 24, "the updated instance");
    CU(cuGraphDestroyNode(same.host));
    CU_GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, same.graph, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, "the update says %d",
           (int)info.result);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(same.graph));
    CU(cuGraphDestroy(c.graph));
}

static void clones_and_children(void)
{
    struct chain c = build(3, 1), other = build(4, 0);
    CUgraph clone, outer, child, again;
    CUgraphNode node, found, none, list[8];
    CUgraphExec exec;
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS kernel, asked_again;
    CUDA_MEMSET_NODE_PARAMS set;
    size_t count = 8;

    CU(cuGraphClone(&clone, c.graph));
    CU(cuGraphNodeFindInClone(&found, c.kernel, clone));
    CU(cuGraphNodeGetType(found, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_KERNEL && found != c.kernel, "the clone's node is %d",
           (int)type);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&none, found, clone));
    CU(cuGraphGetNodes(clone, list, &count));
    EXPECT(count == 4, "the clone has %zu nodes, expected 4", count);
    CU(cuGraphKernelNodeGetParams(found, &kernel));
    EXPECT(kernel.gridDimX == 2 && *(int *)kernel.kernelParams[2] == 3,
           "the clone's kernel has the factor %d", *(int *)kernel.kernelParams[2]);
    /* what was given first is the node's until it changes */
    CU(cuGraphKernelNodeGetParams(found, &asked_again));
    EXPECT(asked_again.kernelParams == kernel.kernelParams, "the parameters have moved");
    EXPECT(*(CUdeviceptr *)kernel.kernelParams[0] == values, "they lie at %llx, not %llx",
           *(CUdeviceptr *)kernel.kernelParams[0], values);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeGetParams(found, &set));
    CU(cuGraphNodeFindInClone(&found, c.set, clone));
    CU(cuGraphMemsetNodeGetParams(found, &set));
    EXPECT(set.value == 2 && set.width == COUNT, "the clone sets %u", set.value);
    CU(cuGraphNodeFindInClone(&found, c.kernel, clone));
    CU(cuGraphGetEdges(clone, NULL, NULL, NULL, &count));
    EXPECT(count == 3, "the clone has %zu edges, expected 3", count);
    CU(cuGraphNodeGetDependencies(found, NULL, NULL, &count));
    EXPECT(count == 1, "the clone's kernel waits for %zu nodes", count);
    CU(cuGraphCreate(&outer, 0));
    CU(cuGraphAddChildGraphNode(&node, outer, NULL, 0, c.graph));
    CU(cuGraphChildGraphNodeGetGraph(node, &child));
    CU(cuGraphChildGraphNodeGetGraph(node, &again));
    EXPECT(child == again && child != c.graph, "the child has several handles");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphChildGraphNodeGetGraph(c.kernel, &again));
    CU(cuGraphGetNodes(child, NULL, &count));
    EXPECT(count == 4, "the child has %zu nodes, expected 4", count);
    CU(cuGraphInstantiate(&exec, outer, 0));
    run(exec);
    expect_values(copied, 7, "a child graph");
    CU(cuGraphExecChildGraphNodeSetParams(exec, node, other.graph));
    run(exec);
    expect_values(copied, 8, "another child graph");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(outer));
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(other.graph));
    CU(cuGraphDestroy(c.graph));
}

static void events_in_graphs(void)
{
    CUgraph graph;
    CUgraphNode record, wait;
    CUgraphExec exec;
    CUevent first, second, got = NULL;

    CU(cuEventCreate(&first, CU_EVENT_DISABLE_TIMING));
    CU(cuEventCreate(&second, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(first, stream));
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, first));
    CU(cuGraphAddEventRecordNode(&record, graph, &wait, 1, first));
    CU(cuGraphEventRecordNodeGetEvent(record, &got));
    EXPECT(got == first, "the node records another event");
    CU(cuGraphEventRecordNodeSetEvent(record, second));
    CU(cuGraphEventRecordNodeGetEvent(record, &got));
    EXPECT(got == second, "the node still records the first event");
    CU(cuGraphEventWaitNodeGetEvent(wait, &got));
    EXPECT(got == first, "the node waits for another event");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphEventWaitNodeGetEvent(record, &got));
    CU(cuGraphEventWaitNodeSetEvent(wait, first));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphExecEventRecordNodeSetEvent(exec, record, second));
    CU(cuGraphExecEventWaitNodeSetEvent(exec, wait, first));
    run(exec);
    CU(cuEventSynchronize(second));
    CU(cuEventQuery(second));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    CU(cuEventDestroy(first));
    CU(cuEventDestroy(second));
}

/* The generic forms, whose parameters name the type. */
static void of_any_type(void)
{
    CUgraph graph;
    CUgraphNode set, empty;
    CUgraphExec exec;
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_MEMSET,
                           .memset = {.dst = values,
                                      .value = 3,
                                      .elementSize = 4,
                                      .width = COUNT,
                                      .height = 1,
                                      .ctx = driver_context}};
    CUgraphNodeParams none = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddNode(&set, graph, NULL, NULL, 0, &p));
    CU(cuGraphAddNode(&empty, graph, &set, NULL, 1, &none));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&empty, graph, NULL, NULL, 0, NULL));
    p.memset.value = 4;
    CU(cuGraphNodeSetParams(set, &p));
    CU(cuGraphInstantiate(&exec, graph, 0));
    run(exec);
    expect_values(values, 4, "the changed set");
    p.memset.value = 5;
    CU(cuGraphExecNodeSetParams(exec, set, &p));
    run(exec);
    expect_values(values, 5, "the set changed in the instance");
    p.reserved2 = 1;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetParams(set, &p));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* One launch of so many nodes in a row, whose making nobody waits for. */
static void many(int count)
{
    CUgraph graph;
    CUgraphNode last = NULL, node, *list = check_alloc((size_t)count * sizeof *list);
    CUgraphExec exec;
    int n = COUNT, factor = 1, term = 1;
    void *parameters[] = {&values, &n, &factor, &term};
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_with(parameters);
    size_t nodes = (size_t)count, edges = 0;

    CU(cuMemsetD32(values, 0, COUNT));
    CU(cuGraphCreate(&graph, 0));
    for (int i = 0; i < count; i++, last = node)
        CU(cuGraphAddKernelNode(&node, graph, &last, last != NULL, &kernel));
    CU(cuGraphGetNodes(graph, list, &nodes));
    CU(cuGraphGetEdges(graph, NULL, NULL, NULL, &edges));
    EXPECT(nodes == (size_t)count && edges == nodes - 1, "%zu nodes, %zu edges", nodes, edges);
    CU(cuGraphInstantiate(&exec, graph, 0));
    run(exec);
    expect_values(values, count, "many nodes");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    free(list);
}

static void all_kinds(void)
{
    built_and_launched();
    wrong_nodes();
    what_nodes_say();
    lists_and_edges();
    changed_before();
    changed_after();
    clones_and_children();
    events_in_graphs();
    of_any_type();
}

int main(int argc, char **argv)
{
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    multiply_add = driver_function(module, "multiply_add");
    CU(cuMemAlloc(&values, SIZE));
    CU(cuMemAlloc(&copied, SIZE));
    if (argc > 1)
        many(atoi(argv[1]));
    else
        all_kinds();
    CU(cuMemFree(values));
    CU(cuMemFree(copied));
    CU(cuStreamDestroy(stream));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_graph_nodes");
}
