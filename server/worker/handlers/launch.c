/* Kernel launches, and the occupancy question that has a launch in it. */
#include <string.h>

#include "function.h"
#include "gpw_handlers.h"
#include "growth.h"
#include "handles.h"
#include "module.h"

/* Nearly all kernels have no more. */
#define FEW_PARAMETERS 64

/* Attributes whose value is plain data; an event in one is an id to look up. A node's name for
 * kernels is the driver's to say, where somebody is told of it. */
static CUresult attribute_take(struct gpw_session *s, const CUlaunchAttribute *from, bool named,
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
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        to->value.deviceUpdatableKernelNode.devNode = NULL;
        return named ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
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
                                uint32_t count, bool named, CUlaunchAttribute *to)
{
    if (count > GP_ATTRIBUTES_PER_LAUNCH_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        CUresult r = attribute_take(s, &from[i], named, &to[i]);
        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

struct asked {
    CUfunction function;
    uint32_t flags, parameter_bytes;
    const void *parameters;
    const CUlaunchAttribute *attributes;
    uint64_t *name; /* of the node, for kernels; may be NULL */
};

/* What the driver writes into a list. */
static uint64_t name_in(const CUlaunchAttribute *list, uint32_t count)
{
    uint64_t name = 0;
    for (uint32_t i = 0; i < count; i++)
        if (list[i].id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
            name = (uint64_t)list[i].value.deviceUpdatableKernelNode.devNode;
    return name;
}

static CUresult launch_ex(struct gpw_session *s, const struct asked *a, CUlaunchConfig *c,
                          void **pointers)
{
    CUlaunchAttribute list[GP_ATTRIBUTES_PER_LAUNCH_MAX];
    CUresult r = attributes_take(s, a->attributes, c->numAttrs, a->name != NULL, list);
    if (r != CUDA_SUCCESS)
        return r;
    c->attrs = list;
    r = s->driver->cuLaunchKernelEx(c, a->function, pointers, NULL);
    if (r == CUDA_SUCCESS && a->name)
        *a->name = name_in(list, c->numAttrs);
    return r;
}

static CUresult launch(struct gpw_session *s, const struct asked *a, CUlaunchConfig *config,
                       void **pointers)
{
    const CUlaunchConfig *c = config;
    if (a->flags & GP_LAUNCH_EX)
        return launch_ex(s, a, config, pointers);
    if (a->flags & GP_LAUNCH_COOPERATIVE)
        return s->driver->cuLaunchCooperativeKernel(
            a->function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
            c->blockDimZ, c->sharedMemBytes, c->hStream, pointers);
    return s->driver->cuLaunchKernel(a->function, c->gridDimX, c->gridDimY, c->gridDimZ,
                                     c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes,
                                     c->hStream, pointers, NULL);
}

static CUresult launch_with(struct gpw_session *s, const struct asked *a, CUlaunchConfig *config,
                            const struct gpw_parameters *p, void **pointers)
{
    for (uint32_t i = 0; i < p->count; i++)
        pointers[i] = (char *)(uintptr_t)a->parameters + p->at[i].offset;
    return launch(s, a, config, pointers);
}

/* Apart, because a function touches each page of its part of the stack: that of the most parameters has
 * nine, which a launch of few would have in the way of what the driver has just used. */
static __attribute__((noinline)) CUresult launch_few(struct gpw_session *s, const struct asked *a,
                                                     CUlaunchConfig *config,
                                                     const struct gpw_parameters *p)
{
    void *pointers[FEW_PARAMETERS];
    return launch_with(s, a, config, p, pointers);
}

static __attribute__((noinline)) CUresult launch_many(struct gpw_session *s, const struct asked *a,
                                                      CUlaunchConfig *config,
                                                      const struct gpw_parameters *p)
{
    void *pointers[GP_PARAMETERS_MAX];
    return launch_with(s, a, config, p, pointers);
}

static CUresult launch_checked(struct gpw_session *s, const struct asked *a, CUlaunchConfig *config)
{
    struct gpw_parameters p;
    CUresult r = gpw_parameters_of(s, a->function, &p);
    if (r != CUDA_SUCCESS)
        return r;
    if (p.bytes != a->parameter_bytes) {
        gpw_session_broken(s, "a launch whose parameters are not the kernel's");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p.local && !gpw_growth_local_fits(s, p.local))
        return CUDA_ERROR_OUT_OF_MEMORY;
    gpw_modules_launched(s, p.prints);
    r = p.count <= FEW_PARAMETERS ? launch_few(s, a, config, &p) : launch_many(s, a, config, &p);
    if (p.local && r == CUDA_SUCCESS)
        gpw_growth_local_taken(s, p.local);
    return r;
}

CUresult gpw_gp_launch(struct gpw_session *s, CUfunction function, CUstream stream, uint32_t grid_x,
                       uint32_t grid_y, uint32_t grid_z, uint32_t block_x, uint32_t block_y,
                       uint32_t block_z, uint32_t shared_bytes, uint32_t flags,
                       uint32_t parameter_bytes, uint32_t attribute_count, const void *parameters,
                       const CUlaunchAttribute *attributes)
{
    const struct asked asked = {function, flags, parameter_bytes, parameters, attributes, NULL};
    CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                             block_z, shared_bytes, stream, NULL,    attribute_count};
    return launch_checked(s, &asked, &config);
}

CUresult gpw_gp_launch_updatable(struct gpw_session *s, CUfunction function, CUstream stream,
                                 uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                                 uint32_t block_x, uint32_t block_y, uint32_t block_z,
                                 uint32_t shared_bytes, uint32_t parameter_bytes,
                                 uint32_t attribute_count, const void *parameters,
                                 const CUlaunchAttribute *attributes, uint64_t *name)
{
    const struct asked asked = {function,   GP_LAUNCH_EX, parameter_bytes,
                                parameters, attributes,   name};
    CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                             block_z, shared_bytes, stream, NULL,    attribute_count};
    *name = 0;
    return launch_checked(s, &asked, &config);
}

CUresult gpw_gp_occupancy_clusters(struct gpw_session *s, CUfunction function, uint32_t potential,
                                   uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                                   uint32_t block_x, uint32_t block_y, uint32_t block_z,
                                   uint32_t shared_bytes, uint32_t attribute_count,
                                   const CUlaunchAttribute *attributes, int *result)
{
    CUlaunchAttribute list[GP_ATTRIBUTES_PER_LAUNCH_MAX];
    CUresult r = attributes_take(s, attributes, attribute_count, false, list);
    if (r != CUDA_SUCCESS)
        return r;
    CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                             block_z, shared_bytes, NULL,   list,    attribute_count};
    return potential ? s->driver->cuOccupancyMaxPotentialClusterSize(result, function, &config)
                     : s->driver->cuOccupancyMaxActiveClusters(result, function, &config);
}
