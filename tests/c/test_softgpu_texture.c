/* Textures and surfaces that kernels may not touch, and what little no C++ function asks for. */
#include <stdint.h>

#include "softgpu_check.h"

#define WIDTH 8u
#define HEIGHT 4u

/* Each kernel takes an object and a place for one word. */
#define KERNEL(name, body)                                                                         \
    ".visible .entry " name "(.param .u64 object, .param .u64 to)\n"                               \
    "{\n  .reg .b32 %r<8>; .reg .b64 %x<4>;\n"                                                     \
    "  ld.param.u64 %x0, [object];\n  ld.param.u64 %x1, [to];\n" body                              \
    "  st.global.b32 [%x1], %r0;\n  ret;\n}\n"

static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n" KERNEL(
    "width", "  txq.width.b32 %r0, [%x0];\n") KERNEL("height", "  txq.height.b32 %r0, [%x0];\n")
    KERNEL("depth", "  txq.depth.b32 %r0, [%x0];\n") KERNEL("layers",
                                                            "  txq.array_size.b32 %r0, [%x0];\n")
        KERNEL("levels", "  txq.num_mipmap_levels.b32 %r0, [%x0];\n") KERNEL(
            "surface_height", "  suq.height.b32 %r0, [%x0];\n")
            KERNEL("fetch", "  tex.2d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%x0, {1, 2}];\n") KERNEL(
                "fetch_layer", "  tex.a2d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%x0, {0, 1, 2, 2}];\n")
                KERNEL("add", "  sured.b.add.2d.u32.trap [%x0, {4, 2}], 5;\n"
                              "  sured.b.max.2d.s32.zero [%x0, {-4, 2}], 7;\n"
                              "  suld.b.2d.b32.trap {%r0}, [%x0, {4, 2}];\n")
                    KERNEL("outside", "  suld.b.2d.b32.trap {%r0}, [%x0, {4, 4}];\n")
                        KERNEL("before", "  sust.b.2d.b32.trap [%x0, {-4, 0}], {%r0};\n") KERNEL(
                            "wide",
                            "  suld.b.2d.v4.b32.trap {%r0, %r1, %r2, %r3}, [%x0, {24, 0}];\n")
                            KERNEL("between", "  suld.b.2d.b32.trap {%r0}, [%x0, {2, 0}];\n");

static CUmodule module;
static CUdeviceptr word;

static void load(void)
{
    OK(cuModuleLoadData(&module, ptx));
    OK(cuMemAlloc(&word, 4));
}

/* The word that the kernel leaves, or the error that it ends in. */
static CUresult run(const char *name, uint64_t object, uint32_t *got)
{
    CUfunction function;
    void *parameters[] = {&object, &word};
    OK(cuModuleGetFunction(&function, module, name));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    return cuMemcpyDtoH(got, word, 4);
}

static uint32_t asked(const char *name, uint64_t object)
{
    uint32_t got = 0xdead;
    OK(run(name, object, &got));
    return got;
}

/* A kernel that fails ends CUDA in its process, so each has one: whose turn it is, and how many have
 * been passed. */
static unsigned turn, passed;

static void fails(const char *name, uint64_t object, CUresult expected)
{
    uint32_t got;
    if (passed++ != turn)
        return;
    EXPECT(expected, run(name, object, &got));
    exit(0);
}

static CUarray array_of(size_t depth, unsigned flags)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {
        WIDTH, HEIGHT, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags | CUDA_ARRAY3D_SURFACE_LDST};
    uint32_t values[WIDTH * HEIGHT];
    CUarray array;
    OK(cuArray3DCreate(&array, &d));
    for (uint32_t i = 0; i < WIDTH * HEIGHT; i++)
        values[i] = 100 + i;
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = values,
                                .srcPitch = WIDTH * 4,
                                .srcHeight = HEIGHT,
                                .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                .dstArray = array,
                                .WidthInBytes = WIDTH * 4,
                                .Height = HEIGHT,
                                .Depth = 1};
    OK(cuMemcpy3D(&copy));
    return array;
}

static CUtexObject texture_of(CUarray array)
{
    const CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    const CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};
    CUtexObject texture;
    OK(cuTexObjectCreate(&texture, &what, &how, NULL));
    return texture;
}

static CUsurfObject surface_of(CUarray array)
{
    const CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    CUsurfObject surface;
    OK(cuSurfObjectCreate(&surface, &what));
    return surface;
}

static void questions(void)
{
    CUtexObject flat = texture_of(array_of(0, 0)), volume = texture_of(array_of(3, 0));
    CUtexObject layered = texture_of(array_of(5, CUDA_ARRAY3D_LAYERED));
    CHECK(asked("width", flat) == WIDTH && asked("height", flat) == HEIGHT);
    CHECK(asked("depth", volume) == 3 && asked("layers", volume) == 0);
    CHECK(asked("depth", layered) == 0 && asked("layers", layered) == 5);
    CHECK(asked("levels", flat) == 1);
    CHECK(asked("fetch", flat) == 100 + 2 * WIDTH + 1);
    CHECK(asked("fetch_layer", layered) == 100 + 2 * WIDTH + 1);
}

static void surfaces(void)
{
    CUsurfObject surface = surface_of(array_of(0, 0));
    CHECK(asked("surface_height", surface) == HEIGHT);
    CHECK(asked("add", surface) == 100 + 2 * WIDTH + 1 + 5);
    fails("outside", surface, CUDA_ERROR_LAUNCH_FAILED);
    fails("before", surface_of(array_of(0, 0)), CUDA_ERROR_LAUNCH_FAILED);
    fails("wide", surface_of(array_of(0, 0)), CUDA_ERROR_LAUNCH_FAILED);
    fails("between", surface_of(array_of(0, 0)), CUDA_ERROR_MISALIGNED_ADDRESS);
}

static void strangers(void)
{
    fails("fetch", 12345, CUDA_ERROR_ILLEGAL_ADDRESS);
    fails("add", texture_of(array_of(0, 0)), CUDA_ERROR_ILLEGAL_ADDRESS); /* no surface */
    fails("fetch_layer", texture_of(array_of(0, 0)), CUDA_ERROR_ILLEGAL_INSTRUCTION);
    CUtexObject ended = texture_of(array_of(0, 0));
    OK(cuTexObjectDestroy(ended));
    fails("fetch", ended, CUDA_ERROR_ILLEGAL_ADDRESS);
    CUarray array = array_of(0, 0);
    CUtexObject of_ended = texture_of(array);
    OK(cuArrayDestroy(array));
    fails("fetch", of_ended, CUDA_ERROR_ILLEGAL_ADDRESS);
}

#define ALL_PASSED 77

static void all(void)
{
    softgpu_begin();
    load();
    questions();
    surfaces();
    strangers();
    exit(ALL_PASSED);
}

int main(void)
{
    int status = 0;
    for (turn = 0; status == 0; turn++)
        status = softgpu_apart(all);
    CHECK(turn > 9); /* the last one has no kernel that fails */
    return status == ALL_PASSED ? 0 : 1;
}
