/* The images that clients upload. */
#include "draw.h"

#define TWO_WORDS ".param .u64 p, .param .u64 n"

/* Every kernel takes two words: an address and a number. */
static const char kernels[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".global .align 8 .u64 value = 7;\n"
    ".const .align 4 .u32 table[4] = {1, 2, 3, 4};\n"
    ".visible .entry nothing(" TWO_WORDS ") { ret; }\n"
    ".visible .entry add(" TWO_WORDS ")\n{\n"
    ".reg .pred %q;\n.reg .b32 %r<4>;\n.reg .b64 %d<6>;\n"
    "ld.param.u64 %d1, [p];\nld.param.u64 %d2, [n];\nmov.u32 %r1, %tid.x;\n"
    "cvt.u64.u32 %d3, %r1;\nsetp.ge.u64 %q, %d3, %d2;\n@%q ret;\n"
    "shl.b64 %d4, %d3, 2;\nadd.u64 %d5, %d1, %d4;\nld.global.u32 %r2, [%d5];\n"
    "add.u32 %r3, %r2, 1;\nst.global.u32 [%d5], %r3;\nret;\n}\n"
    ".visible .entry spin(" TWO_WORDS ")\n{\n"
    ".reg .pred %q;\n.reg .b64 %d<3>;\n"
    "ld.param.u64 %d1, [n];\nand.b64 %d1, %d1, 4095;\n"
    "again:\nsetp.eq.u64 %q, %d1, 0;\n@%q bra done;\nsub.u64 %d1, %d1, 1;\nbra again;\n"
    "done:\nret;\n}\n";

static const char others[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry shared(" TWO_WORDS ")\n{\n"
    ".reg .b32 %r<3>;\n.reg .b64 %d<2>;\n.shared .align 4 .b8 part[256];\n"
    "mov.u32 %r1, %tid.x;\nand.b32 %r1, %r1, 63;\nshl.b32 %r1, %r1, 2;\n"
    "mov.u32 %r2, part;\nadd.u32 %r1, %r1, %r2;\nst.shared.u32 [%r1], %r2;\nbar.sync 0;\n"
    "ld.param.u64 %d1, [p];\natom.global.add.u32 %r2, [%d1], 1;\nret;\n}\n"
    ".visible .entry say(" TWO_WORDS ") { trap; }\n";

/* Kernels that launch kernels, and what else CUDA's runtime gives those on a device; textures. */
static const char parents[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".global .texref image;\n.global .surfref drawn;\n"
    ".global .align 1 .b8 text[4] = {37, 100, 10, 0};\n"
    ".extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 f,"
    " .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);\n"
    ".extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 b, .param .b64 s);\n"
    ".extern .func (.param .b32 r) __cudaCDP2StreamCreateWithFlags(.param .b64 s, .param .b32 f);\n"
    ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);\n"
    ".extern .func (.param .b64 r) malloc(.param .b64 n);\n"
    ".extern .func free(.param .b64 p);\n"
    ".extern .func (.param .b32 r) cudaGraphKernelNodeSetParam(.param .b64 n, .param .b64 o,"
    " .param .b64 v, .param .b64 s);\n"
    ".extern .func (.param .b32 r) cudaGraphKernelNodeSetGridDim(.param .b64 n,"
    " .param .align 4 .b8 g[12]);\n"
    ".extern .func (.param .b32 r) cudaGraphKernelNodeUpdatesApply(.param .b64 a, .param .b64 c);\n"
    ".visible .entry child(" TWO_WORDS ")\n{\n"
    ".reg .b32 %r<2>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [p];\n"
    "red.global.add.u32 [%d1], 1;\nret;\n}\n"
    ".visible .entry parent(" TWO_WORDS ")\n{\n"
    ".reg .pred %q;\n.reg .b32 %r<4>;\n.reg .b64 %d<8>;\n"
    "ld.param.u64 %d1, [p];\nld.param.u64 %d2, [n];\ncvt.u32.u64 %r1, %d2;\nand.b32 %r1, %r1, 3;\n"
    "mov.u64 %d3, child;\nmov.u32 %r2, 1;\n"
    "{\n.param .b64 f;\n.param .align 4 .b8 g[12];\n.param .align 4 .b8 b[12];\n.param .b32 s;\n"
    ".param .b64 r;\nst.param.b64 [f], %d3;\nst.param.b32 [g], %r1;\nst.param.b32 [g+4], %r2;\n"
    "st.param.b32 [g+8], %r2;\nst.param.b32 [b], %r2;\nst.param.b32 [b+4], %r2;\n"
    "st.param.b32 [b+8], %r2;\nst.param.b32 [s], 0;\n"
    "call.uni (r), __cudaCDP2GetParameterBufferV2, (f, g, b, s);\nld.param.b64 %d4, [r];\n}\n"
    "setp.eq.u64 %q, %d4, 0;\n@%q bra none;\nst.u64 [%d4], %d1;\nst.u64 [%d4+8], %d2;\n"
    "shr.u64 %d5, %d2, 2;\n"
    "{\n.param .b64 b;\n.param .b64 s;\n.param .b32 r;\nst.param.b64 [b], %d4;\n"
    "st.param.b64 [s], %d5;\ncall.uni (r), __cudaCDP2LaunchDeviceV2, (b, s);\n"
    "ld.param.b32 %r3, [r];\n}\nnone:\nret;\n}\n"
    ".visible .entry speak(" TWO_WORDS ")\n{\n"
    ".local .align 8 .b8 frame[16];\n.reg .b32 %r<3>;\n.reg .b64 %d<6>;\n"
    "ld.param.u64 %d1, [n];\nmov.u64 %d2, frame;\ncvta.local.u64 %d3, %d2;\nst.u64 [%d3], %d1;\n"
    "mov.u64 %d4, text;\ncvta.global.u64 %d4, %d4;\n"
    "{\n.param .b64 f;\n.param .b64 v;\n.param .b32 r;\nst.param.b64 [f], %d4;\n"
    "st.param.b64 [v], %d3;\ncall.uni (r), vprintf, (f, v);\nld.param.b32 %r1, [r];\n}\n"
    "{\n.param .b64 n;\n.param .b64 r;\nst.param.b64 [n], %d1;\ncall.uni (r), malloc, (n);\n"
    "ld.param.b64 %d5, [r];\n}\n"
    "{\n.param .b64 p;\nst.param.b64 [p], %d5;\ncall.uni free, (p);\n}\nret;\n}\n"
    ".visible .entry sample(" TWO_WORDS ")\n{\n"
    ".reg .b32 %r<2>;\n.reg .f32 %f<5>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [p];\n"
    "mov.u32 %r1, %tid.x;\ntex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [image, {%r1, %r1}];\n"
    "sust.b.2d.b32.trap [drawn, {%r1, %r1}], {%f1};\nret;\n}\n"
    ".visible .entry update(" TWO_WORDS ")\n{\n"
    ".reg .b32 %r<4>;\n.reg .b64 %d<4>;\nld.param.u64 %d1, [p];\nld.param.u64 %d2, [n];\n"
    "ld.global.u32 %r1, [%d1];\nmov.u32 %r2, 1;\ncvt.u64.u32 %d3, %r1;\n"
    "{\n.param .b64 n;\n.param .b64 o;\n.param .b64 v;\n.param .b64 s;\n.param .b32 r;\n"
    "st.param.b64 [n], %d2;\nst.param.b64 [o], %d3;\nst.param.b64 [v], %d1;\n"
    "st.param.b64 [s], 8;\ncall.uni (r), cudaGraphKernelNodeSetParam, (n, o, v, s);\n"
    "ld.param.b32 %r3, [r];\n}\n"
    "{\n.param .b64 n;\n.param .align 4 .b8 g[12];\n.param .b32 r;\nst.param.b64 [n], %d2;\n"
    "st.param.b32 [g], %r1;\nst.param.b32 [g+4], %r2;\nst.param.b32 [g+8], %r2;\n"
    "call.uni (r), cudaGraphKernelNodeSetGridDim, (n, g);\nld.param.b32 %r3, [r];\n}\n"
    "{\n.param .b64 a;\n.param .b64 c;\n.param .b32 r;\nst.param.b64 [a], %d1;\n"
    "st.param.b64 [c], %d3;\ncall.uni (r), cudaGraphKernelNodeUpdatesApply, (a, c);\n"
    "ld.param.b32 %r3, [r];\n}\nret;\n}\n";

static const char wrong[] = ".version 7.0\n.target sm_70\n.visible .entry add( {";
static const char no_image[] = "\177ELF\2\1\1";

const char *draw_image(unsigned number, uint32_t *size)
{
    static const struct {
        const char *text;
        uint32_t size;
    } images[DRAW_IMAGES] = {{kernels, sizeof kernels},
                             {others, sizeof others},
                             {wrong, sizeof wrong},
                             {no_image, sizeof no_image},
                             {parents, sizeof parents}};
    *size = images[number % DRAW_IMAGES].size;
    return images[number % DRAW_IMAGES].text;
}
