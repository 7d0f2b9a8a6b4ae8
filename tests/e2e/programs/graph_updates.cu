/*
 * Kernels that change a node of their own graph: its parameters, its grid, and whether it runs. What
 * the node does is in graph_updates_part.cu. The soft GPU does not load this.
 */
#include "check.h"

#define COUNT 256

extern __global__ void add(int *values, int more);

/* Before it in the graph. `step` counts the launches. */
__global__ void change(cudaGraphDeviceNode_t node, int *step, int *errors)
{
    int at = ++*step;
    errors[0] = cudaGraphKernelNodeSetParam(node, sizeof(int *), at * 10);
    errors[1] = cudaGraphKernelNodeSetGridDim(node, dim3(at, 1, 1));
    errors[2] = cudaGraphKernelNodeSetEnabled(node, at != 3);
}

struct made {
    cudaGraph_t graph;
    cudaGraphNode_t changed, changing;
    cudaGraphDeviceNode_t name;
};

static cudaGraphNode_t kernel(cudaGraph_t graph, const cudaGraphNode_t *behind, void *function,
                              void **parameters)
{
    cudaGraphNode_t node;
    cudaKernelNodeParams p = {};
    p.func = function;
    p.gridDim = p.blockDim = dim3(1, 1, 1);
    p.kernelParams = parameters;
    CUDA(cudaGraphAddKernelNode(&node, graph, behind, behind ? 1 : 0, &p));
    return node;
}

static struct made make(int *values, int *step, int *errors)
{
    struct made m = {};
    int more = 1;
    void *adds[] = {&values, &more};
    cudaLaunchAttributeValue value = {};
    CUDA(cudaGraphCreate(&m.graph, 0));
    m.changed = kernel(m.graph, NULL, (void *)add, adds);
    value.deviceUpdatableKernelNode.deviceUpdatable = 1;
    CUDA(cudaGraphKernelNodeSetAttribute(m.changed, cudaLaunchAttributeDeviceUpdatableKernelNode,
                                         &value));
    m.name = value.deviceUpdatableKernelNode.devNode;
    void *changes[] = {&m.name, &step, &errors};
    m.changing = kernel(m.graph, NULL, (void *)change, changes);
    CUDA(cudaGraphAddDependencies(m.graph, &m.changing, &m.changed, NULL, 1));
    return m;
}

static void told(const struct made *m)
{
    cudaLaunchAttributeValue value = {};
    EXPECT(m->name != NULL, "the node has no name for kernels");
    CUDA(cudaGraphKernelNodeGetAttribute(m->changed, cudaLaunchAttributeDeviceUpdatableKernelNode,
                                         &value));
    EXPECT(value.deviceUpdatableKernelNode.deviceUpdatable == 1, "it is said not to be updatable");
    value.deviceUpdatableKernelNode.deviceUpdatable = 0;
    cudaError_t r = cudaGraphKernelNodeSetAttribute(
        m->changed, cudaLaunchAttributeDeviceUpdatableKernelNode, &value);
    EXPECT(r != cudaSuccess, "it could be made one that is not");
    cudaGetLastError();
}

int main(void)
{
    int *values, *step, *errors, host[COUNT] = {0}, failed[3];
    cudaStream_t stream;
    cudaGraphExec_t exec, second;
    CUDA(cudaMalloc(&values, sizeof host));
    CUDA(cudaMalloc(&step, sizeof *step));
    CUDA(cudaMalloc(&errors, sizeof failed));
    CUDA(cudaMemset(values, 0, sizeof host));
    CUDA(cudaMemset(step, 0, sizeof *step));
    CUDA(cudaStreamCreate(&stream));
    struct made m = make(values, step, errors);
    told(&m);
    CUDA(cudaGraphInstantiate(&exec, m.graph, 0));
    EXPECT(cudaGraphInstantiate(&second, m.graph, 0) != cudaSuccess, "instantiated twice");
    cudaGetLastError();
    CUDA(cudaGraphUpload(exec, stream));
    int expected[4] = {0};
    for (int times = 1; times <= 4; times++) {
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(failed, errors, sizeof failed, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 3; i++)
            EXPECT(failed[i] == cudaSuccess, "launch %d, change %d: error %d", times, i, failed[i]);
        for (int i = 0; i < 4; i++) {
            expected[i] += i < times && times != 3 ? 10 * times : 0;
            EXPECT(host[i] == expected[i], "launch %d, block %d: %d, expected %d", times, i,
                   host[i], expected[i]);
        }
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(m.graph));
    CUDA(cudaStreamDestroy(stream));
    return finish("graph_updates");
}
