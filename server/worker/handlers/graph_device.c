/* What kernels name by themselves: graphs that they launch. */
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
