/* Tensor maps: 128 opaque bytes that the GPU host's driver makes of their arguments. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "session.h"

GPC_EXPORT CUresult cuTensorMapEncodeTiled(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
    const cuuint32_t *boxDim, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    static const cuuint64_t none[1];
    CUresult r = gpc_enter(GP_OP_cuTensorMapEncodeTiled, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (tensorRank == 0 || tensorRank > 5)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_wire_cuTensorMapEncodeTiled(
        tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
        tensorRank == 1 && !globalStrides ? none : globalStrides, boxDim, elementStrides,
        interleave, swizzle, l2Promotion, oobFill));
}
