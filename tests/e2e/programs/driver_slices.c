/*
 * A program whose kernels run for as long as it is told, a line for each thing:
 *
 *   hold     launch a kernel that polls a flag: `holds`
 *   free     set the flag from another stream, and wait for the kernel: `freed`
 *   busy MS  short kernels for so long, some submitted ahead: `kernels N`
 *   long MS  kernels of a second on a card for so long, one by one: `kernels N`
 *   end      in order; so does the end of its input
 */
#include <time.h>

#include "driver.h"

static const char poll_ptx[] = ".version 7.0\n"
                               ".target sm_75\n"
                               ".address_size 64\n"
                               ".visible .entry poll(.param .u64 flag)\n"
                               "{\n"
                               "    .reg .b64 %at;\n"
                               "    .reg .b32 %value;\n"
                               "    .reg .pred %clear;\n"
                               "    ld.param.u64 %at, [flag];\n"
                               "    cvta.to.global.u64 %at, %at;\n"
                               "again:\n"
                               "    ld.volatile.global.u32 %value, [%at];\n"
                               "    setp.eq.u32 %clear, %value, 0;\n"
                               "    @%clear bra again;\n"
                               "    ret;\n"
                               "}\n"
                               ".visible .entry spin(.param .u64 flag, .param .u32 times)\n"
                               "{\n"
                               "    .reg .b64 %at;\n"
                               "    .reg .b32 %value, %left;\n"
                               "    .reg .pred %more;\n"
                               "    ld.param.u64 %at, [flag];\n"
                               "    ld.param.u32 %left, [times];\n"
                               "    cvta.to.global.u64 %at, %at;\n"
                               "again:\n"
                               "    ld.volatile.global.u32 %value, [%at];\n"
                               "    sub.u32 %left, %left, 1;\n"
                               "    setp.ne.u32 %more, %left, 0;\n"
                               "    @%more bra again;\n"
                               "    ret;\n"
                               "}\n";

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A read of the flag takes some 40 ns on a card. */
static void busy(CUfunction spin, CUstream stream, CUdeviceptr flag, int ms, unsigned times,
                 int ahead)
{
    void *parameters[] = {&flag, &times};
    long ends = now_ms() + ms, kernels = 0;
    while (now_ms() < ends) {
        for (int i = 0; i < ahead; i++, kernels++)
            CU(cuLaunchKernel(spin, 2, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
        CU(cuStreamSynchronize(stream));
    }
    SAY("kernels %ld", kernels);
}

int main(void)
{
    char line[128];
    int ms;
    CUmodule module;
    CUstream works, sets;
    CUdeviceptr flag;
    static const int one = 1;

    driver_start();
    CU(cuModuleLoadData(&module, poll_ptx));
    CUfunction poll = driver_function(module, "poll"), spin = driver_function(module, "spin");
    CU(cuStreamCreate(&works, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&sets, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&flag, sizeof one));
    SAY("ready");
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3) != 0) {
        if (strncmp(line, "hold", 4) == 0) {
            void *parameters[] = {&flag};
            CU(cuMemsetD32Async(flag, 0, 1, works));
            CU(cuLaunchKernel(poll, 2, 1, 1, 32, 1, 1, 0, works, parameters, NULL));
            CU(cuStreamQuery(sets)); /* it is sent, not only noted */
            SAY("holds");
        } else if (strncmp(line, "free", 4) == 0) {
            CU(cuMemcpyHtoDAsync(flag, &one, sizeof one, sets));
            CU(cuStreamSynchronize(works));
            SAY("freed");
        } else if (sscanf(line, "busy %d", &ms) == 1) {
            busy(spin, works, flag, ms, 1000, 16);
        } else if (sscanf(line, "long %d", &ms) == 1) {
            busy(spin, works, flag, ms, 25000000, 1);
        } else {
            REQUIRE(0, "no such thing: %s", line);
        }
    }
    driver_stop();
    return finish("driver_slices");
}
