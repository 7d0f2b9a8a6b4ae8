/*
 * Holds pinned memory and says where, then copies it to the GPU and back for every line that it
 * reads: the tests of users look at its memory meanwhile. `end` ends it.
 */
#include <unistd.h>

#include "driver.h"

#define BYTES ((size_t)4 << 20)

static unsigned char pattern(size_t i, unsigned step)
{
    return (unsigned char)(i * 7 + (i >> 9) + step);
}

static void copy_there_and_back(unsigned char *pinned, CUdeviceptr device, unsigned step)
{
    for (size_t i = 0; i < BYTES; i++)
        pinned[i] = pattern(i, step);
    CU(cuMemcpyHtoDAsync(device, pinned, BYTES, NULL));
    CU(cuStreamSynchronize(NULL));
    memset(pinned, 0, BYTES);
    CU(cuMemcpyDtoHAsync(pinned, device, BYTES, NULL));
    CU(cuStreamSynchronize(NULL));
    for (size_t i = 0; i < BYTES; i++)
        REQUIRE(pinned[i] == pattern(i, step), "byte %zu is %u", i, pinned[i]);
}

int main(void)
{
    char line[64];
    void *pinned;
    CUdeviceptr device;

    driver_start();
    CU(cuMemHostAlloc(&pinned, BYTES, CU_MEMHOSTALLOC_PORTABLE));
    CU(cuMemAlloc(&device, BYTES));
    printf("%d %p\n", (int)getpid(), pinned);
    fflush(stdout);
    for (unsigned step = 1; fgets(line, sizeof line, stdin) && strncmp(line, "end", 3); step++) {
        copy_there_and_back(pinned, device, step);
        printf("step %u\n", step);
        fflush(stdout);
    }
    CU(cuMemFree(device));
    CU(cuMemFreeHost(pinned));
    driver_stop();
    return finish("driver_pinned");
}
