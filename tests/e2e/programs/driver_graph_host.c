/* Copy nodes made by hand from and to this process's own memory: read and written by each launch. */
#include "driver.h"

#include <stdbool.h>

enum { COUNT = 300, SIZE = COUNT * (int)sizeof(int), ROWS = 5, WIDTH = 24, PITCH = 40, DEPTH = 2 };

static CUstream stream;
static CUdeviceptr device;

static CUDA_MEMCPY3D line(CUmemorytype to_type, void *to, CUmemorytype from_type, const void *from,
                          size_t bytes)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = from_type,
                           .srcHost = from,
                           .srcDevice = (CUdeviceptr)(uintptr_t)from,
                           .dstMemoryType = to_type,
                           .dstHost = to,
                           .dstDevice = (CUdeviceptr)(uintptr_t)to,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .Depth = 1};
}

static CUDA_MEMCPY3D upload(const int *from, size_t bytes)
{
    return line(CU_MEMORYTYPE_DEVICE, (void *)(uintptr_t)device, CU_MEMORYTYPE_HOST, from, bytes);
}

static CUDA_MEMCPY3D download(int *to, size_t bytes)
{
    return line(CU_MEMORYTYPE_HOST, to, CU_MEMORYTYPE_DEVICE, (const void *)(uintptr_t)device,
                bytes);
}

static void launch(CUgraphExec exec)
{
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
}

static void fill(int *values, int first)
{
    for (int i = 0; i < COUNT; i++)
        values[i] = first + i;
}

static void expect(const int *got, int first, const char *what)
{
    for (int i = 0; i < COUNT; i++)
        if (got[i] != first + i) {
            EXPECT(false, "%s: value %d is %d, expected %d", what, i, got[i], first + i);
            return;
        }
}

/* There and back again, twice, with other bytes; then a clone; then from other memory. */
static void there_and_back(int *from, int *to, int *other, const char *what)
{
    CUgraph graph, clone;
    CUgraphNode up, down, list[4];
    CUgraphNodeType type;
    CUDA_MEMCPY3D p = upload(from, SIZE), got;
    CUgraphExec exec;
    size_t count = 4;

    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &p, driver_context));
    p = download(to, SIZE);
    CU(cuGraphAddMemcpyNode(&down, graph, &up, 1, &p, driver_context));
    CU(cuGraphNodeGetType(down, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_MEMCPY, "%s: the type is %d", what, (int)type);
    CU(cuGraphMemcpyNodeGetParams(up, &got));
    EXPECT(got.srcHost == from && got.WidthInBytes == SIZE, "%s: the node copies something else",
           what);
    CU(cuGraphGetNodes(graph, list, &count));
    EXPECT(count == 2, "%s: %zu nodes, expected 2", what, count);
    CU(cuGraphInstantiate(&exec, graph, 0));
    for (int round = 1; round <= 2; round++) {
        fill(from, 1000 * round);
        memset(to, 0, SIZE);
        launch(exec);
        expect(to, 1000 * round, what);
    }
    CU(cuGraphClone(&clone, graph));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphInstantiate(&exec, clone, 0));
    CU(cuGraphGetEdges(clone, NULL, NULL, NULL, &count));
    EXPECT(count == 1, "%s: the clone has %zu edges, expected one", what, count);
    fill(from, 7);
    launch(exec);
    expect(to, 7, "a clone");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphInstantiate(&exec, graph, 0));
    p = upload(other, SIZE);
    CU(cuGraphExecMemcpyNodeSetParams(exec, up, &p, driver_context));
    fill(other, 55);
    launch(exec);
    expect(to, 55, "other memory");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(graph));
}

static CUDA_MEMCPY3D box(void *to, size_t to_pitch, size_t to_height, CUmemorytype to_type,
                         const void *from, size_t from_pitch, size_t from_height,
                         CUmemorytype from_type)
{
    CUDA_MEMCPY3D p = line(to_type, to, from_type, from, WIDTH);
    p.srcPitch = from_pitch;
    p.srcHeight = from_height;
    p.dstPitch = to_pitch;
    p.dstHeight = to_height;
    p.Height = ROWS;
    p.Depth = DEPTH;
    return p;
}

/* Boxes of memory with gaps: what lies between the rows stays. */
static void boxes(void)
{
    static unsigned char from[PITCH * (ROWS + 1) * DEPTH], to[sizeof from];
    CUgraph graph;
    CUgraphNode up, down;
    CUgraphExec exec;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + 1);
    memset(to, 0xee, sizeof to);
    CUDA_MEMCPY3D p = box((void *)(uintptr_t)device, WIDTH, ROWS, CU_MEMORYTYPE_DEVICE, from, PITCH,
                          ROWS + 1, CU_MEMORYTYPE_HOST);
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &p, driver_context));
    p = box(to, PITCH, ROWS + 1, CU_MEMORYTYPE_HOST, (const void *)(uintptr_t)device, WIDTH, ROWS,
            CU_MEMORYTYPE_DEVICE);
    CU(cuGraphAddMemcpyNode(&down, graph, &up, 1, &p, driver_context));
    CU(cuGraphInstantiate(&exec, graph, 0));
    launch(exec);
    int wrong = 0;
    for (size_t i = 0; i < sizeof to; i++) {
        size_t row = i / PITCH % (ROWS + 1);
        bool inside = i % PITCH < WIDTH && row < ROWS;
        wrong += to[i] != (inside ? from[i] : 0xee);
    }
    EXPECT(wrong == 0, "%d bytes of a box are wrong", wrong);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* A node between others, with edges made afterwards; and taken out again. */
static void edges(void)
{
    static int from[COUNT], to[COUNT];
    CUgraph graph;
    CUgraphNode up, set, down, list[4];
    CUgraphExec exec;
    size_t count = 4;
    const CUDA_MEMSET_NODE_PARAMS zero = {
        .dst = device, .value = 0, .elementSize = 4, .width = 1, .height = 1};
    CUDA_MEMCPY3D p = upload(from, SIZE);
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &p, driver_context));
    CU(cuGraphAddMemsetNode(&set, graph, NULL, 0, &zero, driver_context));
    p = download(to, SIZE);
    CU(cuGraphAddMemcpyNode(&down, graph, NULL, 0, &p, driver_context));
    CU(cuGraphAddDependencies(graph, &up, &set, NULL, 1));
    CU(cuGraphAddDependencies(graph, &set, &down, NULL, 1));
    CU(cuGraphNodeGetDependencies(down, list, NULL, &count));
    EXPECT(count == 1 && list[0] == set, "the download waits for %zu nodes", count);
    CU(cuGraphInstantiate(&exec, graph, 0));
    fill(from, 40);
    launch(exec);
    EXPECT(to[0] == 0 && to[1] == 41, "%d and %d came back", to[0], to[1]);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroyNode(down));
    CU(cuGraphInstantiate(&exec, graph, 0));
    memset(to, 0, SIZE);
    launch(exec);
    EXPECT(to[1] == 0, "a node that was taken out has copied %d", to[1]);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void wrong(void)
{
    static int values[COUNT];
    CUgraph graph;
    CUgraphNode node = NULL;
    CUDA_MEMCPY3D p = upload(NULL, SIZE);
    CU(cuGraphCreate(&graph, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphAddMemcpyNode(&node, graph, NULL, 0, &p, driver_context));
    p = upload(values, SIZE);
    p.WidthInBytes = SIZE + 4096;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphAddMemcpyNode(&node, graph, NULL, 0, &p, driver_context));
    p = upload(values, 0);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphAddMemcpyNode(&node, graph, NULL, 0, &p, driver_context));
    CU(cuGraphDestroy(graph));
}

/* Copies that a stream has captured: nodes between others, and their edges. */
static void captured_edges(void)
{
    static int from[COUNT], to[COUNT];
    CUgraph graph;
    CUgraphNode nodes[8], first[8], second[8], around[8];
    CUgraphNodeType type;
    CUstream stream;
    size_t count = 8, edges = 8;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuMemsetD32Async(device, 1, COUNT, stream));
    CU(cuMemcpyHtoDAsync(device, from, SIZE, stream));
    CU(cuMemsetD32Async(device, 2, 1, stream));
    CU(cuMemcpyDtoHAsync(to, device, SIZE, stream));
    CU(cuMemcpyHtoDAsync(device, to, SIZE, stream));
    CU(cuMemsetD32Async(device, 3, 1, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphGetNodes(graph, nodes, &count));
    EXPECT(count == 6, "%zu nodes were captured, expected 6", count);
    CU(cuGraphGetEdges(graph, first, second, NULL, &edges));
    EXPECT(edges == 5, "%zu edges were captured, expected 5", edges);
    for (size_t i = 0; i < count; i++) {
        size_t before = 0, behind = 8, as_first = 0;
        CU(cuGraphNodeGetDependencies(nodes[i], NULL, NULL, &before));
        CU(cuGraphNodeGetDependentNodes(nodes[i], around, NULL, &behind));
        EXPECT(before <= 1 && behind <= 1, "node %zu has %zu before and %zu behind", i, before,
               behind);
        for (size_t k = 0; k < edges; k++)
            as_first += first[k] == nodes[i] && second[k] == around[0];
        EXPECT(as_first == behind, "the edges of node %zu are others in the list", i);
        CU(cuGraphNodeGetType(nodes[i], &type));
        EXPECT(type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET,
               "node %zu is of type %d", i, (int)type);
    }
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
}

int main(void)
{
    static int from[COUNT], to[COUNT], other[COUNT];
    int *pinned_from, *pinned_to;

    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    CU(cuMemAlloc(&device, SIZE));
    CU(cuMemAllocHost((void **)&pinned_from, SIZE));
    CU(cuMemAllocHost((void **)&pinned_to, SIZE));
    there_and_back(from, to, other, "pageable memory");
    there_and_back(from, pinned_to, other, "pageable to pinned memory");
    boxes();
    edges();
    captured_edges();
    wrong();
    CU(cuMemFreeHost(pinned_from));
    CU(cuMemFreeHost(pinned_to));
    CU(cuMemFree(device));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_graph_host");
}
