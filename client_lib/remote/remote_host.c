#include "remote_host.h"

#include "call.h"
#include "context.h"
#include "gpc_wire.h"

struct gpc_session *gpc_range_session(const struct gpc_range *range)
{
    struct gpc_session *s = gpc_session_of_device(range->device);
    return s ? s : gpc_session_of_address(range->begin); /* mapped where no context was */
}

bool gpc_range_is_remote(const struct gpc_range *range, const struct gpc_route *on)
{
    if (gpc_range_is_host(range))
        return false;
    const struct gpc_session *s = gpc_range_session(range);
    return s && s != on->session;
}

CUresult gpc_remote_begin(struct gpc_route *there, const struct gpc_range *range,
                          const struct gpc_route *on, CUstream stream)
{
    struct gpc_session *s = gpc_range_session(range);
    CUcontext context = range->context;
    if (!context || !gpc_context_live(context) || gpc_session_of_handle((uint64_t)context) != s)
        context = gpc_context_any(s, range->device);
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *there = gpc_route_in(context);
    return gpc_wire_cuStreamSynchronize_on(on, stream);
}

CUresult gpc_remote_end(const struct gpc_route *there, CUresult r)
{
    return r ? r : gpc_wire_cuStreamSynchronize_on(there, CU_STREAM_LEGACY);
}
