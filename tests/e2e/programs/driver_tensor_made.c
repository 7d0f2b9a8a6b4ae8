/*
 * A tensor map that a kernel makes in shared memory (tensormap.replace), as compilers do for tensors
 * that only the kernel knows, and then loads a tile by. The last tile begins at no multiple of 16
 * bytes, which ends the kernel and the context.
 */
#include "driver.h"

#include <stdint.h>

#define WIDTH 48u /* of the tensor, 32 bits each */
#define HEIGHT 20u
#define COLUMNS 16u /* of the tile; 64 bytes, swizzled */
#define ROWS 8u

#define SET(field, type, value)                                                                    \
    "@%p0 tensormap.replace.tile." field ".shared::cta.b1024." type " [%r0], " value ";\n"

/* The map begins as zeros. `made` is where kernels may read it. */
static const char text[] =
    ".version 8.5\n.target sm_90a\n.address_size 64\n"
    ".shared .align 128 .b8 map[128];\n.shared .align 1024 .b8 room[512];\n"
    ".shared .align 8 .b64 bar;\n.visible .global .align 128 .b8 made[128];\n"
    ".visible .entry k(.param .u64 from, .param .u64 to, .param .u32 x, .param .u32 y)\n{\n"
    ".reg .b32 %r<9>;\n.reg .b64 %x<6>;\n.reg .pred %p<2>;\n"
    "mov.u32 %r0, map;\nmov.u32 %r1, room;\nmov.u32 %r2, bar;\nmov.u32 %r3, %tid.x;\n"
    "setp.eq.u32 %p0, %r3, 0;\nld.param.u64 %x0, [from];\nld.param.u64 %x1, [to];\n"
    "ld.param.u32 %r4, [x];\nld.param.u32 %r5, [y];\nmov.u64 %x2, made;\n"
    "shl.b32 %r6, %r3, 2;\nadd.u32 %r7, %r0, %r6;\nst.shared.b32 [%r7], 0;\nbar.sync 0;\n" SET(
        "global_address", "b64",
        "%x0") SET("rank", "b32", "1") SET("box_dim", "b32", "0, 16") SET("box_dim", "b32", "1, 8")
        SET("global_dim", "b32", "0, 48") SET("global_dim", "b32", "1, 20") SET(
            "global_stride", "b64", "0, 192") SET("element_stride", "b32",
                                                  "0, 1") SET("element_stride", "b32",
                                                              "1, 1") SET("elemtype", "b32", "2")
            SET("interleave_layout", "b32", "0") SET("swizzle_mode", "b32", "2") SET(
                "fill_mode", "b32",
                "0") "bar.sync 0;\n"
                     "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu."
                     "sync.aligned"
                     " [%x2], [%r0], 128;\n"
                     "fence.proxy.tensormap::generic.acquire.gpu [%x2], 128;\n"
                     "@%p0 mbarrier.init.shared.b64 [%r2], "
                     "1;\nfence.mbarrier_init.release.cluster;\n"
                     "bar.sync 0;\n@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512;\n"
                     "@%p0 "
                     "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::"
                     "bytes"
                     " [%r1], [%x2, {%r4, %r5}], [%r2];\n"
                     "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;\n@!%p1 bra WAIT;\n"
                     "mad.lo.u32 %r7, %r3, 16, %r1;\nmul.wide.u32 %x3, %r3, 16;\nadd.u64 %x3, %x1, "
                     "%x3;\n"
                     "ld.shared.v2.b64 {%x4, %x5}, [%r7];\nst.global.v2.b64 [%x3], {%x4, "
                     "%x5};\nret;\n}\n";

static uint32_t tensor[HEIGHT * WIDTH], tile[ROWS * COLUMNS];

static uint32_t expected(int x, int y, unsigned column, unsigned row)
{
    long long at_x = x + (long long)column, at_y = y + (long long)row;
    if (at_x < 0 || at_y < 0 || at_x >= WIDTH || at_y >= HEIGHT)
        return 0;
    return tensor[at_y * WIDTH + at_x];
}

static void launch(CUfunction f, CUdeviceptr from, CUdeviceptr to, int x, int y)
{
    void *parameters[] = {&from, &to, &x, &y};
    CU(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
}

static void load(CUfunction f, CUdeviceptr from, CUdeviceptr to, int x, int y)
{
    launch(f, from, to, x, y);
    CU(cuMemcpyDtoH(tile, to, sizeof tile));
    for (unsigned row = 0; row < ROWS; row++)
        for (unsigned column = 0; column < COLUMNS; column++) {
            unsigned at = (row * COLUMNS + column) * 4;
            at ^= (at >> 7 & 3) << 4;
            EXPECT(tile[at / 4] == expected(x, y, column, row), "at %d+%u, %d+%u is %u", x, column,
                   y, row, tile[at / 4]);
        }
    SAY("a tile at %d, %d", x, y);
}

int main(void)
{
    int major = 0;
    CUdeviceptr from, to;
    CUmodule module;
    CUfunction f;

    driver_start();
    CU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, driver_device));
    if (major == 9) { /* code for 9.0a is for no other */
        for (unsigned i = 0; i < HEIGHT * WIDTH; i++)
            tensor[i] = i * 2654435761u;
        CU(cuMemAlloc(&from, sizeof tensor));
        CU(cuMemAlloc(&to, sizeof tile));
        CU(cuMemcpyHtoD(from, tensor, sizeof tensor));
        CU(cuModuleLoadData(&module, text));
        CU(cuModuleGetFunction(&f, module, "k"));
        load(f, from, to, 16, 4);
        load(f, from, to, -4, 15);
        load(f, from, to, 40, -3);
        launch(f, from, to, -5, 15);
        CU_GIVES(CUDA_ERROR_ILLEGAL_INSTRUCTION, cuCtxSynchronize());
    }
    return finish("driver_tensor_made");
}
