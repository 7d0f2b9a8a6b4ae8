/* What GPUs know of each other: within a host as the driver says, over hosts nothing. */
#include "peer.h"

#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "session.h"

/* Whether two devices are of two hosts; the error if one is no device. */
static CUresult on_two_hosts(uint16_t op, CUdevice one, CUdevice other, bool *two)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    const struct gpc_session *a = gpc_session_of_device(one), *b = gpc_session_of_device(other);
    *two = a != b;
    return a && b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

GPC_EXPORT CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    bool two;
    CUresult r = on_two_hosts(GP_OP_cuDeviceCanAccessPeer, dev, peerDev, &two);
    if (r != CUDA_SUCCESS)
        return r;
    if (!canAccessPeer)
        return CUDA_ERROR_INVALID_VALUE;
    if (!two)
        return gpc_leave(gpc_wire_cuDeviceCanAccessPeer(canAccessPeer, dev, peerDev));
    *canAccessPeer = 0;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib,
                                            CUdevice srcDevice, CUdevice dstDevice)
{
    bool two;
    CUresult r = on_two_hosts(GP_OP_cuDeviceGetP2PAttribute, srcDevice, dstDevice, &two);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!two)
        return gpc_leave(gpc_wire_cuDeviceGetP2PAttribute(value, attrib, srcDevice, dstDevice));
    if (attrib < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attrib > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}

/* --- atomic operations over a link: since CUDA 13 ------------------------------------- */

static CUresult operations_right(const unsigned *capabilities, const CUatomicOperation *operations,
                                 unsigned count)
{
    if (!capabilities || !operations || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if ((unsigned)operations[i] >= CU_ATOMIC_OPERATION_MAX)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* A link that is a network has none. */
static CUresult no_capabilities(unsigned *capabilities, unsigned count)
{
    memset(capabilities, 0, count * sizeof *capabilities);
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *capabilities,
                                                     const CUatomicOperation *operations,
                                                     unsigned int count, CUdevice srcDevice,
                                                     CUdevice dstDevice)
{
    bool two;
    CUresult r = on_two_hosts(GP_OP_cuDeviceGetP2PAtomicCapabilities, srcDevice, dstDevice, &two);
    if (r == CUDA_SUCCESS)
        r = srcDevice == dstDevice ? CUDA_ERROR_INVALID_DEVICE
                                   : operations_right(capabilities, operations, count);
    if (r != CUDA_SUCCESS)
        return r;
    return two ? no_capabilities(capabilities, count)
               : gpc_leave(gpc_wire_cuDeviceGetP2PAtomicCapabilities(capabilities, operations,
                                                                     count, srcDevice, dstDevice));
}

GPC_EXPORT CUresult cuDeviceGetHostAtomicCapabilities(unsigned int *capabilities,
                                                      const CUatomicOperation *operations,
                                                      unsigned int count, CUdevice dev)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceGetHostAtomicCapabilities, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    const struct gpc_session *s = gpc_session_of_device(dev);
    r = s ? operations_right(capabilities, operations, count) : CUDA_ERROR_INVALID_DEVICE;
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_session_shares(s) ? gpc_leave(gpc_wire_cuDeviceGetHostAtomicCapabilities(
                                       capabilities, operations, count, dev))
                                 : no_capabilities(capabilities, count);
}

/* The peer's context is an argument, the call is the current context's. */
static CUresult enter_peer(uint16_t op, CUcontext peer, bool *two)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    *two = gpc_session_of_handle((uint64_t)peer) != gpc_session();
    return gpc_handle_live(GP_HANDLE_CONTEXT, (uint64_t)peer) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_CONTEXT;
}

GPC_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    bool two;
    CUresult r = enter_peer(GP_OP_cuCtxEnablePeerAccess, peerContext, &two);
    if (r != CUDA_SUCCESS)
        return r;
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return two ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
               : gpc_leave(gpc_wire_cuCtxEnablePeerAccess(peerContext, Flags));
}

GPC_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    bool two;
    CUresult r = enter_peer(GP_OP_cuCtxDisablePeerAccess, peerContext, &two);
    if (r != CUDA_SUCCESS)
        return r;
    return two ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
               : gpc_leave(gpc_wire_cuCtxDisablePeerAccess(peerContext));
}
