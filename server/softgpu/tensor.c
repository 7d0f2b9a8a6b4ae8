/* Tensor maps: tiles and columns of pixels, as ptx_tensor.h has them. */
#include "ptx_tensor.h"
#include "softgpu.h"

#define ADDRESS_ALIGN 16u
#define MAP_ALIGN 64u
#define STRIDE_LIMIT ((uint64_t)1 << 40)
#define SIZE_LIMIT ((uint64_t)1 << 32)

/* What of all maps there is; false: what the documentation forbids. */
static bool shape_set(struct sg_tensor_map *m, uint64_t address, const cuuint64_t *size,
                      const cuuint64_t *stride, const cuuint32_t *step)
{
    m->mark = SG_TENSOR_MARK;
    m->address = address;
    for (unsigned i = 0; i < m->rank; i++) {
        if (!size[i] || size[i] > SIZE_LIMIT || !step[i] || step[i] > SG_TENSOR_STEP)
            return false;
        m->last[i] = (uint32_t)(size[i] - 1);
        m->step[i] = i ? (uint8_t)step[i] : 1;
    }
    for (unsigned i = 0; i + 1 < m->rank; i++) {
        if (stride[i] % ADDRESS_ALIGN || stride[i] >= STRIDE_LIMIT)
            return false;
        m->stride[i] = stride[i];
    }
    return address % ADDRESS_ALIGN == 0;
}

/* What a GPU of compute capability 9.0 has and the soft one lacks is named in docs/limits.md. */
static CUresult kind_set(struct sg_tensor_map *m, CUtensorMapDataType type, cuuint32_t rank,
                         CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                         CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    memset(m, 0, sizeof(*m));
    if (!rank || rank > SG_TENSOR_RANK || (unsigned)type > CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B ||
        (unsigned)interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
        (unsigned)swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B ||
        (unsigned)promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
        (unsigned)fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_tensor_element(type) || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        swizzle > CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    m->rank = (uint8_t)rank;
    m->type = (uint8_t)type;
    m->span = (uint8_t)(1u << swizzle);
    return CUDA_SUCCESS;
}

static CUresult give(CUtensorMap *to, const struct sg_tensor_map *m)
{
    if (!sg_tensor_sound(m))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, m, sizeof(*to));
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void *globalAddress,
                                const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    struct sg_tensor_map m;
    SG_READY();
    if (!tensorMap || (uintptr_t)tensorMap % MAP_ALIGN || !globalDim || !boxDim ||
        !elementStrides || (!globalStrides && tensorRank != 1))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = kind_set(&m, tensorDataType, tensorRank, interleave, swizzle, l2Promotion,
                          oobFill);
    if (r != CUDA_SUCCESS)
        return r;
    if (!shape_set(&m, (uintptr_t)globalAddress, globalDim, globalStrides, elementStrides))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < m.rank; i++) {
        if (boxDim[i] > SG_TENSOR_BOX)
            return CUDA_ERROR_INVALID_VALUE;
        m.box[i] = (uint16_t)boxDim[i];
    }
    return give(tensorMap, &m);
}

/* A corner: as many bits as the rank leaves each of its offsets. */
static bool corner_set(int16_t *to, const int *corner, unsigned rank)
{
    static const int limits[] = {[3] = 32768, [4] = 128, [5] = 16};
    for (unsigned i = 0; i + 2 < rank; i++) {
        if (corner[i] < -limits[rank] || corner[i] >= limits[rank])
            return false;
        to[i] = (int16_t)corner[i];
    }
    return true;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                 cuuint32_t tensorRank, void *globalAddress,
                                 const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                 const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner,
                                 cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                 const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                 CUtensorMapFloatOOBfill oobFill)
{
    struct sg_tensor_map m;
    SG_READY();
    if (!tensorMap || (uintptr_t)tensorMap % MAP_ALIGN || !globalDim || !globalStrides ||
        !pixelBoxLowerCorner || !pixelBoxUpperCorner || !elementStrides || tensorRank < 3)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = kind_set(&m, tensorDataType, tensorRank, interleave, swizzle, l2Promotion,
                          oobFill);
    if (r != CUDA_SUCCESS)
        return r;
    if (!shape_set(&m, (uintptr_t)globalAddress, globalDim, globalStrides, elementStrides) ||
        !corner_set(m.lower, pixelBoxLowerCorner, m.rank) ||
        !corner_set(m.upper, pixelBoxUpperCorner, m.rank) || channelsPerPixel > SG_TENSOR_BOX ||
        pixelsPerColumn > SG_TENSOR_PIXELS)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i + 2 < m.rank; i++) /* the box has pixels */
        if ((int64_t)m.lower[i] >= (int64_t)m.last[i + 1] + 1 + m.upper[i])
            return CUDA_ERROR_INVALID_VALUE;
    m.columns = true;
    m.box[0] = (uint16_t)channelsPerPixel;
    m.box[1] = (uint16_t)pixelsPerColumn;
    return give(tensorMap, &m);
}

/* Copies by maps of wide columns are for GPUs of compute capability 10.0 on. */
CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
    int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill)
{
    (void)tensorDataType, (void)globalAddress, (void)pixelBoxLowerCornerWidth;
    (void)pixelBoxUpperCornerWidth, (void)channelsPerPixel, (void)pixelsPerColumn;
    (void)interleave, (void)mode, (void)swizzle, (void)l2Promotion, (void)oobFill;
    SG_READY();
    if (!tensorMap || !globalDim || !globalStrides || !elementStrides || tensorRank < 3 ||
        tensorRank > 4)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress)
{
    struct sg_tensor_map m;
    SG_READY();
    if (!tensorMap || (uintptr_t)tensorMap % MAP_ALIGN || (uintptr_t)globalAddress % ADDRESS_ALIGN)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&m, tensorMap, sizeof(m));
    m.address = (uintptr_t)globalAddress;
    return give(tensorMap, &m);
}
