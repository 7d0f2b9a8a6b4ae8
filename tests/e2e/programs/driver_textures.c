/*
 * Texture and surface objects of every resource, what they say of themselves, and what is refused.
 */
#include "driver.h"

#include <stdbool.h>

#define WIDTH 64
#define HEIGHT 16

static const CUDA_TEXTURE_DESC how = {
    .addressMode = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_BORDER, CU_TR_ADDRESS_MODE_WRAP},
    .filterMode = CU_TR_FILTER_MODE_LINEAR,
    .flags = CU_TRSF_NORMALIZED_COORDINATES,
    .maxAnisotropy = 2,
    .borderColor = {0.25f, 0.5f, 0.75f, 1},
};

static CUarray array_of(unsigned flags)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {WIDTH, HEIGHT, 0, CU_AD_FORMAT_FLOAT, 1, flags};
    CUarray array;
    CU(cuArray3DCreate(&array, &d));
    return array;
}

/* Makes a texture of it, and asks it what it is. */
static CUtexObject made(const CUDA_RESOURCE_DESC *what, const CUDA_RESOURCE_VIEW_DESC *view)
{
    CUDA_RESOURCE_DESC told = {0};
    CUDA_TEXTURE_DESC desc = {0};
    CUDA_RESOURCE_VIEW_DESC seen = {0};
    CUtexObject texture = 0;

    CU(cuTexObjectCreate(&texture, what, &how, view));
    CU(cuTexObjectGetResourceDesc(&told, texture));
    EXPECT(told.resType == what->resType, "type %d instead of %d", (int)told.resType,
           (int)what->resType);
    if (what->resType == CU_RESOURCE_TYPE_ARRAY)
        EXPECT(told.res.array.hArray == what->res.array.hArray, "another array");
    else if (what->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        EXPECT(told.res.mipmap.hMipmappedArray == what->res.mipmap.hMipmappedArray,
               "another mipmapped array");
    else if (what->resType == CU_RESOURCE_TYPE_LINEAR)
        EXPECT(told.res.linear.devPtr == what->res.linear.devPtr &&
                   told.res.linear.sizeInBytes == what->res.linear.sizeInBytes,
               "other memory");
    else
        EXPECT(told.res.pitch2D.devPtr == what->res.pitch2D.devPtr &&
                   told.res.pitch2D.width == what->res.pitch2D.width &&
                   told.res.pitch2D.height == what->res.pitch2D.height &&
                   told.res.pitch2D.pitchInBytes == what->res.pitch2D.pitchInBytes,
               "other rows");
    CU(cuTexObjectGetTextureDesc(&desc, texture));
    for (int i = 0; i < 3; i++)
        EXPECT(desc.addressMode[i] == how.addressMode[i], "type %d: address mode %d is %d, not %d",
               (int)what->resType, i, (int)desc.addressMode[i], (int)how.addressMode[i]);
    EXPECT(desc.filterMode == how.filterMode, "type %d: the filter mode is %d, not %d",
           (int)what->resType, (int)desc.filterMode, (int)how.filterMode);
    EXPECT(desc.flags == how.flags, "type %d: the flags are %#x, not %#x", (int)what->resType,
           desc.flags, how.flags);
    CU(cuTexObjectGetResourceViewDesc(&seen, texture));
    if (view)
        EXPECT(seen.format == view->format && seen.width == view->width &&
                   seen.lastMipmapLevel == view->lastMipmapLevel,
               "another view");
    return texture;
}

static void ended(CUtexObject texture)
{
    CU(cuTexObjectDestroy(texture));
}

static void of_arrays(void)
{
    CUarray array = array_of(0);
    CUmipmappedArray mipmap;
    const CUDA_ARRAY3D_DESCRIPTOR d = {WIDTH, HEIGHT, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CU(cuMipmappedArrayCreate(&mipmap, &d, 3));
    CUDA_RESOURCE_DESC one = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    CUDA_RESOURCE_DESC levels = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
                                 .res.mipmap.hMipmappedArray = mipmap};
    CUDA_RESOURCE_VIEW_DESC view = {.format = CU_RES_VIEW_FORMAT_FLOAT_1X32,
                                    .width = WIDTH,
                                    .height = HEIGHT,
                                    .lastMipmapLevel = 1};
    ended(made(&one, NULL));
    ended(made(&levels, NULL));
    ended(made(&levels, &view));
    view.lastMipmapLevel = 0;
    ended(made(&one, &view));
    CU(cuArrayDestroy(array));
    CU(cuMipmappedArrayDestroy(mipmap));
}

static void of_memory(void)
{
    CUdeviceptr memory;
    CUtexObject texture = 7;
    CU(cuMemAlloc(&memory, 65536));
    CUDA_RESOURCE_DESC line = {.resType = CU_RESOURCE_TYPE_LINEAR,
                               .res.linear = {memory, CU_AD_FORMAT_UNSIGNED_INT8, 4, 65536}};
    CUDA_RESOURCE_DESC rows = {
        .resType = CU_RESOURCE_TYPE_PITCH2D,
        .res.pitch2D = {memory, CU_AD_FORMAT_HALF, 2, WIDTH, HEIGHT, 512},
    };
    ended(made(&line, NULL));
    ended(made(&rows, NULL));

    const CUDA_RESOURCE_VIEW_DESC view = {.format = CU_RES_VIEW_FORMAT_UINT_4X8, .width = 1};
    CU(cuTexObjectCreate(&texture, &line, &how, &view)); /* it has no views: ignored */
    ended(texture);
    texture = 7;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, NULL, &how, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &line, NULL, NULL));
    rows.res.pitch2D.pitchInBytes = 16;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &rows, &how, NULL));
    EXPECT(texture == 7, "a failed creation left a texture");
    CU(cuMemFree(memory));
}

static void surfaces(void)
{
    CUarray array = array_of(CUDA_ARRAY3D_SURFACE_LDST);
    CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array}, told;
    CUsurfObject surface = 7;

    CU(cuSurfObjectCreate(&surface, &what));
    CU(cuSurfObjectGetResourceDesc(&told, surface));
    EXPECT(told.resType == CU_RESOURCE_TYPE_ARRAY && told.res.array.hArray == array,
           "a surface of another array");
    CU(cuSurfObjectDestroy(surface));
    surface = 7;
    what.resType = CU_RESOURCE_TYPE_LINEAR;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &what));
    EXPECT(surface == 7, "a failed creation left a surface");
    CU(cuArrayDestroy(array));
}

int main(void)
{
    driver_start();
    of_arrays();
    of_memory();
    surfaces();
    driver_stop();
    return finish("driver_textures");
}
