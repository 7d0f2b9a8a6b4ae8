/* Definitions of several parts, and of one that is said twice: needs the PTX engine. */
#include "softgpu_check.h"

#define HEAD ".version 7.5\n.target sm_75\n.address_size 64\n"

/* What a template comes to in each file that uses it, a variable of that file alone, as the texts of
 * printf are, and a kernel of it. */
#define PART(kernel, own)                                                                          \
    HEAD ".weak .global .align 4 .u32 common = 5;\n"                                               \
         ".global .align 4 .u32 $own = " own ";\n"                                                 \
         ".weak .func (.param .b32 r) doubled(.param .b32 a)\n{\n"                                 \
         "  .reg .b32 %r<3>;\n  { .reg .b32 %q; }\n  ld.param.b32 %r1, [a];\n"                     \
         "  add.u32 %r2, %r1, %r1;\n  st.param.b32 [r], %r2;\n  ret;\n}\n"                         \
         ".visible .entry " kernel "(.param .u64 out)\n{\n"                                        \
         "  .reg .b32 %r<4>;\n  .reg .b64 %d<2>;\n  ld.param.u64 %d1, [out];\n"                    \
         "  ld.global.u32 %r1, [common];\n  add.u32 %r1, %r1, 1;\n"                                \
         "  st.global.u32 [common], %r1;\n  {\n  .param .b32 p;\n  .param .b32 q;\n"               \
         "  st.param.b32 [p], %r1;\n  call (q), doubled, (p);\n  ld.param.b32 %r2, [q];\n  }\n"    \
         "  ld.global.u32 %r3, [$own];\n  add.u32 %r2, %r2, %r3;\n"                                \
         "  st.global.u32 [%d1], %r2;\n  ret;\n}\n"

static unsigned run_part(CUmodule module, const char *kernel, CUdeviceptr out)
{
    CUfunction function;
    unsigned value = 0;
    void *parameters[] = {&out};
    OK(cuModuleGetFunction(&function, module, kernel));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuMemcpyDtoH(&value, out, sizeof(value)));
    return value;
}

/* Of two parts. */
static CUmodule linked(char *one, char *two)
{
    char *parts[] = {one, two};
    CUlinkState state;
    CUmodule module;
    void *image;
    size_t size;
    OK(cuLinkCreate(0, NULL, NULL, &state));
    for (int i = 0; i < 2; i++)
        OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, parts[i], strlen(parts[i]) + 1, "part", 0, NULL,
                         NULL));
    OK(cuLinkComplete(state, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(state));
    return module;
}

/* Both parts use the one function, and the one variable that is weak. */
static void linking_weak(void)
{
    static char parts[][1024] = {PART("one", "100"), PART("two", "200")};
    CUlinkState state;
    CUdeviceptr out;
    void *image;
    size_t size;
    OK(cuMemAlloc(&out, 4));
    CUmodule module = linked(parts[0], parts[1]);
    CHECK(run_part(module, "one", out) == 112);
    CHECK(run_part(module, "two", out) == 214);
    OK(cuModuleUnload(module));
    OK(cuMemFree(out));
    OK(cuLinkCreate(0, NULL, NULL, &state));
    for (int i = 0; i < 2; i++) /* its kernel is not weak */
        OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, parts[0], strlen(parts[0]) + 1, "part", 0, NULL,
                         NULL));
    EXPECT(CUDA_ERROR_INVALID_PTX, cuLinkComplete(state, &image, &size));
    OK(cuLinkDestroy(state));
}

/* A caller takes a result of a function that has none: Numba declares it so. */
static void linking_results(void)
{
    static char parts[2][512] = {
        HEAD ".extern .func (.param .b32 r) stores(.param .b64 at);\n"
             ".visible .entry calls(.param .u64 out)\n{\n  .reg .b64 %d<2>;\n  .reg .b32 %r<2>;\n"
             "  ld.param.u64 %d1, [out];\n  {\n  .param .b64 p;\n  .param .b32 q;\n"
             "  st.param.b64 [p], %d1;\n  call (q), stores, (p);\n  ld.param.b32 %r1, [q];\n  }\n"
             "  ret;\n}\n",
        HEAD ".visible .func stores(.param .b64 at)\n{\n  .reg .b64 %d<2>;\n"
             "  ld.param.b64 %d1, [at];\n  st.global.b32 [%d1], 9;\n  ret;\n}\n"};
    CUdeviceptr out;
    OK(cuMemAlloc(&out, 4));
    CUmodule module = linked(parts[0], parts[1]);
    CHECK(run_part(module, "calls", out) == 9);
    OK(cuModuleUnload(module));
    OK(cuMemFree(out));
}

/* What is said of a kernel before or behind its definition changes nothing of it. */
static void declared_again(void)
{
    static const char *const more[] = {
        ".extern .entry one(.param .u64 out);\n",
        ".weak .entry one(.param .u64 out)\n.maxntid 1, 1, 1\n{\n  ret;\n}\n",
        ".extern .entry none(.param .u64 out);\n.visible .entry none\n{\n  ret;\n}\n"};
    char text[2048];
    CUmodule module;
    CUfunction function;
    CUdeviceptr out;
    int threads;
    OK(cuMemAlloc(&out, 4));
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof(text), "%s%s", PART("one", "100"), more[i]);
        OK(cuModuleLoadData(&module, text));
        CHECK(run_part(module, "one", out) == 112);
        OK(cuModuleGetFunction(&function, module, "one"));
        OK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
        CHECK(threads > 1);
        if (i == 2)
            run_part(module, "none", out);
        OK(cuModuleUnload(module));
    }
    OK(cuMemFree(out));
}

/* A client must have the address free, too: among what it has loaded, it was not always. */
static void managed_far_from_all(void)
{
    static const char text[] = HEAD
        ".visible .global .attribute(.managed) .align 4 .u32 shared = 7;\n";
    CUmodule module;
    CUdeviceptr at;
    size_t bytes;
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetGlobal(&at, &bytes, module, "shared"));
    CHECK(bytes == 4 && *(volatile unsigned *)(uintptr_t)at == 7);
    CHECK(at >> 46 == 1 && at >> 40 == 64);
    OK(cuModuleUnload(module));
}

/* A kernel of another part, which a library might have: libcudadevrt is named, and nothing taken. */
static void linking_missing(void)
{
    static char part[] = HEAD ".extern .entry other(.param .u64 out);\n"
                              ".visible .entry names(.param .u64 out)\n{\n  .reg .b64 %d<3>;\n"
                              "  ld.param.u64 %d1, [out];\n  mov.u64 %d2, other;\n"
                              "  st.global.u64 [%d1], %d2;\n  ret;\n}\n";
    static char other[] = HEAD ".visible .entry other(.param .u64 out)\n{\n  ret;\n}\n";
    static char library[] = "!<arch>\nand what is in it";
    CUlinkState state;
    CUmodule module;
    void *image;
    size_t size;
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, part));
    for (int whole = 0; whole < 2; whole++) {
        OK(cuLinkCreate(0, NULL, NULL, &state));
        OK(cuLinkAddData(state, CU_JIT_INPUT_LIBRARY, library, sizeof(library), "libcudadevrt.a", 0,
                         NULL, NULL));
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuLinkAddData(state, CU_JIT_INPUT_LIBRARY, part,
                                                       sizeof(part), "no library", 0, NULL, NULL));
        OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, part, sizeof(part), "part", 0, NULL, NULL));
        if (whole)
            OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, other, sizeof(other), "other", 0, NULL,
                             NULL));
        EXPECT(whole ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, cuLinkComplete(state, &image, &size));
        if (whole) {
            OK(cuModuleLoadData(&module, image));
            OK(cuModuleUnload(module));
        }
        OK(cuLinkDestroy(state));
    }
}

/* Each block writes, waits for the grid, and reads what the block behind it has written. */
static void grid_of_library(void)
{
    static char text[] = HEAD
        ".extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 scope);\n"
        ".extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 flags);\n"
        ".visible .entry ring(.param .u64 out)\n{\n"
        "  .reg .b32 %r<8>;\n  .reg .b64 %d<4>;\n  ld.param.u64 %d1, [out];\n"
        "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %nctaid.x;\n  add.u32 %r3, %r1, 1;\n"
        "  mad.wide.u32 %d2, %r1, 4, %d1;\n  st.global.u32 [%d2], %r3;\n"
        "  {\n  .param .b32 scope;\n  .param .b64 handle;\n  st.param.b32 [scope], 1;\n"
        "  call (handle), cudaCGGetIntrinsicHandle, (scope);\n  ld.param.b64 %d3, [handle];\n  }\n"
        "  {\n  .param .b64 h;\n  .param .b32 flags;\n  .param .b32 status;\n"
        "  st.param.b64 [h], %d3;\n  st.param.b32 [flags], 0;\n"
        "  call (status), cudaCGSynchronize, (h, flags);\n  ld.param.b32 %r4, [status];\n  }\n"
        "  rem.u32 %r5, %r3, %r2;\n  mad.wide.u32 %d3, %r5, 4, %d1;\n"
        "  ld.volatile.global.u32 %r6, [%d3];\n  mad.lo.u32 %r6, %r4, 1000, %r6;\n"
        "  st.global.u32 [%d2+32], %r6;\n  ret;\n}\n";
    unsigned said[16];
    CUlinkState state;
    CUmodule module;
    CUfunction function;
    CUdeviceptr out;
    void *image, *parameters[] = {&out};
    size_t size;
    OK(cuMemAlloc(&out, sizeof(said)));
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, text)); /* nobody linked it */
    OK(cuLinkCreate(0, NULL, NULL, &state));
    OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, text, sizeof(text), "ring", 0, NULL, NULL));
    OK(cuLinkComplete(state, &image, &size));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(state));
    OK(cuModuleGetFunction(&function, module, "ring"));
    OK(cuLaunchCooperativeKernel(function, 8, 1, 1, 32, 1, 1, 0, NULL, parameters));
    OK(cuMemcpyDtoH(said, out, sizeof(said)));
    for (unsigned i = 0; i < 8; i++)
        CHECK(said[8 + i] == (i + 1) % 8 + 1);
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL)); /* not cooperative */
    OK(cuMemcpyDtoH(said, out, sizeof(said)));
    CHECK(said[8] == 1001);
    OK(cuModuleUnload(module));
    OK(cuMemFree(out));
}

int main(void)
{
    softgpu_begin();
    linking_weak();
    linking_results();
    linking_missing();
    grid_of_library();
    managed_far_from_all();
    declared_again();
    return 0;
}
