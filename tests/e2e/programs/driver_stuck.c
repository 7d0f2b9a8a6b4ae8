/*
 * A stream that stands at a value which nobody writes, and then a call that waits for it
 * (or none), until somebody ends this program.
 */
#include "driver.h"

#include <string.h>
#include <unistd.h>

static CUdeviceptr flag;
static CUstream stream;

static void stand(void)
{
    CU(cuMemAlloc(&flag, 64));
    CU(cuMemsetD8(flag, 0, 64));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuCtxSynchronize());
    CU(cuStreamWaitValue32(stream, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    CU(cuMemsetD8Async(flag + 32, 1, 32, stream));
}

static void then(const char *what)
{
    CUmodule module;
    unsigned char bytes[32];
    if (strcmp(what, "synchronize") == 0)
        cuCtxSynchronize();
    else if (strcmp(what, "copy") == 0)
        cuMemcpyDtoHAsync(bytes, flag, sizeof bytes, stream);
    else if (strcmp(what, "free") == 0)
        cuMemFree(flag);
    else if (strcmp(what, "reset") == 0)
        cuDevicePrimaryCtxReset(driver_device);
    else if (strcmp(what, "load") == 0)
        cuModuleLoadData(&module, kernels_ptx);
    else if (strcmp(what, "destroy") == 0)
        cuStreamDestroy(stream);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 2, "usage: driver_stuck exit|synchronize|copy|free|reset|load|destroy");
    driver_start();
    stand();
    puts("ready");
    fflush(stdout);
    then(argv[1]);
    if (strcmp(argv[1], "exit") != 0)
        for (;;)
            pause();
    return 0;
}
