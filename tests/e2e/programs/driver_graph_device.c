/*
 * Graphs that kernels may launch, as the host has them: instantiated in every form, launched, uploaded,
 * changed, updated, ended; their handle, which is the driver's, reaches a kernel as it is.
 */
#include "driver.h"

enum { COUNT = 256, SIZE = COUNT * (int)sizeof(int) };

static const char passes_on[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                                ".visible .entry passes_on(.param .u64 at, .param .u64 value)\n{\n"
                                "    .reg .b64 %rd<4>;\n"
                                "    ld.param.u64 %rd1, [at];\n"
                                "    ld.param.u64 %rd2, [value];\n"
                                "    cvta.to.global.u64 %rd3, %rd1;\n"
                                "    st.global.u64 [%rd3], %rd2;\n"
                                "    ret;\n}\n";

static CUstream stream;
static CUdeviceptr memory, other;
static CUmodule module;
static CUfunction function;

static CUDA_MEMSET_NODE_PARAMS setting(unsigned value)
{
    return (CUDA_MEMSET_NODE_PARAMS){
        .dst = memory, .value = value, .elementSize = 4, .width = COUNT, .height = 1};
}

static CUDA_KERNEL_NODE_PARAMS storing(uint64_t *value, CUdeviceptr *at, void **list)
{
    list[0] = at;
    list[1] = value;
    return (CUDA_KERNEL_NODE_PARAMS){.func = function,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 1,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = list};
}

/* Sets the memory, then a kernel stores a value behind it. */
struct made {
    CUgraph graph;
    CUgraphNode set, kernel;
};

static struct made make(unsigned set, uint64_t stored)
{
    struct made m;
    void *list[2];
    const CUDA_MEMSET_NODE_PARAMS p = setting(set);
    const CUDA_KERNEL_NODE_PARAMS k = storing(&stored, &other, list);
    CU(cuGraphCreate(&m.graph, 0));
    CU(cuGraphAddMemsetNode(&m.set, m.graph, NULL, 0, &p, driver_context));
    CU(cuGraphAddKernelNode(&m.kernel, m.graph, &m.set, 1, &k));
    return m;
}

static void expect(unsigned set, uint64_t stored, const char *what)
{
    unsigned got[COUNT];
    uint64_t value = 0;
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(got, memory, SIZE));
    CU(cuMemcpyDtoH(&value, other, sizeof value));
    EXPECT(got[0] == set && got[COUNT - 1] == set, "%s: memory is %u, %u", what, got[0],
           got[COUNT - 1]);
    EXPECT(value == stored, "%s: the kernel stored %#llx, expected %#llx", what,
           (unsigned long long)value, (unsigned long long)stored);
}

static CUgraphExec with_flags(CUgraph graph)
{
    CUgraphExec exec;
    cuuint64_t flags = 0;
    CU(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
    CU(cuGraphExecGetFlags(exec, &flags));
    EXPECT(flags == CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, "the flags are %llu",
           (unsigned long long)flags);
    return exec;
}

static CUgraphExec with_params(CUgraph graph)
{
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                                                CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                       .hUploadStream = stream};
    CU(cuGraphInstantiateWithParams(&exec, graph, &p));
    EXPECT(p.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS, "the result is %d", (int)p.result_out);
    return exec;
}

static void launched_and_changed(void)
{
    struct made m = make(1, 10), n = make(5, 50);
    CUgraphExec exec = with_flags(m.graph);
    CUgraphExecUpdateResultInfo info;
    CU(cuGraphUpload(exec, stream));
    CU(cuGraphLaunch(exec, stream));
    expect(1, 10, "launched");

    uint64_t value = 20;
    void *list[2];
    const CUDA_KERNEL_NODE_PARAMS k = storing(&value, &other, list);
    const CUDA_MEMSET_NODE_PARAMS p = setting(2);
    CU(cuGraphExecKernelNodeSetParams(exec, m.kernel, &k));
    CU(cuGraphExecMemsetNodeSetParams(exec, m.set, &p, driver_context));
    CU(cuGraphUpload(exec, stream));
    CU(cuGraphLaunch(exec, stream));
    expect(2, 20, "its nodes changed");

    unsigned enabled = 1;
    value = 30;
    CU(cuGraphExecKernelNodeSetParams(exec, m.kernel, &k));
    CU(cuGraphNodeSetEnabled(exec, m.set, 0));
    CU(cuGraphNodeGetEnabled(exec, m.set, &enabled));
    EXPECT(enabled == 0, "a node that is off says %u", enabled);
    CU(cuMemsetD32(memory, 3, COUNT));
    CU(cuGraphLaunch(exec, stream));
    expect(3, 30, "a node off");
    CU(cuGraphNodeSetEnabled(exec, m.set, 1));

    CU(cuGraphExecUpdate(exec, n.graph, &info));
    CU(cuGraphDestroy(n.graph));
    CU(cuGraphDestroy(m.graph)); /* what was instantiated stays */
    CU(cuGraphLaunch(exec, stream));
    expect(5, 50, "updated whole");
    CU(cuGraphExecDestroy(exec));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphExecDestroy(exec));
}

/* A kernel gets the handle that the program has: the driver's. */
static void handed_to_a_kernel(void)
{
    struct made m = make(1, 10);
    CUgraphExec exec = with_params(m.graph);
    uint64_t value = (uint64_t)exec;
    void *list[] = {&other, &value};
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, list, NULL));
    CU(cuGraphLaunch(exec, stream));
    expect(1, 10, "launched behind the kernel");
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, list, NULL));
    expect(1, (uint64_t)exec, "handed to a kernel");
    EXPECT((uint64_t)exec >> 48 == 0, "the handle %p is no driver's", (void *)exec);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(m.graph));
}

/* Each is its own, whatever others came and went. */
static void several(void)
{
    enum { GRAPHS = 40 };
    CUgraphExec execs[GRAPHS];
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < GRAPHS; i++) {
            struct made m = make(i, 100 + i);
            execs[i] = i % 3 ? with_flags(m.graph) : with_params(m.graph);
            for (unsigned k = 0; k < i; k++)
                EXPECT(execs[k] != execs[i], "graphs %u and %u have one handle", k, i);
            CU(cuGraphDestroy(m.graph));
        }
        for (unsigned i = GRAPHS; i-- > 0;) {
            CU(cuGraphLaunch(execs[i], stream));
            if (i % 8 == 0)
                expect(i, 100 + i, "one of several");
            CU(cuStreamSynchronize(stream));
            CU(cuGraphExecDestroy(execs[i]));
        }
    }
}

static void CUDA_CB nothing(void *data)
{
    (void)data;
}

/* What no such graph may have, and flags that do not go together. */
static void refused(void)
{
    const CUDA_HOST_NODE_PARAMS host = {nothing, NULL};
    struct made m = make(1, 10);
    CUgraphNode node;
    CUgraphExec exec = NULL;
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH};
    CUresult r = cuGraphInstantiateWithFlags(&exec, m.graph,
                                             CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                                                 CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    EXPECT(r != CUDA_SUCCESS, "flags that do not go together are taken");
    CU(cuGraphAddHostNode(&node, m.graph, NULL, 0, &host));
    r = cuGraphInstantiateWithParams(&exec, m.graph, &p);
    EXPECT(r != CUDA_SUCCESS, "a kernel may launch a graph with a host function");
    EXPECT(p.result_out == CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
           "a host function: the result is %d", (int)p.result_out);
    CU_REFUSED(
        CUDA_ERROR_INVALID_VALUE,
        cuGraphInstantiateWithFlags(NULL, m.graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch((CUgraphExec)(uintptr_t)0x1230, stream));
    CU(cuGraphDestroy(m.graph));
}

/* What such a node and its graph are refused; and a launch that nothing captures. */
static void may_not(CUgraph graph, CUgraphNode node)
{
    CUlaunchAttribute updatable = {.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, stream, &updatable, 1};
    void *parameters[] = {&memory, &(uint64_t){0}};
    struct made plain = make(1, 2);
    CUgraphExecUpdateResultInfo info;
    CUgraphExec exec, second;
    EXPECT(cuGraphKernelNodeSetAttribute(node, updatable.id, &updatable.value) != CUDA_SUCCESS,
           "it is not updatable any more");
    EXPECT(cuGraphKernelNodeCopyAttributes(plain.kernel, node) != CUDA_SUCCESS, "copied from it");
    EXPECT(cuGraphKernelNodeCopyAttributes(node, plain.kernel) != CUDA_SUCCESS, "copied to it");
    CU(cuGraphInstantiate(&exec, graph, 0));
    EXPECT(cuGraphInstantiate(&second, graph, 0) != CUDA_SUCCESS, "it was instantiated twice");
    EXPECT(cuGraphExecUpdate(exec, graph, &info) != CUDA_SUCCESS, "it was updated whole");
    CU(cuGraphExecDestroy(exec));
    updatable.value.deviceUpdatableKernelNode.deviceUpdatable = 1;
    EXPECT(cuLaunchKernelEx(&config, function, parameters, NULL) != CUDA_SUCCESS,
           "launched, though nothing captures it");
    CU(cuGraphDestroy(plain.graph));
}

/* Which kernels may do is in graph_updates.cu: here, who names a node for them, or has no name. */
static void nodes_that_kernels_update(void)
{
    const CUkernelNodeAttrID what = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
    struct made m = make(1, 2);
    CUkernelNodeAttrValue value = {.cooperative = 0};
    value.deviceUpdatableKernelNode.deviceUpdatable = 7;
    CU(cuGraphKernelNodeGetAttribute(m.kernel, what, &value));
    EXPECT(value.deviceUpdatableKernelNode.deviceUpdatable == 0, "a node is said to be updatable");
    value = (CUkernelNodeAttrValue){.deviceUpdatableKernelNode = {.deviceUpdatable = 1}};
    CU(cuGraphKernelNodeSetAttribute(m.kernel, what, &value));
    CUgraphDeviceNode name = value.deviceUpdatableKernelNode.devNode;
    EXPECT(name != NULL, "it has no name");
    CU(cuGraphKernelNodeGetAttribute(m.kernel, what, &value));
    EXPECT(value.deviceUpdatableKernelNode.deviceUpdatable == 1, "it is not updatable");
    may_not(m.graph, m.kernel);
    CU(cuGraphDestroy(m.graph));
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&memory, SIZE));
    CU(cuMemAlloc(&other, sizeof(uint64_t)));
    CU(cuModuleLoadData(&module, passes_on));
    function = driver_function(module, "passes_on");
    launched_and_changed();
    handed_to_a_kernel();
    several();
    refused();
    nodes_that_kernels_update();
    CU(cuModuleUnload(module));
    CU(cuMemFree(other));
    CU(cuMemFree(memory));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_graph_device");
}
