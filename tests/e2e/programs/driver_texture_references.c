/*
 * Texture and surface references of old programs: what is set is told again, and kernels read and
 * write what they are bound to, where a driver has them.
 */
#include "driver.h"

#include <stdint.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* As compilers of CUDA 11 and before wrote them: out[i] = image[i], four bytes each; and a row of
 * a surface. */
static const char source[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".global .texref image;\n.global .texref line;\n.global .surfref drawn;\n"
    ".global .u32 plain;\n"
    ".visible .entry read(.param .u64 to, .param .u32 rows)\n{\n"
    ".reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<8>;\n"
    "mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y;\n"
    "ld.param.u64 %d0, [to]; cvta.to.global.u64 %d0, %d0;\n"
    "mad.lo.u32 %r2, %r1, 8, %r0; mul.wide.u32 %d1, %r2, 4; add.u64 %d0, %d0, %d1;\n"
    "tex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [image, {%r0, %r1}];\n"
    "st.global.f32 [%d0], %f0;\nret;\n}\n"
    ".visible .entry fetch(.param .u64 to, .param .u32 rows)\n{\n"
    ".reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<8>;\n"
    "mov.u32 %r0, %tid.x; ld.param.u64 %d0, [to]; cvta.to.global.u64 %d0, %d0;\n"
    "mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;\n"
    "tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [line, {%r0}];\n"
    "st.global.f32 [%d0], %f0;\nret;\n}\n"
    ".visible .entry draw(.param .u64 to, .param .u32 rows)\n{\n"
    ".reg .b32 %r<4>;\n"
    "mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, %tid.y;\n"
    "mad.lo.u32 %r3, %r2, 8, %r0; cvt.rn.f32.u32 %r3, %r3;\n"
    "sust.b.2d.b32.trap [drawn, {%r1, %r2}], {%r3};\nret;\n}\n";

enum { WIDTH = 8, HEIGHT = 4, COUNT = WIDTH * HEIGHT };

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
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFlags(t, 1u << 30));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddressMode(t, 3, CU_TR_ADDRESS_MODE_CLAMP));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFormat(t, CU_AD_FORMAT_FLOAT, 3));
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

/* --- in kernels ------------------------------------------------------------------------------ */

static void run(CUmodule module, const char *kernel, CUdeviceptr to)
{
    unsigned rows = HEIGHT;
    void *parameters[] = {&to, &rows};
    CU(cuLaunchKernel(driver_function(module, kernel), 1, 1, 1, WIDTH, HEIGHT, 1, 0, NULL,
                      parameters, NULL));
}

static void expect(const char *what, CUdeviceptr out, float first, float step, unsigned count)
{
    float got[COUNT];
    CU(cuMemcpyDtoH(got, out, sizeof got));
    for (unsigned i = 0; i < count; i++)
        if (got[i] != first + step * (float)i) {
            EXPECT(false, "%s: value %u is %g", what, i, got[i]);
            return;
        }
}

static CUarray plane_of(float first, float step)
{
    const CUDA_ARRAY3D_DESCRIPTOR plane = {.Width = WIDTH,
                                           .Height = HEIGHT,
                                           .Format = CU_AD_FORMAT_FLOAT,
                                           .NumChannels = 1,
                                           .Flags = CUDA_ARRAY3D_SURFACE_LDST};
    float values[COUNT];
    CUarray array;
    CU(cuArray3DCreate(&array, &plane));
    for (unsigned i = 0; i < COUNT; i++)
        values[i] = first + step * (float)i;
    const CUDA_MEMCPY2D p = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                             .srcHost = values,
                             .srcPitch = WIDTH * sizeof *values,
                             .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                             .dstArray = array,
                             .WidthInBytes = WIDTH * sizeof *values,
                             .Height = HEIGHT};
    CU(cuMemcpy2D(&p));
    return array;
}

/* Each launch reads what was bound when it was made. */
static void read_in_turn(CUmodule module, CUdeviceptr out)
{
    CUtexref image, again;
    CUarray first = plane_of(100, 1), second = plane_of(500, 2);
    CU(cuModuleGetTexRef(&image, module, "image"));
    CU(cuModuleGetTexRef(&again, module, "image"));
    CU(cuTexRefSetArray(image, first, CU_TRSA_OVERRIDE_FORMAT));
    run(module, "read", out);
    CU(cuTexRefSetArray(again, second, CU_TRSA_OVERRIDE_FORMAT));
    run(module, "read", out + COUNT * sizeof(float));
    CU(cuCtxSynchronize());
    expect("the first array", out, 100, 1, COUNT);
    expect("the second array", out + COUNT * sizeof(float), 500, 2, COUNT);
    CU(cuTexRefSetArray(image, first, 0)); /* the flag is always meant */
    CU(cuArrayDestroy(first));
    CU(cuArrayDestroy(second));
}

static void of_memory(CUmodule module, CUdeviceptr out)
{
    CUtexref line;
    CUdeviceptr memory;
    size_t offset = 1;
    CU(cuModuleGetTexRef(&line, module, "line"));
    CU(cuMemAlloc(&memory, COUNT * sizeof(float)));
    CU(cuMemsetD32(memory, 0x3f800000, COUNT));
    CU(cuTexRefSetFormat(line, CU_AD_FORMAT_FLOAT, 1));
    CU(cuTexRefSetAddress(&offset, line, memory, COUNT * sizeof(float)));
    EXPECT(offset == 0, "aligned memory has the offset %zu", offset);
    run(module, "fetch", out);
    expect("a line of memory", out, 1, 0, WIDTH);
    CU(cuMemFree(memory));
}

static void drawn_by_a_kernel(CUmodule module, CUdeviceptr out)
{
    CUsurfref drawn;
    CUtexref image;
    CUarray plane = plane_of(0, 0), got = NULL;
    CU(cuModuleGetSurfRef(&drawn, module, "drawn"));
    CU(cuModuleGetTexRef(&image, module, "image"));
    CU(cuSurfRefSetArray(drawn, plane, 0));
    CU(cuSurfRefGetArray(&got, drawn));
    EXPECT(got == plane, "the surface is another array");
    run(module, "draw", out);
    CU(cuTexRefSetArray(image, plane, CU_TRSA_OVERRIDE_FORMAT));
    run(module, "read", out);
    expect("what a kernel has drawn", out, 0, 1, COUNT);
    CU(cuArrayDestroy(plane));
}

/* A reference is a variable of a module, and has no value of its own. */
static void refused(void)
{
    static const char *const wrong[] = {".shared .texref t;", ".const .texref t;",
                                        ".global .v2 .texref t;", ".global .texref t = {1};",
                                        ".global .surfref t = 7;"};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[128];
        CUmodule module;
        snprintf(text, sizeof text, ".version 6.0\n.target sm_50\n.address_size 64\n%s\n",
                 wrong[i]);
        CUresult r = cuModuleLoadData(&module, text);
        EXPECT(r == CUDA_ERROR_INVALID_PTX || (driver_is_native() && r != CUDA_SUCCESS),
               "'%s' gave %s", wrong[i], driver_name(r));
    }
}

/* A real driver may have none: then it says so when the module is loaded. */
static void in_kernels(void)
{
    CUmodule module;
    CUdeviceptr out, plain;
    CUtexref t;
    CUsurfref s;
    CUresult r = cuModuleLoadData(&module, source);
    SAY("a module with references: %s", driver_name(r));
    if (driver_is_native() && r != CUDA_SUCCESS)
        return;
    REQUIRE(r == CUDA_SUCCESS, "the module is refused: %s", driver_name(r));
    CU(cuMemAlloc(&out, 2 * COUNT * sizeof(float)));
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&t, module, "plain"));
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&t, module, "drawn"));
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetSurfRef(&s, module, "image"));
    CU(cuModuleGetGlobal(&plain, NULL, module, "plain"));
    read_in_turn(module, out);
    of_memory(module, out);
    drawn_by_a_kernel(module, out);
    CU(cuMemFree(out));
    CU(cuModuleUnload(module));
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
    in_kernels();
    refused();
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_texture_references");
}
