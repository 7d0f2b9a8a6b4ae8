/* Texture references of old programs: what is set is told again, where a driver has them. */
#include "driver.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void filters(CUtexref t)
{
    CUaddress_mode mode;
    CUfilter_mode filter;
    CUarray_format format;
    int channels, anisotropy;
    float bias, low, high, border[4], colour[4] = {0.25f, 0.5f, 0.75f, 1};
    unsigned flags;
    CU(cuTexRefSetFormat(t, CU_AD_FORMAT_UNSIGNED_INT16, 2));
    CU(cuTexRefGetFormat(&format, &channels, t));
    EXPECT(format == CU_AD_FORMAT_UNSIGNED_INT16 && channels == 2, "the format is %d x %d",
           (int)format, channels);
    CU(cuTexRefSetAddressMode(t, 1, CU_TR_ADDRESS_MODE_CLAMP));
    CU(cuTexRefGetAddressMode(&mode, t, 1));
    EXPECT(mode == CU_TR_ADDRESS_MODE_CLAMP, "the address mode is %d", (int)mode);
    CU(cuTexRefSetFilterMode(t, CU_TR_FILTER_MODE_LINEAR));
    CU(cuTexRefGetFilterMode(&filter, t));
    EXPECT(filter == CU_TR_FILTER_MODE_LINEAR, "the filter mode is %d", (int)filter);
    CU(cuTexRefSetMipmapFilterMode(t, CU_TR_FILTER_MODE_LINEAR));
    CU(cuTexRefGetMipmapFilterMode(&filter, t));
    EXPECT(filter == CU_TR_FILTER_MODE_LINEAR, "the filter of levels is %d", (int)filter);
    CU(cuTexRefSetMipmapLevelBias(t, 0.5f));
    CU(cuTexRefGetMipmapLevelBias(&bias, t));
    CU(cuTexRefSetMipmapLevelClamp(t, 1, 3));
    CU(cuTexRefGetMipmapLevelClamp(&low, &high, t));
    EXPECT(bias == 0.5f && low == 1 && high == 3, "levels: %g, %g to %g", bias, low, high);
    CU(cuTexRefSetMaxAnisotropy(t, 4));
    CU(cuTexRefGetMaxAnisotropy(&anisotropy, t));
    EXPECT(anisotropy == 4, "the anisotropy is %d", anisotropy);
    CU(cuTexRefSetBorderColor(t, colour));
    CU(cuTexRefGetBorderColor(border, t));
    EXPECT(memcmp(border, colour, sizeof border) == 0, "the border is %g %g %g %g", border[0],
           border[1], border[2], border[3]);
    CU(cuTexRefSetFlags(t, CU_TRSF_READ_AS_INTEGER));
    CU(cuTexRefGetFlags(&flags, t));
    EXPECT(flags == CU_TRSF_READ_AS_INTEGER, "the flags are %u", flags);
}

static void what_it_reads(CUtexref t)
{
    CUarray array, got = NULL;
    CUDA_ARRAY_DESCRIPTOR plane = {
        .Width = 64, .Height = 32, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUdeviceptr memory, at = 0;
    size_t offset;
    CU(cuArrayCreate(&array, &plane));
    CU(cuTexRefSetArray(t, array, CU_TRSA_OVERRIDE_FORMAT));
    CU(cuTexRefGetArray(&got, t));
    EXPECT(got == array, "it reads another array than it was given");
    CU(cuArrayDestroy(array));
    CU(cuMemAlloc(&memory, 65536));
    CU(cuTexRefSetAddress(&offset, t, memory, 65536));
    CU(cuTexRefGetAddress(&at, t));
    EXPECT(at == memory, "it reads another address than it was given");
    CU(cuTexRefSetAddress2D(t, &plane, memory, 512));
    CU(cuMemFree(memory));
}

/* Nothing is a reference where there is none. */
static void without(void)
{
    CUmipmappedArray levels;
    CUarray array;
    CUtexref t = NULL;
    CUsurfref s = NULL;
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuTexRefSetFlags(t, 0));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuTexRefSetMipmappedArray(t, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuTexRefGetMipmappedArray(&levels, t));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuTexRefDestroy(t));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuSurfRefSetArray(s, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuSurfRefGetArray(&array, s));
}

int main(void)
{
    CUmodule module;
    CUtexref t = NULL;
    CUsurfref s = NULL;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    CUfunction f = driver_function(module, "add");
    CUresult r = cuTexRefCreate(&t);
    EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_SUPPORTED, "cuTexRefCreate gave %s",
           driver_name(r));
    EXPECT(cuModuleGetTexRef(&t, module, "no_such_texture") != CUDA_SUCCESS, "a texture is found");
    EXPECT(cuModuleGetSurfRef(&s, module, "no_such_surface") != CUDA_SUCCESS, "a surface is found");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetTexRef(f, 0, t));
    if (r == CUDA_SUCCESS) {
        filters(t);
        what_it_reads(t);
        CU(cuParamSetTexRef(f, CU_PARAM_TR_DEFAULT, t));
        CU(cuTexRefDestroy(t));
    }
    without();
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_texture_references");
}
