/* Graphs as drawings, in a file of this machine: those built by hand and others. */
#include "driver.h"

#include <unistd.h>

/* How many lines of a drawing have a text. */
static int lines_with(CUgraph graph, unsigned flags, const char *text)
{
    char path[] = "/tmp/graph-XXXXXX", line[4096];
    int descriptor = mkstemp(path), lines = 0;
    REQUIRE(descriptor >= 0, "no file can be made in /tmp");
    CU(cuGraphDebugDotPrint(graph, path, flags));
    FILE *file = fdopen(descriptor, "r");
    REQUIRE(file != NULL, "the drawing cannot be read");
    while (fgets(line, sizeof line, file))
        lines += strstr(line, text) != NULL;
    fclose(file);
    unlink(path);
    return lines;
}

/* A drawing has a line for each edge. */
static void drawn(CUgraph graph, int edges, const char *what)
{
    int arrows = lines_with(graph, 0, "->");
    EXPECT(arrows == edges, "the drawing of %s has %d edges, expected %d", what, arrows, edges);
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

static void CUDA_CB nothing(void *data)
{
    (void)data;
}

/* A text is in as many lines as said with the flag or all of them, and in none without. */
static void flagged(CUgraph graph, unsigned flag, const char *text, int lines)
{
    if (driver_is_native()) { /* its drawings are others: what they have to say is more */
        EXPECT(lines_with(graph, flag, "label") >= lines_with(graph, 0, "label"),
               "flags %#x draw less", flag);
        return;
    }
    int with = lines_with(graph, flag, text), without = lines_with(graph, 0, text);
    int all = lines_with(graph, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE, text);
    EXPECT(with == lines && all == lines && without == 0,
           "'%s' is in %d lines with %#x, %d with all flags, %d without; expected %d", text, with,
           flag, all, without, lines);
}

static void drawn_with_flags(void)
{
    CUgraph graph, clone;
    CUgraphNode set, host, record, copy, kernel;
    CUmodule module;
    CUdeviceptr memory;
    CUevent event;
    int n = 4;
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuMemAlloc(&memory, 64));
    CU(cuEventCreate(&event, 0));
    void *parameters[] = {&memory, &n};
    const CUDA_MEMSET_NODE_PARAMS zero = {memory, 0, 7, 4, 3, 1};
    const CUDA_HOST_NODE_PARAMS function = {nothing, (void *)4096};
    const CUDA_MEMCPY3D bytes = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                 .srcDevice = memory,
                                 .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                 .dstDevice = memory + 32,
                                 .WidthInBytes = 12,
                                 .Height = 1,
                                 .Depth = 1};
    const CUDA_KERNEL_NODE_PARAMS launch = {.func = driver_function(module, "increment"),
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 4,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .sharedMemBytes = 48,
                                            .kernelParams = parameters};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemsetNode(&set, graph, NULL, 0, &zero, driver_context));
    CU(cuGraphAddKernelNode(&kernel, graph, &set, 1, &launch));
    CU(cuGraphAddHostNode(&host, graph, &kernel, 1, &function));
    CU(cuGraphAddEventRecordNode(&record, graph, &host, 1, event));
    CU(cuGraphAddMemcpyNode(&copy, graph, &host, 1, &bytes, driver_context));
    CU(cuGraphClone(&clone, graph));
    for (int i = 0; i < 2; i++) { /* as it was given, and as the GPU host tells it */
        CUgraph g = i ? clone : graph;
        EXPECT(driver_is_native() || lines_with(g, 0, "increment\\n1x1x1 of 4x1x1") == 1,
               "%s: the kernel's name and shape", i ? "a clone" : "a graph");
        flagged(g, CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS, "shared memory 48", 1);
        flagged(g, CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS, "3x1 of 4 bytes: 0x7", 1);
        flagged(g, CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS, "of 0x1000", 1);
        flagged(g, CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS, "nevent ", 1);
        flagged(g, CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS, "n12x1x1", 1);
        flagged(g, CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES, "EVENT_RECORD 0x", 1);
        flagged(g, CU_GRAPH_DEBUG_DOT_FLAGS_EXTRA_TOPO_INFO, "0 to 0, type 0", 4);
    }
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(graph));
    CU(cuEventDestroy(event));
    CU(cuMemFree(memory));
    CU(cuModuleUnload(module));
}

int main(int argc, char **argv)
{
    CUgraph graph, clone;
    CUgraphNode first, second, third;

    (void)argv;
    driver_start();
    if (argc > 1) {
        drawn_with_flags();
        driver_stop();
        return finish("driver_graph_drawn");
    }
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
