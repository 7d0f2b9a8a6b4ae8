/* What kernels name by themselves: graphs that they launch, and nodes that they update. */
#include "gpw_handlers.h"

/* Of any other graph, where the driver has it is nobody's to know. */
CUresult gpw_gp_graph_exec_named(struct gpw_session *s, CUgraphExec exec, uint64_t *name)
{
    cuuint64_t flags = 0;
    *name = 0;
    CUresult r = s->driver->cuGraphExecGetFlags(exec, &flags);
    if (r != CUDA_SUCCESS)
        return r;
    if (!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH))
        return CUDA_ERROR_INVALID_VALUE;
    *name = (uint64_t)exec;
    return CUDA_SUCCESS;
}

/* The driver writes the name where it has read what is asked for, whatever its header says. */
CUresult gpw_gp_node_updatable(struct gpw_session *s, CUgraphNode node, int32_t updatable,
                               uint64_t *name)
{
    CUkernelNodeAttrValue value = {.deviceUpdatableKernelNode = {.deviceUpdatable = updatable}};
    CUresult r = s->driver->cuGraphKernelNodeSetAttribute(
        node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value);
    *name = (uint64_t)value.deviceUpdatableKernelNode.devNode;
    return r;
}
