/* Memory that graphs allocate: by hand and in captures, kept and freed, here, there and by launches. */
#include "driver.h"

#include <stdbool.h>
#include <unistd.h>

enum { COUNT = 256, SIZE = COUNT * (int)sizeof(int), LARGE = 4 << 20 };

static CUstream stream;
static CUfunction multiply_add;
static CUdeviceptr copied;

static CUDA_MEM_ALLOC_NODE_PARAMS memory_of(size_t bytes)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device}},
        .bytesize = bytes};
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

static cuuint64_t graph_memory(CUgraphMem_attribute attribute)
{
    cuuint64_t value = 0;
    CU(cuDeviceGetGraphMemAttribute(driver_device, attribute, &value));
    return value;
}

/* allocate -> set -> compute */
struct chain {
    CUgraph graph;
    CUgraphNode alloc, set, kernel;
    CUdeviceptr at;
};

static struct chain chain_new(size_t bytes)
{
    struct chain c;
    int count = COUNT, factor = 3, term = 1;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = memory_of(bytes);
    CU(cuGraphCreate(&c.graph, 0));
    CU(cuGraphAddMemAllocNode(&c.alloc, c.graph, NULL, 0, &memory));
    EXPECT(memory.dptr != 0, "the node has no address");
    c.at = memory.dptr;
    CUDA_MEMSET_NODE_PARAMS set = {
        .dst = c.at, .value = 5, .elementSize = 4, .width = COUNT, .height = 1};
    CU(cuGraphAddMemsetNode(&c.set, c.graph, &c.alloc, 1, &set, driver_context));
    void *parameters[] = {&c.at, &count, &factor, &term};
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = multiply_add,
                                      .gridDimX = 2,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = COUNT / 2,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = parameters};
    CU(cuGraphAddKernelNode(&c.kernel, c.graph, &c.set, 1, &kernel));
    return c;
}

static void within_one(void)
{
    struct chain c = chain_new(LARGE);
    CUgraphNode copy, release;
    CUgraphExec exec;
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS got;
    CUdeviceptr freed = 0;
    CUDA_MEMCPY3D line = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = c.at,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = copied,
                          .WidthInBytes = SIZE,
                          .Height = 1,
                          .Depth = 1};
    CU(cuGraphAddMemcpyNode(&copy, c.graph, &c.kernel, 1, &line, driver_context));
    CU(cuGraphAddMemFreeNode(&release, c.graph, &copy, 1, c.at));
    CU(cuGraphNodeGetType(c.alloc, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC, "the type is %d", (int)type);
    CU(cuGraphNodeGetType(release, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_MEM_FREE, "the type is %d", (int)type);
    CU(cuGraphMemAllocNodeGetParams(c.alloc, &got));
    EXPECT(got.dptr == c.at && got.bytesize == LARGE && got.poolProps.location.id == driver_device,
           "the node allocates %zu bytes", got.bytesize);
    CU(cuGraphMemFreeNodeGetParams(release, &freed));
    EXPECT(freed == c.at, "another address is freed");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&release, c.graph, &copy, 1, c.at));
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    for (int i = 0; i < 3; i++) {
        CU(cuMemsetD8Async(copied, 0, SIZE, stream));
        run(exec);
        expect_values(copied, 16, "memory of one launch");
    }
    EXPECT(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= LARGE, "memory was never in use");
    EXPECT(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) >= LARGE, "none was reserved");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(c.graph));
    CU(cuDeviceGraphMemTrim(driver_device));
    EXPECT(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0, "memory is left reserved");
    cuuint64_t zero = 0;
    CU(cuDeviceSetGraphMemAttribute(driver_device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    EXPECT(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 0, "the mark is where it was");
}

/* At once, or by a call behind it. */
static void expect_refused(CUgraphExec exec)
{
    CUresult r = cuGraphLaunch(exec, stream);
    if (r == CUDA_SUCCESS)
        r = cuStreamSynchronize(stream);
    EXPECT(r == CUDA_ERROR_INVALID_VALUE, "a launch while its memory is in use gave %s",
           driver_name(r));
}

static void kept(void)
{
    struct chain c = chain_new(SIZE);
    CUgraphExec exec;
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    run(exec);
    expect_values(c.at, 16, "memory that a graph has left");
    CU(cuMemcpyDtoDAsync(copied, c.at, SIZE, stream));
    expect_refused(exec);
    CU(cuMemFreeAsync(c.at, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuDeviceGraphMemTrim(driver_device));
    EXPECT(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0,
           "a launch that is over has it");
    expect_values(copied, 16, "a copy of it");
    run(exec);
    expect_values(c.at, 16, "memory of the second launch");
    for (int i = 0; i < 50; i++) { /* what frees it must not come behind the launch */
        CU(cuMemFree(c.at));
        run(exec);
    }
    CU(cuMemFree(c.at));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(c.graph));
}

static void freed_by_launches(void)
{
    struct chain c = chain_new(SIZE);
    CUgraphExec exec;
    cuuint64_t flags = 0;
    CU(cuGraphInstantiate(&exec, c.graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    CU(cuGraphExecGetFlags(exec, &flags));
    EXPECT(flags == CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, "the flags are %llx",
           (unsigned long long)flags);
    for (int i = 0; i < 3; i++) {
        run(exec);
        expect_values(c.at, 16, "memory that the next launch frees");
    }
    CU(cuMemFree(c.at));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(c.graph));
}

static void freed_by_another(void)
{
    struct chain c = chain_new(SIZE);
    CUgraph other;
    CUgraphNode node;
    CUgraphExec exec, frees;
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {.dptr = c.at}};
    CU(cuGraphCreate(&other, 0));
    CU(cuGraphAddNode(&node, other, NULL, NULL, 0, &p));
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    CU(cuGraphInstantiate(&frees, other, 0));
    for (int i = 0; i < 2; i++) {
        run(exec);
        expect_values(c.at, 16, "memory that another graph frees");
        run(frees);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphExecDestroy(frees));
    CU(cuGraphDestroy(c.graph));
    CU(cuGraphDestroy(other));
}

/* The only node of a type in a graph. */
static CUgraphNode only(CUgraph graph, CUgraphNodeType wanted)
{
    CUgraphNode nodes[8], found = NULL;
    size_t count = 8;
    CU(cuGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        CU(cuGraphNodeGetType(nodes[i], &type));
        if (type == wanted)
            found = nodes[i];
    }
    REQUIRE(found, "there is no node of type %d", (int)wanted);
    return found;
}

static void captured(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at, freed = 0;
    CUDA_MEM_ALLOC_NODE_PARAMS got;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAllocAsync(&at, LARGE, stream));
    CU(cuMemsetD32Async(at, 7, COUNT, stream));
    CU(cuMemcpyDtoDAsync(copied, at, SIZE, stream));
    CU(cuMemFreeAsync(at, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphMemAllocNodeGetParams(only(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC), &got));
    EXPECT(got.dptr == at && got.bytesize == LARGE && got.poolProps.location.id == driver_device,
           "a captured node allocates %zu bytes", got.bytesize);
    CU(cuGraphMemFreeNodeGetParams(only(graph, CU_GRAPH_NODE_TYPE_MEM_FREE), &freed));
    EXPECT(freed == at, "a captured node frees another address");
    CU(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        CU(cuMemsetD8Async(copied, 0, SIZE, stream));
        run(exec);
        expect_values(copied, 7, "memory of a capture");
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void fails(CUresult result, const char *what)
{
    EXPECT(result != CUDA_SUCCESS, "%s succeeded", what);
}

static void wrong(void)
{
    struct chain c = chain_new(SIZE);
    CUgraph other = NULL;
    CUgraphNode node;
    CUgraphExec exec, again;
    CUdeviceptr plain;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = memory_of(0);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, c.graph, NULL, 0, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, c.graph, NULL, 0, &memory));
    memory = memory_of(SIZE);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(NULL, c.graph, NULL, 0, &memory));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, NULL, NULL, 0, &memory));
    CU(cuMemAlloc(&plain, SIZE));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, c.graph, NULL, 0, plain));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, c.graph, NULL, 0, c.at + 4));
    CU(cuMemFree(plain));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemAllocNodeGetParams(c.set, &memory));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemAllocNodeGetParams(c.alloc, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemFreeNodeGetParams(c.alloc, &plain));
    /* what such graphs are not made for */
    fails(cuGraphDestroyNode(c.set), "taking a node out");
    fails(cuGraphRemoveDependencies(c.graph, &c.alloc, &c.set, NULL, 1), "removing an edge");
    fails(cuGraphClone(&other, c.graph), "a clone");
    CU(cuGraphCreate(&other, 0));
    fails(cuGraphAddChildGraphNode(&node, other, NULL, 0, c.graph), "a child");
    CU(cuGraphDestroy(other));
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    fails(cuGraphInstantiate(&again, c.graph, 0), "a second instance");
    run(exec);
    expect_values(c.at, 16, "behind all that");
    CU(cuMemFree(c.at));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphInstantiate(&again, c.graph, 0));
    CU(cuGraphExecDestroy(again));
    CU(cuGraphDestroy(c.graph));
}

static void CUDA_CB take_a_while(void *unused)
{
    (void)unused;
    usleep(50000);
}

/* Whoever asks behind cuMemFree: it was in use for as long as anything was at work. */
static void free_at_once(void)
{
    struct chain c = chain_new(SIZE);
    CUgraphExec exec;
    CUstream other;
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuGraphInstantiate(&exec, c.graph, 0));
    run(exec);
    CU(cuLaunchHostFunc(other, take_a_while, NULL));
    CU(cuMemFree(c.at));
    CU(cuDeviceGraphMemTrim(driver_device));
    EXPECT(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0, "it is still in use");
    EXPECT(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0, "it was not trimmed");
    CU(cuStreamSynchronize(other));
    CU(cuStreamDestroy(other));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(c.graph));
}

int main(void)
{
    CUmodule module;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    multiply_add = driver_function(module, "multiply_add");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&copied, SIZE));
    within_one();
    kept();
    free_at_once();
    freed_by_launches();
    freed_by_another();
    captured();
    wrong();
    CU(cuMemFree(copied));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_graph_memory");
}
