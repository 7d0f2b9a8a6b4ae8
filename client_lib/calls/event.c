/* Events: made and recorded without waiting; the rest is generated. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"

GPC_EXPORT CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    CUresult r = gpc_enter(GP_OP_cuEventCreate, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!phEvent || (Flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    if ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_wire_cuEventCreate(phEvent, Flags));
}

static CUresult destroy(uint16_t op, CUevent hEvent)
{
    CUresult r = gpc_enter_event(op, hEvent);
    return gpc_leave(r ? r : gpc_wire_cuEventDestroy_v2(hEvent));
}

GPC_EXPORT CUresult cuEventDestroy_v2(CUevent hEvent)
{
    return destroy(GP_OP_cuEventDestroy_v2, hEvent);
}

GPC_EXPORT CUresult cuEventDestroy(CUevent hEvent)
{
    return destroy(GP_OP_cuEventDestroy, hEvent);
}

GPC_EXPORT CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    GPC_PLACE;
    CUresult r = gpc_enter_stream(&place, GP_OP_cuEventRecordWithFlags, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_wire_cuEventRecordWithFlags(hEvent, hStream, flags));
}
