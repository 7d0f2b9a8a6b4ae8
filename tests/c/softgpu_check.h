/* What the tests of the soft GPU's driver side share. */
#ifndef SOFTGPU_CHECK_H
#define SOFTGPU_CHECK_H

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(wanted, call)                                                                       \
    do {                                                                                           \
        CUresult expect_got = (call);                                                              \
        if (expect_got != (wanted)) {                                                              \
            fprintf(stderr, "%s:%d: %s gave %d, not %s\n", __FILE__, __LINE__, #call,              \
                    (int)expect_got, #wanted);                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* vadd: c[i] = a[i] + b[i]; inc: adds 1 to *p; bad: writes to address 16. */
static const char softgpu_ptx[] __attribute__((unused)) =
    ".version 7.5\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter = 42;\n"
    ".visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{\n"
    "  .reg .pred %p<2>; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %rd<8>;\n"
    "  ld.param.u64 %rd1, [a];\n  ld.param.u64 %rd2, [b];\n  ld.param.u64 %rd3, [c];\n"
    "  ld.param.u32 %r2, [n];\n"
    "  mov.u32 %r3, %ctaid.x;\n  mov.u32 %r4, %ntid.x;\n  mov.u32 %r5, %tid.x;\n"
    "  mad.lo.s32 %r1, %r3, %r4, %r5;\n"
    "  setp.ge.u32 %p1, %r1, %r2;\n  @%p1 bra DONE;\n"
    "  mul.wide.u32 %rd4, %r1, 4;\n"
    "  add.s64 %rd5, %rd1, %rd4;\n  add.s64 %rd6, %rd2, %rd4;\n  add.s64 %rd7, %rd3, %rd4;\n"
    "  ld.global.f32 %f1, [%rd5];\n  ld.global.f32 %f2, [%rd6];\n"
    "  add.f32 %f3, %f1, %f2;\n  st.global.f32 [%rd7], %f3;\n"
    "DONE:\n  ret;\n}\n"
    ".visible .entry inc(.param .u64 p)\n"
    "{\n  .reg .b32 %r<3>; .reg .b64 %rd<2>;\n"
    "  ld.param.u64 %rd1, [p];\n  ld.global.u32 %r1, [%rd1];\n  add.s32 %r2, %r1, 1;\n"
    "  st.global.u32 [%rd1], %r2;\n  ret;\n}\n"
    ".visible .entry bad()\n"
    "{\n  .reg .b64 %rd<2>; .reg .b32 %r<2>;\n"
    "  mov.u64 %rd1, 16;\n  mov.u32 %r1, 1;\n  st.global.u32 [%rd1], %r1;\n  ret;\n}\n";

/* Initialises the driver and makes device 0's primary context current. */
static inline CUcontext softgpu_begin(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

/* A process of its own: a fault ends CUDA in the one that it is in, for good. What it exits with. */
static inline int softgpu_apart(void (*part)(void))
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        part();
        exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

#endif
