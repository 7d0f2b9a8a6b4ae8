/* Graphs as drawings, in a file of this machine: those built by hand and others. */
#include "driver.h"

#include <unistd.h>

static int arrows_in(int file)
{
    char line[4096];
    int arrows = 0;
    FILE *text = fdopen(file, "r");
    REQUIRE(text != NULL, "the drawing cannot be read");
    while (fgets(line, sizeof line, text))
        arrows += strstr(line, "->") != NULL;
    fclose(text);
    return arrows;
}

/* A drawing has a line for each edge. */
static void drawn(CUgraph graph, int edges, const char *what)
{
    char path[] = "/tmp/graph-XXXXXX";
    int file = mkstemp(path);
    REQUIRE(file >= 0, "no file can be made in /tmp");
    CU(cuGraphDebugDotPrint(graph, path, 0));
    int arrows = arrows_in(file);
    EXPECT(arrows == edges, "the drawing of %s has %d edges, expected %d", what, arrows, edges);
    unlink(path);
}

/* Nodes of more kinds: memory of this process's own, a batch, and one that a stream has added. */
static void drawn_with_more(void)
{
    static int from[16];
    CUstream stream;
    CUgraph graph, left;
    CUgraphNode copy, batch;
    CUdeviceptr memory;
    CUstreamBatchMemOpParams write = {.pad = {0}};
    CUDA_MEMCPY3D p = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = from,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .WidthInBytes = sizeof from,
                       .Height = 1,
                       .Depth = 1};

    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&memory, sizeof from));
    p.dstDevice = memory;
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = memory;
    const CUDA_BATCH_MEM_OP_NODE_PARAMS one = {driver_context, 1, &write, 0};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemcpyNode(&copy, graph, NULL, 0, &p, driver_context));
    CU(cuGraphAddBatchMemOpNode(&batch, graph, &copy, 1, &one));
    drawn(graph, 1, "copies of host memory and batches");
    CU(cuStreamBeginCaptureToGraph(stream, graph, &batch, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemsetD32Async(memory, 1, 4, stream));
    CU(cuMemsetD32Async(memory, 2, 4, stream));
    CU(cuStreamEndCapture(stream, &left));
    drawn(left, 3, "a graph that a stream was captured into");
    CU(cuGraphDestroy(graph));
    CU(cuMemFree(memory));
    CU(cuStreamDestroy(stream));
}

int main(void)
{
    CUgraph graph, clone;
    CUgraphNode first, second, third;

    driver_start();
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddEmptyNode(&first, graph, NULL, 0));
    CU(cuGraphAddEmptyNode(&second, graph, &first, 1));
    CU(cuGraphAddEmptyNode(&third, graph, &first, 1));
    CU(cuGraphClone(&clone, graph));
    drawn(graph, 2, "a graph built by hand");
    drawn(clone, 2, "a clone");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(graph, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(NULL, "/tmp/nothing", 0));
    CU_GIVES(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(graph, "/no/such/folder/f", 0));
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(graph));
    drawn_with_more();
    driver_stop();
    return finish("driver_graph_drawn");
}
