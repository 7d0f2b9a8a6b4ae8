/* Batches of values waited for and written: in streams, in captures and as nodes of graphs. */
#include "driver.h"

#include <stdbool.h>

enum { WORDS = 8 };

static CUstream stream, other;
static CUdeviceptr words;

static CUdeviceptr at(int word)
{
    return words + (CUdeviceptr)word * 8;
}

static CUstreamBatchMemOpParams write32(int word, cuuint32_t value)
{
    CUstreamBatchMemOpParams p = {.pad = {0}};
    p.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    p.writeValue.address = at(word);
    p.writeValue.value = value;
    return p;
}

static CUstreamBatchMemOpParams write64(int word, cuuint64_t value)
{
    CUstreamBatchMemOpParams p = write32(word, 0);
    p.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    p.writeValue.value64 = value;
    return p;
}

static CUstreamBatchMemOpParams wait32(int word, cuuint32_t value, unsigned flags)
{
    CUstreamBatchMemOpParams p = {.pad = {0}};
    p.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    p.waitValue.address = at(word);
    p.waitValue.value = value;
    p.waitValue.flags = flags;
    return p;
}

static CUstreamBatchMemOpParams wait64(int word, cuuint64_t value, unsigned flags)
{
    CUstreamBatchMemOpParams p = wait32(word, 0, flags);
    p.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    p.waitValue.value64 = value;
    return p;
}

static void expect_word(int word, cuuint64_t wanted, const char *when)
{
    cuuint64_t got = 0;
    CU(cuMemcpyDtoH(&got, at(word), sizeof got));
    EXPECT(got == wanted, "%s: word %d is %llx, expected %llx", when, word, (unsigned long long)got,
           (unsigned long long)wanted);
}

static void clear(void)
{
    CU(cuMemsetD8(words, 0, WORDS * 8));
    CU(cuCtxSynchronize());
}

static void in_streams(void)
{
    const cuuint64_t wide = 0x123456789abcdef0;
    CUstreamBatchMemOpParams batch[] = {write32(0, 3), write64(1, wide),
                                        wait32(0, 3, CU_STREAM_WAIT_VALUE_EQ),
                                        wait64(1, wide, CU_STREAM_WAIT_VALUE_GEQ), write32(2, 9)};
    CUstreamBatchMemOpParams blocked[] = {wait32(3, 1, CU_STREAM_WAIT_VALUE_GEQ), write32(4, 4)};
    CUstreamBatchMemOpParams opens[] = {write32(3, 1)};
    clear();
    CU(cuStreamBatchMemOp(stream, 5, batch, 0));
    CU(cuStreamSynchronize(stream));
    expect_word(0, 3, "a batch");
    expect_word(1, wide, "a batch");
    expect_word(2, 9, "a batch");
    CU(cuStreamBatchMemOp(stream, 0, batch, 0)); /* nothing to do */
    CU(cuStreamBatchMemOp(stream, 2, blocked, 0));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    CU(cuStreamBatchMemOp(other, 1, opens, 0));
    CU(cuStreamSynchronize(stream));
    expect_word(4, 4, "a batch behind another stream's");
}

static void wrong(void)
{
    CUstreamBatchMemOpParams batch[] = {write32(0, 3)};
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 256, batch, 0));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 1, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 1, batch, 1));
}

static CUDA_BATCH_MEM_OP_NODE_PARAMS params_of(CUstreamBatchMemOpParams *batch, unsigned count)
{
    return (CUDA_BATCH_MEM_OP_NODE_PARAMS){driver_context, count, batch, 0};
}

static void as_nodes(void)
{
    CUgraph graph;
    CUgraphNode node, again;
    CUgraphNodeType type;
    CUgraphExec exec;
    CUstreamBatchMemOpParams first[] = {write32(0, 1), write32(1, 2)};
    CUstreamBatchMemOpParams second[] = {wait32(0, 1, CU_STREAM_WAIT_VALUE_EQ), write32(2, 3),
                                         write64(3, 4)};
    CUDA_BATCH_MEM_OP_NODE_PARAMS p = params_of(first, 2), got;

    clear();
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &p));
    CU(cuGraphNodeGetType(node, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "the type is %d", (int)type);
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                             .memOp = {driver_context, 3, second, 0}};
    CU(cuGraphAddNode(&again, graph, &node, NULL, 1, &any));
    first[0] = write32(0, 77); /* the node has its own */
    CU(cuGraphBatchMemOpNodeGetParams(node, &got));
    EXPECT(got.count == 2 && got.paramArray[0].writeValue.value == 1 && got.ctx == driver_context,
           "the node has %u operations", got.count);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphBatchMemOpNodeGetParams(node, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, NULL));
    p.count = 256;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &p));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    expect_word(1, 2, "two nodes");
    expect_word(3, 4, "two nodes");
    first[0] = write32(0, 1);
    first[1] = write32(1, 8);
    p = params_of(first, 2);
    CU(cuGraphExecBatchMemOpNodeSetParams(exec, node, &p));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    expect_word(1, 8, "a node changed in the instance");
    CU(cuGraphExecDestroy(exec));
    first[1] = write32(1, 9);
    CU(cuGraphBatchMemOpNodeSetParams(node, &p));
    CU(cuGraphBatchMemOpNodeGetParams(node, &got));
    EXPECT(got.count == 2 && got.paramArray[1].writeValue.value == 9, "the node was not changed");
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    expect_word(1, 9, "a changed node");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void captured(void)
{
    CUgraph graph;
    CUgraphNode list[4];
    CUgraphNodeType type;
    CUgraphExec exec;
    size_t count = 4;
    CUstreamBatchMemOpParams batch[] = {write32(5, 5), write32(6, 6)};

    clear();
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuStreamBatchMemOp(stream, 2, batch, 0));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphGetNodes(graph, list, &count));
    CU(cuGraphNodeGetType(list[0], &type));
    EXPECT(count == 1 && type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "%zu nodes, the first is a %d",
           count, (int)type);
    expect_word(5, 0, "a batch that is captured");
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    expect_word(6, 6, "a captured batch");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* The forms of CUDA 8 and 9, where the device has them. */
static void *old_form(const char *name, int version)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    CU(cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    REQUIRE(found != NULL, "%s of CUDA %d is not there", name, version);
    return found;
}

static void old_forms(void)
{
    typedef CUresult (*narrow)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    typedef CUresult (*wide)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
    typedef CUresult (*batches)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned);
    CUstreamBatchMemOpParams batch[] = {write32(2, 6)};
    int has = 0;

    clear();
    CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, driver_device));
    narrow write = (narrow)old_form("cuStreamWriteValue32", 8000);
    narrow wait = (narrow)old_form("cuStreamWaitValue32", 8000);
    wide write_wide = (wide)old_form("cuStreamWriteValue64", 9000);
    wide wait_wide = (wide)old_form("cuStreamWaitValue64", 9000);
    batches run = (batches)old_form("cuStreamBatchMemOp", 8000);
    if (!has)
        return;
    CU(write(stream, at(0), 4, 0));
    CU(wait(stream, at(0), 4, CU_STREAM_WAIT_VALUE_EQ));
    CU(write_wide(stream, at(1), 5, 0));
    CU(wait_wide(stream, at(1), 5, CU_STREAM_WAIT_VALUE_EQ));
    CU(run(stream, 1, batch, 0));
    CU(cuStreamSynchronize(stream));
    expect_word(0, 4, "an old form");
    expect_word(1, 5, "an old form");
    expect_word(2, 6, "an old form");
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, WORDS * 8));
    in_streams();
    wrong();
    as_nodes();
    captured();
    old_forms();
    CU(cuMemFree(words));
    CU(cuStreamDestroy(other));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_batch");
}
