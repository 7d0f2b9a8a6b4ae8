/*
 * Kernels that change a node of their own graph: its parameters, its grid, and whether it runs, in a
 * graph made by hand and in a captured one. What the node does is in graph_updates_part.cu.
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

/* The same at once. */
__global__ void change_together(cudaGraphDeviceNode_t node, int *step, int *errors)
{
    int at = ++*step, more = at * 10;
    alignas(cudaGraphKernelNodeUpdate) char room[3 * sizeof(cudaGraphKernelNodeUpdate)];
    cudaGraphKernelNodeUpdate *updates = (cudaGraphKernelNodeUpdate *)room; /* nothing makes one */
    updates[0].node = updates[1].node = updates[2].node = node;
    updates[0].field = cudaGraphKernelNodeFieldParam;
    updates[0].updateData.param.pValue = &more;
    updates[0].updateData.param.offset = sizeof(int *);
    updates[0].updateData.param.size = sizeof more;
    updates[1].field = cudaGraphKernelNodeFieldGridDim;
    updates[1].updateData.gridDim = dim3(at, 1, 1);
    updates[2].field = cudaGraphKernelNodeFieldEnabled;
    updates[2].updateData.isEnabled = at != 3;
    errors[0] = cudaGraphKernelNodeUpdatesApply(updates, 3);
    errors[1] = errors[2] = cudaSuccess;
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

static void launch_updatable(struct made *m, cudaStream_t stream, int *values, int more)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    attribute.id = cudaLaunchAttributeDeviceUpdatableKernelNode;
    attribute.val.deviceUpdatableKernelNode.deviceUpdatable = 1;
    config.gridDim = config.blockDim = dim3(1, 1, 1);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUDA(cudaLaunchKernelEx(&config, add, values, more));
    m->name = attribute.val.deviceUpdatableKernelNode.devNode;
}

/* What changes the node needs its name, so it is captured later, and the node waits for it. */
static struct made capture(int *values, int *step, int *errors)
{
    struct made m = {};
    cudaStream_t stream;
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *behind;
    size_t count;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    launch_updatable(&m, stream, values, 1);
    CUDA(cudaStreamGetCaptureInfo(stream, &status, NULL, &m.graph, &behind, NULL, &count));
    EXPECT(count == 1, "%zu nodes are the last", count);
    m.changed = behind[0];
    CUDA(cudaStreamUpdateCaptureDependencies(stream, NULL, NULL, 0,
                                             cudaStreamSetCaptureDependencies));
    change_together<<<1, 1, 0, stream>>>(m.name, step, errors);
    CUDA(cudaStreamGetCaptureInfo(stream, &status, NULL, &m.graph, &behind, NULL, &count));
    m.changing = behind[0];
    CUDA(cudaGraphAddDependencies(m.graph, &m.changing, &m.changed, NULL, 1));
    CUDA(cudaStreamUpdateCaptureDependencies(stream, &m.changed, NULL, 1,
                                             cudaStreamSetCaptureDependencies));
    CUDA(cudaStreamEndCapture(stream, &m.graph));
    CUDA(cudaStreamDestroy(stream));
    return m;
}

/* A launch that is no node's has no name, and none is told. */
static void not_captured(int *values)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int more = 0;
    attribute.id = cudaLaunchAttributeDeviceUpdatableKernelNode;
    attribute.val.deviceUpdatableKernelNode.deviceUpdatable = 1;
    config.gridDim = config.blockDim = dim3(1, 1, 1);
    config.attrs = &attribute;
    config.numAttrs = 1;
    EXPECT(cudaLaunchKernelEx(&config, add, values, more) != cudaSuccess, "it was launched");
    cudaGetLastError();
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

/* The host gives the node parameters of its own: at the fifth launch its graph changes them again. */
static void given_anew(const struct made *m, cudaGraphExec_t exec, cudaStream_t stream, int *values)
{
    int host[COUNT], more = 1000;
    void *adds[] = {&values, &more};
    cudaKernelNodeParams p = {};
    p.func = (void *)add;
    p.gridDim = dim3(7, 1, 1);
    p.blockDim = dim3(1, 1, 1);
    p.kernelParams = adds;
    CUDA(cudaGraphExecKernelNodeSetParams(exec, m->changed, &p));
    CUDA(cudaMemset(values, 0, sizeof host));
    CUDA(cudaGraphUpload(exec, stream));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 50 && host[4] == 50 && host[5] == 0, "blocks 0, 4, 5: %d, %d, %d", host[0],
           host[4], host[5]);
}

static void launched(struct made m, int *values, int *step, int *errors)
{
    int host[COUNT] = {0}, failed[3], expected[4] = {0};
    cudaStream_t stream;
    cudaGraphExec_t exec, second;
    CUDA(cudaMemset(values, 0, sizeof host));
    CUDA(cudaMemset(step, 0, sizeof *step));
    CUDA(cudaStreamCreate(&stream));
    told(&m);
    CUDA(cudaGraphInstantiate(&exec, m.graph, 0));
    EXPECT(cudaGraphInstantiate(&second, m.graph, 0) != cudaSuccess, "instantiated twice");
    cudaGetLastError();
    CUDA(cudaGraphUpload(exec, stream));
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
    given_anew(&m, exec, stream, values);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(m.graph));
    CUDA(cudaStreamDestroy(stream));
}

int main(void)
{
    int *values, *step, *errors;
    CUDA(cudaMalloc(&values, COUNT * sizeof *values));
    CUDA(cudaMalloc(&step, sizeof *step));
    CUDA(cudaMalloc(&errors, 3 * sizeof *errors));
    launched(make(values, step, errors), values, step, errors);
    launched(capture(values, step, errors), values, step, errors);
    not_captured(values);
    return finish("graph_updates");
}
