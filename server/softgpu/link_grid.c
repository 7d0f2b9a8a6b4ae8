/*
 * What libcudadevrt has of cooperative groups, for kernels that ask it for their grid: Numba's do,
 * where nvcc writes it into them. Its names are weak, so what a program brings itself comes first.
 *
 * The handle of a grid is the address of its workspace, 0 where the launch is not cooperative. A
 * barrier is a counter there that each block adds to; what the first block adds makes its highest
 * bit turn once all others have come, and that is what they wait for.
 */
#include "link.h"

#include <string.h>

static const char library[] =
    ".weak .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)\n"
    "{\n"
    "  .reg .pred %p;\n"
    "  .reg .b32 %r<4>;\n"
    "  .reg .b64 %d<2>;\n"
    "  ld.param.u32 %r1, [scope];\n"
    "  mov.u32 %r2, %envreg2;\n"
    "  mov.u32 %r3, %envreg1;\n"
    "  mov.b64 %d1, {%r2, %r3};\n"
    "  setp.eq.u32 %p, %r1, 1;\n" /* cudaCGScopeGrid */
    "  selp.b64 %d1, %d1, 0, %p;\n"
    "  st.param.b64 [handle], %d1;\n"
    "  ret;\n"
    "}\n"
    ".weak .func (.param .b32 status) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)\n"
    "{\n"
    "  .reg .pred %p<4>;\n"
    "  .reg .b32 %r<9>;\n"
    "  .reg .b64 %d<2>;\n"
    "  mov.u32 %r1, 1;\n" /* cudaErrorInvalidValue */
    "  ld.param.u64 %d1, [handle];\n"
    "  setp.eq.u64 %p1, %d1, 0;\n"
    "  @%p1 bra $out;\n"
    "  mov.u32 %r1, 0;\n"
    "  bar.sync 0;\n"
    "  mov.u32 %r2, %tid.x;\n"
    "  mov.u32 %r3, %tid.y;\n"
    "  or.b32 %r2, %r2, %r3;\n"
    "  mov.u32 %r3, %tid.z;\n"
    "  or.b32 %r2, %r2, %r3;\n"
    "  setp.ne.u32 %p1, %r2, 0;\n"
    "  @%p1 bra $together;\n"
    "  mov.u32 %r2, %ctaid.x;\n"
    "  mov.u32 %r3, %ctaid.y;\n"
    "  or.b32 %r2, %r2, %r3;\n"
    "  mov.u32 %r3, %ctaid.z;\n"
    "  or.b32 %r2, %r2, %r3;\n"
    "  setp.ne.u32 %p2, %r2, 0;\n"
    "  mov.u32 %r4, %nctaid.x;\n"
    "  mov.u32 %r5, %nctaid.y;\n"
    "  mul.lo.u32 %r4, %r4, %r5;\n"
    "  mov.u32 %r5, %nctaid.z;\n"
    "  mul.lo.u32 %r4, %r4, %r5;\n"
    "  sub.u32 %r4, 0x80000001, %r4;\n"
    "  selp.b32 %r4, 1, %r4, %p2;\n"
    "  membar.gl;\n"
    "  atom.add.u32 %r6, [%d1+4], %r4;\n"
    "$poll:\n"
    "  ld.volatile.u32 %r7, [%d1+4];\n"
    "  xor.b32 %r8, %r7, %r6;\n"
    "  setp.ge.s32 %p3, %r8, 0;\n"
    "  @%p3 bra $poll;\n"
    "  membar.gl;\n"
    "$together:\n"
    "  bar.sync 0;\n"
    "$out:\n"
    "  st.param.b32 [status], %r1;\n"
    "  ret;\n"
    "}\n";

const char *sg_link_library(const char *text)
{
    return strstr(text, "cudaCGGetIntrinsicHandle") || strstr(text, "cudaCGSynchronize") ? library
                                                                                         : NULL;
}
