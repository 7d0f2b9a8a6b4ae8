#include "route.h"

#include "call.h"
#include "exec_names.h"
#include "handle.h"
#include "replica.h"
#include "session.h"
#include "stream.h"

/* Where a call goes that nothing names but the context. */
static struct gpc_session *session_of_context(CUcontext context)
{
    unsigned open = gpc_session_count(), i = 0;
    if (context || open < 2)
        return open ? gpc_session_of_handle((uint64_t)context) : NULL;
    while (i + 1 < open && !gpc_session_works(gpc_session_at(i)))
        i++; /* without a context any host will do that is there */
    return gpc_session_at(i);
}

struct gpc_session *gpc_session(void)
{
    return session_of_context(gpc_current());
}

struct gpc_route gpc_route_here(void)
{
    return (struct gpc_route){.context = gpc_current(), .device = -1};
}

struct gpc_route gpc_route_to(struct gpc_session *s)
{
    return (struct gpc_route){.session = s, .context = gpc_current(), .device = -1};
}

struct gpc_route gpc_route_in(CUcontext context)
{
    return (struct gpc_route){.session = gpc_session_of_handle((uint64_t)context),
                              .context = context,
                              .stream = GP_STREAM_LEGACY,
                              .named = CU_STREAM_LEGACY,
                              .device = gpc_context_device(context)};
}

struct gpc_session *gpc_route_session(struct gpc_route *on)
{
    if (!on->session)
        on->session = session_of_context(on->context);
    return on->session;
}

bool gpc_route_take(struct gpc_route *on, struct gpc_session *s)
{
    if (!on->session)
        on->session = s;
    return on->session == s;
}

static bool takes_legacy(struct gpc_route *on)
{
    struct gpc_session *s = session_of_context(on->context);
    return !s || gpc_route_take(on, s);
}

CUresult gpc_route_stream(struct gpc_route *on, CUstream stream, uint64_t *wire)
{
    if (on->stream && on->named == stream) {
        *wire = on->stream;
        return CUDA_SUCCESS;
    }
    on->named = stream;
    on->stream = 0; /* also when this one is none */
    if (stream == NULL)
        stream = gpc_thread()->per_thread_streams ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (stream == CU_STREAM_LEGACY) {
        *wire = on->stream = GP_STREAM_LEGACY;
        return takes_legacy(on) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream == CU_STREAM_PER_THREAD) {
        CUresult r = gpc_thread_stream(on, &stream);
        if (r != CUDA_SUCCESS)
            return r;
    }
    uint64_t id = (uint64_t)stream;
    if (!gpc_handle_live(GP_HANDLE_STREAM, id) || !gpc_route_take(on, gpc_session_of_handle(id)))
        return CUDA_ERROR_INVALID_HANDLE;
    *wire = on->stream = id;
    return CUDA_SUCCESS;
}

CUresult gpc_stream_wire(struct gpc_call *call, CUstream stream, uint64_t *wire)
{
    return gpc_route_stream(&call->route, stream, wire);
}

CUresult gpc_device_wire(struct gpc_call *call, CUdevice device, int32_t *wire)
{
    struct gpc_session *s = gpc_device_find(device, wire);
    return s && gpc_route_take(&call->route, s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult gpc_address_wire(struct gpc_call *call, uint64_t address)
{
    struct gpc_session *s = gpc_session_of_address(address);
    if (call->address_count < GPC_CALL_ADDRESSES)
        call->address[call->address_count] = address;
    call->address_count++;
    return !s || gpc_route_take(&call->route, s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpc_location_wire(struct gpc_call *call, CUmemLocation *location)
{
    int32_t wire;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_SUCCESS;
    CUresult r = gpc_device_wire(call, location->id, &wire);
    if (r == CUDA_SUCCESS)
        location->id = wire;
    return r;
}

CUresult gpc_access_wire(struct gpc_call *call, const CUmemAccessDesc *from, uint64_t count,
                         CUmemAccessDesc *to)
{
    if (!from || count > GP_DEVICES_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (uint64_t i = 0; i < count && r == CUDA_SUCCESS; i++) {
        to[i] = from[i];
        r = gpc_location_wire(call, &to[i].location);
    }
    return r;
}

void gpc_location_back(const struct gpc_call *call, CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && call->route.session)
        location->id = gpc_device_of(call->route.session, (uint32_t)location->id);
}

/* A handle of a session that the call does not go to: as one of another context. */
static CUresult wrong_session(enum gp_handle_kind kind)
{
    return kind == GP_HANDLE_CONTEXT ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

/* What may have replicas is at home without further questions where the call goes anyway. */
static bool is_at_home(const struct gpc_call *call, struct gpc_session *home)
{
    const struct gpc_route *on = &call->route;
    return (on->session ? on->session : session_of_context(on->context)) == home;
}

CUresult gpc_handle_wire(struct gpc_call *call, enum gp_handle_kind kind, uint64_t id,
                         bool nullable, uint64_t *wire)
{
    if (kind == GP_HANDLE_GRAPH_EXEC)
        id = gpc_exec_number(id);
    *wire = id;
    if (id == 0 && nullable)
        return CUDA_SUCCESS;
    if (!gpc_handle_live(kind, id))
        return (CUresult)gp_handle_not_live[kind];
    struct gpc_session *home = gpc_session_of_handle(id);
    if ((kind == GP_HANDLE_FUNCTION || kind == GP_HANDLE_LIBRARY) && !is_at_home(call, home))
        return gpc_replica_wire(call, kind, id, wire);
    return gpc_route_take(&call->route, home) ? CUDA_SUCCESS : wrong_session(kind);
}

uint32_t gpc_call_index(struct gpc_call *call)
{
    const struct gpc_session *s = gpc_route_session(&call->route);
    return s ? s->index : 0;
}
