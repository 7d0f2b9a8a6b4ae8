/* The client's side of our libnccl.so.2: its messages, on the program's own sessions. */
#include "communicator_table.h"

#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "session.h"

/* The current context of the thread counts as CUDA's runtime has it: the device's primary one. */
static CUresult enter(CUdevice device, CUcontext *left)
{
    CUcontext context;
    *left = NULL;
    CUresult r = cuInit(0);
    if (r == CUDA_SUCCESS)
        r = cuDevicePrimaryCtxRetain(&context, device);
    if (r != CUDA_SUCCESS)
        return r;
    cuCtxGetCurrent(left);
    return cuCtxSetCurrent(context);
}

/* The context lives as long as the process: communicators are in it. */
static CUresult leave(CUdevice device, CUcontext left)
{
    (void)device;
    return cuCtxSetCurrent(left);
}

static CUresult device_now(CUdevice *device)
{
    CUresult r = cuInit(0);
    *device = 0;
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_current() ? cuCtxGetDevice(device) : CUDA_SUCCESS;
}

static CUresult devices(int *count)
{
    CUresult r = cuInit(0);
    return r == CUDA_SUCCESS ? cuDeviceGetCount(count) : r;
}

/* A worker that says less than all of it lies. */
static CUresult whole(CUresult r, uint32_t got, uint32_t wanted)
{
    return r == CUDA_SUCCESS && got != wanted ? CUDA_ERROR_UNKNOWN : r;
}

static CUresult unique_id(int32_t *result, uint8_t *id)
{
    uint32_t got = 0;
    CUresult r = gpc_wire_gp_nccl_unique_id(result, id, &got);
    return whole(r, got, GP_NCCL_ID_BYTES);
}

/* A stream of another context than the current one's names its own. */
static CUresult group(struct gp_nccl_call *calls, uint32_t count, bool waits)
{
    CUstream first = (CUstream)(uintptr_t)calls[0].stream;
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_gp_nccl_group, first);
    for (uint32_t i = 0; r == CUDA_SUCCESS && i < count; i++) {
        struct gpc_route its = on;
        r = gpc_route_stream(&its, (CUstream)(uintptr_t)calls[i].stream, &calls[i].stream);
    }
    return r == CUDA_SUCCESS ? gpc_wire_gp_nccl_group_on(&on, first, waits, count, calls) : r;
}

static CUresult settled(gp_communicator comm, int32_t results[2])
{
    uint32_t got = 0;
    CUresult r = gpc_wire_gp_nccl_settled(comm, results, &got);
    return whole(r, got, 2 * sizeof results[0]);
}

/* Programs reckon with these, and have lists by them. */
static CUresult state(gp_communicator comm, int32_t *result, int32_t *ranks, int32_t *rank)
{
    int32_t said, all, own;
    CUresult r = gpc_wire_gp_nccl_state(comm, &said, &all, &own);
    if (r != CUDA_SUCCESS)
        return r;
    if (all < 0 || own < 0 || (own && own >= all))
        return CUDA_ERROR_UNKNOWN;
    *result = said;
    *ranks = all;
    *rank = own;
    return CUDA_SUCCESS;
}

static CUresult end(gp_communicator comm, uint32_t aborts, int32_t *result)
{
    uint32_t got = 0;
    CUresult r = gpc_wire_gp_nccl_end(comm, aborts, result, &got);
    return whole(r, got, sizeof *result);
}

static CUresult last_error(gp_communicator comm, char text[GP_NCCL_TEXT_MAX])
{
    int32_t result;
    uint32_t got = 0;
    char said[GP_NCCL_TEXT_MAX];
    CUresult r = gpc_wire_gp_nccl_last_error(comm, &result, (uint8_t *)said, &got);
    if (r == CUDA_SUCCESS)
        gpc_printable(text, GP_NCCL_TEXT_MAX, said, (uint32_t)strnlen(said, got));
    return r;
}

const struct gpc_communicator_table gpc_communicator_table = {
    .enter = enter,
    .leave = leave,
    .device = device_now,
    .devices = devices,
    .allocate = cuMemAlloc_v2,
    .release = cuMemFree_v2,
    .version = gpc_wire_gp_nccl_version,
    .unique_id = unique_id,
    .init = gpc_wire_gp_nccl_init,
    .split = gpc_wire_gp_nccl_split,
    .shrink = gpc_wire_gp_nccl_shrink,
    .group = group,
    .settled = settled,
    .state = state,
    .finalize = gpc_wire_gp_nccl_finalize,
    .end = end,
    .last_error = last_error,
    .operation = gpc_wire_gp_nccl_operation,
    .operation_end = gpc_wire_gp_nccl_operation_end,
    .enlist = gpc_wire_gp_nccl_register,
    .delist = gpc_wire_gp_nccl_deregister,
};
