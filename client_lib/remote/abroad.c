#include "abroad.h"

#include "call.h"
#include "context.h"
#include "gpc_wire.h"

struct gpc_session *gpc_range_session(const struct gpc_range *range)
{
    return gpc_session_of_device(range->device);
}

bool gpc_is_abroad(const struct gpc_range *range, CUstream stream)
{
    struct gpc_call where = {.session = NULL};
    uint64_t wire;
    if (gpc_session_count() < 2 || gpc_range_is_host(range))
        return false;
    struct gpc_session *s = gpc_range_session(range);
    return s && gpc_stream_wire(&where, stream, &wire) == CUDA_SUCCESS && where.session != s;
}

CUresult gpc_abroad_begin(struct gpc_abroad *a, const struct gpc_range *range, CUstream stream)
{
    struct gpc_thread *t = gpc_thread();
    CUcontext there = range->context;
    if (!there || !gpc_context_live(there) ||
        gpc_session_of_handle((uint64_t)there) != gpc_range_session(range))
        there = gpc_context_any(gpc_range_session(range));
    if (!there)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_wire_cuStreamSynchronize(stream);
    if (r != CUDA_SUCCESS)
        return r;
    a->before = t->current;
    t->current = there;
    return CUDA_SUCCESS;
}

CUresult gpc_abroad_end(struct gpc_abroad *a, CUresult r)
{
    if (r == CUDA_SUCCESS)
        r = gpc_wire_cuStreamSynchronize(CU_STREAM_LEGACY);
    gpc_thread()->current = a->before;
    return r;
}
