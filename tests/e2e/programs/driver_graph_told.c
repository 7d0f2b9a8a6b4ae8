/*
 * What is told of graphs: what nodes do that a clone or a capture has made, and why an instance cannot
 * be updated.
 */
#include "driver.h"

enum { BYTES = 4096, OFFSET = 256, PITCH = 512, ROWS = 4 };

static CUstream stream;
static CUevent event;
static CUdeviceptr from, to;
static int called;

static void CUDA_CB count_call(void *argument)
{
    ++*(int *)argument;
}

static CUDA_MEMCPY3D rows(void)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from + OFFSET,
                           .srcPitch = PITCH,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = PITCH,
                           .WidthInBytes = 64,
                           .Height = ROWS,
                           .Depth = 1};
}

static CUgraphNode in_clone(CUgraph clone, CUgraphNode node)
{
    CUgraphNode found = NULL;
    CU(cuGraphNodeFindInClone(&found, node, clone));
    return found;
}

static void expect_copy(CUgraphNode node, CUdeviceptr source, CUdeviceptr target, size_t bytes,
                        const char *what)
{
    CUDA_MEMCPY3D got = {.WidthInBytes = 0};
    CU(cuGraphMemcpyNodeGetParams(node, &got));
    EXPECT(got.srcDevice + got.srcXInBytes == source && got.dstDevice + got.dstXInBytes == target &&
               got.srcMemoryType == CU_MEMORYTYPE_DEVICE &&
               got.dstMemoryType == CU_MEMORYTYPE_DEVICE && got.WidthInBytes == bytes,
           "%s copies %zu bytes of other memory", what, got.WidthInBytes);
}

static void of_a_clone(void)
{
    CUgraph graph, clone;
    CUgraphNode copy, host, record, wait, batch;
    CUevent its = NULL;
    CUstreamBatchMemOpParams writes = {.pad = {0}};
    writes.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    writes.writeValue.address = to;
    writes.writeValue.value = 7;
    const CUDA_MEMCPY3D p = rows();
    const CUDA_HOST_NODE_PARAMS function = {count_call, &called};
    const CUDA_BATCH_MEM_OP_NODE_PARAMS operations = {driver_context, 1, &writes, 0};
    CUDA_HOST_NODE_PARAMS its_function = {NULL, NULL};
    CUDA_BATCH_MEM_OP_NODE_PARAMS its_batch = {.count = 0};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemcpyNode(&copy, graph, NULL, 0, &p, driver_context));
    CU(cuGraphAddHostNode(&host, graph, &copy, 1, &function));
    CU(cuGraphAddEventRecordNode(&record, graph, &host, 1, event));
    CU(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, event));
    CU(cuGraphAddBatchMemOpNode(&batch, graph, &record, 1, &operations));
    CU(cuGraphClone(&clone, graph));
    expect_copy(in_clone(clone, copy), from + OFFSET, to, 64, "a clone's node");
    CU(cuGraphHostNodeGetParams(in_clone(clone, host), &its_function));
    EXPECT(its_function.fn == count_call && its_function.userData == &called,
           "a clone's node runs another function");
    CU(cuGraphEventRecordNodeGetEvent(in_clone(clone, record), &its));
    EXPECT(its == event, "a clone's node records another event");
    its = NULL;
    CU(cuGraphEventWaitNodeGetEvent(in_clone(clone, wait), &its));
    EXPECT(its == event, "a clone's node waits for another event");
    CU(cuGraphBatchMemOpNodeGetParams(in_clone(clone, batch), &its_batch));
    EXPECT(its_batch.count == 1 &&
               its_batch.paramArray[0].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 &&
               its_batch.paramArray[0].writeValue.address == to &&
               its_batch.paramArray[0].writeValue.value == 7,
           "a clone's node has another batch of %u", its_batch.count);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphHostNodeGetParams(in_clone(clone, copy), &its_function));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphEventRecordNodeGetEvent(in_clone(clone, wait), &its));
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(graph));
}

static void of_a_capture(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode nodes[8];
    CUDA_HOST_NODE_PARAMS function = {NULL, NULL};
    size_t count = 8;
    unsigned copies = 0, functions = 0;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemcpyDtoDAsync(to, from, BYTES, stream));
    CU(cuLaunchHostFunc(stream, count_call, &called));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        CU(cuGraphNodeGetType(nodes[i], &type));
        if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
            expect_copy(nodes[i], from, to, BYTES, "a captured node");
            copies++;
        } else if (type == CU_GRAPH_NODE_TYPE_HOST) {
            CU(cuGraphHostNodeGetParams(nodes[i], &function));
            EXPECT(function.fn == count_call && function.userData == &called,
                   "a captured node runs another function");
            functions++;
        }
    }
    EXPECT(copies == 1 && functions == 1, "%u copies and %u functions were captured", copies,
           functions);
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(called == 1, "the function was called %d times", called);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* A kernel of a library that nobody has asked for its function: the node has one all the same, which
 * other nodes take. */
static void of_a_kernel(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUgraph graph;
    CUgraphNode node, other;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS got = {.func = NULL};
    size_t count = 1;
    int n = 16, factor = 3, term = 1, found[16];
    void *parameters[] = {&to, &n, &factor, &term};
    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, library, "multiply_add"));
    CU(cuMemsetD32Async(to, 0, 16, stream));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 16, 1, 1, 0, stream, parameters, NULL));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphGetNodes(graph, &node, &count));
    CU(cuGraphKernelNodeGetParams(node, &got));
    EXPECT(got.func && got.kern == kernel && got.blockDimX == 16,
           "a node of a kernel is told wrong");
    CU(cuGraphAddKernelNode(&other, graph, &node, 1, &got));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(found, to, sizeof found));
    EXPECT(found[0] == 4 && found[15] == 4, "two nodes of a kernel gave %d", found[0]);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    CU(cuLibraryUnload(library));
}

static void changed_type(void)
{
    CUgraph first, second;
    CUgraphNode node;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;
    const CUDA_MEMSET_NODE_PARAMS set = {
        .dst = to, .value = 6, .elementSize = 4, .width = 16, .height = 1};
    CU(cuGraphCreate(&first, 0));
    CU(cuGraphCreate(&second, 0));
    CU(cuGraphAddEmptyNode(&node, first, NULL, 0));
    CU(cuGraphAddMemsetNode(&node, second, NULL, 0, &set, driver_context));
    CU(cuGraphInstantiate(&exec, first, 0));
    CU_GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, second, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && info.errorNode == node,
           "the update says %d", (int)info.result);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(first));
    CU(cuGraphDestroy(second));
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuMemAlloc(&from, BYTES));
    CU(cuMemAlloc(&to, BYTES));
    of_a_clone();
    of_a_capture();
    of_a_kernel();
    changed_type();
    CU(cuMemFree(from));
    CU(cuMemFree(to));
    CU(cuEventDestroy(event));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_graph_told");
}
