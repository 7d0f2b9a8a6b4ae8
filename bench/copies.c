/*
 * Copies of one kind for a while, for who looks at what they cost meanwhile:
 *
 *   copies up|down pinned|pageable MIB SECONDS
 *
 * It prints "begins" once the first copy is over, and at the end its rate in 10^9 bytes a second.
 */
#include <cuda.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

static void copy(bool up, CUdeviceptr device, void *host, size_t size)
{
    if (up)
        CU(cuMemcpyHtoDAsync(device, host, size, NULL));
    else
        CU(cuMemcpyDtoHAsync(host, device, size, NULL));
    CU(cuStreamSynchronize(NULL));
}

int main(int argc, char **argv)
{
    double mib = argc == 5 ? strtod(argv[3], NULL) : 0;
    double seconds = argc == 5 ? strtod(argv[4], NULL) : 0;
    if (!(mib > 0 && mib < 65536 && seconds > 0)) {
        fputs("usage: copies up|down pinned|pageable MIB SECONDS\n", stderr);
        return 2;
    }
    bool up = strcmp(argv[1], "up") == 0, pinned = strcmp(argv[2], "pinned") == 0;
    size_t size = (size_t)(mib * 1048576);
    CUdevice gpu;
    CUcontext context;
    CUdeviceptr device;
    void *host = NULL;
    CU(cuInit(0));
    CU(cuDeviceGet(&gpu, 0));
    CU(cuDevicePrimaryCtxRetain(&context, gpu));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc(&device, size));
    if (pinned)
        CU(cuMemAllocHost(&host, size));
    else if (!(host = malloc(size)))
        return 1;
    memset(host, 1, size);
    copy(up, device, host, size);
    puts("begins");
    fflush(stdout);
    double begin = now(), end = begin;
    long copies = 0;
    for (; end - begin < seconds; copies++, end = now())
        copy(up, device, host, size);
    printf("%.3f\n", (double)copies * (double)size / (end - begin) / 1e9);
    return 0;
}
