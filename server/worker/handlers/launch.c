/* Kernel launches, and the occupancy question that has a launch in it. */
#include <string.h>

#include "function.h"
#include "gpw_handlers.h"
#include "growth.h"
#include "handles.h"
#include "module.h"

/* Attributes whose value is plain data; an event in one is an id to look up. */
static CUresult attribute_take(struct gpw_session *s, const CUlaunchAttribute *from,
                               CUlaunchAttribute *to)
{
    *to = *from;
    CUevent *event;
    switch ((unsigned)from->id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        event = &to->value.programmaticEvent.event;
        break;
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        event = &to->value.launchCompletionEvent.event;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return gpw_handle_get(s, GP_HANDLE_EVENT, (uint64_t)*event, false, (uint64_t *)event);
}

static CUresult attributes_take(struct gpw_session *s, const CUlaunchAttribute *from,
                                uint32_t count, CUlaunchAttribute *to)
{
    if (count > GP_ATTRIBUTES_PER_LAUNCH_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        CUresult r = attribute_take(s, &from[i], &to[i]);
        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

static CUresult launch(struct gpw_session *s, CUfunction function, CUlaunchConfig *config,
                       uint32_t flags, const CUlaunchAttribute *attributes, void **pointers)
{
    const CUlaunchConfig *c = config;
    if (flags & GP_LAUNCH_EX) {
        CUlaunchAttribute list[GP_ATTRIBUTES_PER_LAUNCH_MAX];
        CUresult r = attributes_take(s, attributes, c->numAttrs, list);
        if (r != CUDA_SUCCESS)
            return r;
        config->attrs = list;
        return s->driver->cuLaunchKernelEx(config, function, pointers, NULL);
    }
    if (flags & GP_LAUNCH_COOPERATIVE)
        return s->driver->cuLaunchCooperativeKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ,
                                                    c->blockDimX, c->blockDimY, c->blockDimZ,
                                                    c->sharedMemBytes, c->hStream, pointers);
    return s->driver->cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                                     c->blockDimY, c->blockDimZ, c->sharedMemBytes, c->hStream,
                                     pointers, NULL);
}

CUresult gpw_gp_launch(struct gpw_session *s, CUfunction function, CUstream stream, uint32_t grid_x,
                       uint32_t grid_y, uint32_t grid_z, uint32_t block_x, uint32_t block_y,
                       uint32_t block_z, uint32_t shared_bytes, uint32_t flags,
                       uint32_t parameter_bytes, uint32_t attribute_count, const void *parameters,
                       const CUlaunchAttribute *attributes)
{
    void *pointers[GP_PARAMETERS_MAX];
    struct gpw_parameters p;
    CUresult r = gpw_parameters_of(s, function, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (p.bytes != parameter_bytes) {
        gpw_session_broken(s, "a launch whose parameters are not the kernel's");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p.local && !gpw_growth_local_fits(s, p.local))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < p.count; i++)
        pointers[i] = (char *)(uintptr_t)parameters + p.at[i].offset;
    CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                             block_z, shared_bytes, stream, NULL,    attribute_count};
    gpw_modules_launched(s, p.prints);
    r = launch(s, function, &config, flags, attributes, pointers);
    if (p.local && r == CUDA_SUCCESS)
        gpw_growth_local_taken(s, p.local);
    return r;
}

CUresult gpw_gp_occupancy_clusters(struct gpw_session *s, CUfunction function, uint32_t potential,
                                   uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                                   uint32_t block_x, uint32_t block_y, uint32_t block_z,
                                   uint32_t shared_bytes, uint32_t attribute_count,
                                   const CUlaunchAttribute *attributes, int *result)
{
    CUlaunchAttribute list[GP_ATTRIBUTES_PER_LAUNCH_MAX];
    CUresult r = attributes_take(s, attributes, attribute_count, list);
    if (r != CUDA_SUCCESS)
        return r;
    CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                             block_z, shared_bytes, NULL,   list,    attribute_count};
    return potential ? s->driver->cuOccupancyMaxPotentialClusterSize(result, function, &config)
                     : s->driver->cuOccupancyMaxActiveClusters(result, function, &config);
}
