/*
 * Two GPUs of one server in one process: memory of one is good for copies that are made on
 * the other, whether peer access was asked for or not, and for kernels once it was.
 */
#include "driver.h"

#include <stdbool.h>

enum { WORDS = 1 << 18, BYTES = 4 * WORDS };

static CUcontext contexts[2];
static CUmodule modules[2];
static CUstream streams[2];
static unsigned char from[BYTES], to[BYTES];

static void use(int device)
{
    CU(cuCtxSetCurrent(contexts[device]));
}

static void fill(unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)((i * 31 + seed) % 251);
}

static void expect_same(const char *what, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        REQUIRE(to[i] == from[i], "%s: byte %zu is %d, not %d", what, i, to[i], from[i]);
}

static CUdeviceptr memory(int device, size_t bytes)
{
    CUdeviceptr got;
    use(device);
    CU(cuMemAlloc(&got, bytes));
    return got;
}

static void read_back(int device, CUdeviceptr what, size_t bytes)
{
    use(device);
    memset(to, 0xee, sizeof to);
    CU(cuMemcpyDtoH(to, what, bytes));
}

/* In every way to say it, from a stream of either device. */
static void copies(size_t bytes)
{
    CUdeviceptr ends[2] = {memory(0, bytes), memory(1, bytes)};
    for (int way = 0; way < 8; way++) {
        int there = way & 1, here = !there, current = way >> 1 & 1;
        fill((unsigned)way);
        use(here);
        CU(cuMemcpyHtoD(ends[here], from, bytes));
        CU(cuCtxSynchronize());
        use(current);
        if (way & 4)
            CU(cuMemcpyDtoDAsync(ends[there], ends[here], bytes, streams[current]));
        else
            CU(cuMemcpyPeerAsync(ends[there], contexts[there], ends[here], contexts[here], bytes,
                                 streams[current]));
        CU(cuStreamSynchronize(streams[current]));
        read_back(there, ends[there], bytes);
        expect_same("a copy between the devices", bytes);
    }
    use(0);
    CU(cuMemFree(ends[0]));
    CU(cuMemFree(ends[1]));
}

/* The host's end, while the other device is current. */
static void from_the_other(void)
{
    CUdeviceptr there = memory(1, BYTES);
    use(0);
    fill(77);
    CU(cuMemcpyHtoD(there, from, BYTES));
    memset(to, 0, sizeof to);
    CU(cuMemcpyDtoH(to, there, BYTES));
    expect_same("bytes from and to the host", BYTES);
    CU(cuMemFree(there));
}

static void pitched(void)
{
    CUdeviceptr ends[2] = {memory(0, BYTES), memory(1, BYTES)};
    fill(5);
    use(0);
    CU(cuMemcpyHtoD(ends[0], from, BYTES));
    CU(cuCtxSynchronize()); /* the streams do not heed the default one */
    CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = ends[0],
                         .srcPitch = 1024,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = ends[1],
                         .dstPitch = 512,
                         .WidthInBytes = 512,
                         .Height = BYTES / 1024};
    CU(cuMemcpy2DAsync(&box, streams[0]));
    CU(cuStreamSynchronize(streams[0]));
    for (size_t y = 0; y < BYTES / 1024; y++)
        memmove(from + 512 * y, from + 1024 * y, 512);
    read_back(1, ends[1], BYTES / 2);
    expect_same("rows between the devices", BYTES / 2);
    CU(cuMemFree(ends[0]));
    CU(cuMemFree(ends[1]));
}

/* values[i] = values[i] * 3 + 1, by a kernel of one device in the memory of the other. */
static void kernel_there(CUdeviceptr values, int device)
{
    int n = WORDS, factor = 3, term = 1, first = 0;
    void *arguments[] = {&values, &n, &factor, &term};
    use(!device);
    CU(cuMemsetD32(values, 7, WORDS));
    CU(cuCtxSynchronize());
    use(device);
    CU(cuLaunchKernel(driver_function(modules[device], "multiply_add"), (WORDS + 255) / 256, 1, 1,
                      256, 1, 1, 0, streams[device], arguments, NULL));
    CU(cuStreamSynchronize(streams[device]));
    use(!device);
    CU(cuMemcpyDtoH(&first, values + 4 * (WORDS - 1), 4));
    REQUIRE(first == 22, "a kernel made %d of 7, not 22", first);
}

/* What was allocated before it was asked for, and what is allocated behind it. */
static void access(void)
{
    int can = 0;
    CU(cuDeviceCanAccessPeer(&can, 0, 1));
    if (!can)
        return;
    CUdeviceptr before = memory(1, BYTES);
    use(0);
    CU(cuCtxEnablePeerAccess(contexts[1], 0));
    CU_GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(contexts[1], 0));
    CU_GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(contexts[0], 0));
    CUdeviceptr behind = memory(1, BYTES);
    kernel_there(before, 0);
    kernel_there(behind, 0);
    use(0);
    CU(cuCtxDisablePeerAccess(contexts[1]));
    CU_GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(contexts[1]));
    CU(cuMemFree(before));
    CU(cuMemFree(behind));
}

int main(void)
{
    int devices = 0;
    CU(cuInit(0));
    CU(cuDeviceGetCount(&devices));
    REQUIRE(devices >= 2, "%d device, and two are needed", devices);
    for (int i = 0; i < 2; i++) {
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i));
        use(i);
        CU(cuModuleLoadData(&modules[i], kernels_ptx));
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    copies(1);
    copies(4097);
    copies(BYTES);
    from_the_other();
    pitched();
    access();
    copies(BYTES);
    return finish("driver_peers");
}
