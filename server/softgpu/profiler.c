/* The profiler: there is none to start or to stop. */
#include "softgpu.h"

CUresult cuProfilerStart(void)
{
    SG_READY();
    return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void)
{
    SG_READY();
    return CUDA_SUCCESS;
}
