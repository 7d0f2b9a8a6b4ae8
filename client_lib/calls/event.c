/* Events that other processes have: what is submitted of them is waited for. */
#include "gpc_wire.h"
#include "handle.h"
#include "session.h"
#include "shared.h"

/* The shadow of such an event. */
static char others_have_it;

CUresult gpc_event_submitted(CUevent event, unsigned flags)
{
    const uint64_t id = (uint64_t)event;
    int version;
    if (flags & CU_EVENT_INTERPROCESS)
        gpc_handle_attach(id, &others_have_it);
    if (gpc_handle_shadow(GP_HANDLE_EVENT, id) != &others_have_it)
        return CUDA_SUCCESS;
    const struct gpc_route on = gpc_route_to(gpc_session_of_handle(id));
    return gpc_wire_gp_ipc_settle_on(&on, &version);
}
