/*
 * Does on any device what it is told, line by line, and says how that went: the tests
 * kill hosts around it. `use N` counts on device N; `copy A B` copies the count; `wait A
 * B` has a stream of B wait for one of A; each answers with the count or an error's name.
 */
#include "driver.h"

enum { MOST = 8 };

static int devices;
static CUcontext contexts[MOST];
static CUdeviceptr memory[MOST];
static CUfunction increment[MOST];
static CUstream streams[MOST];
static CUevent events[MOST];

static void open_all(void)
{
    CU(cuInit(0));
    CU(cuDeviceGetCount(&devices));
    REQUIRE(devices <= MOST, "%d devices", devices);
    for (int i = 0; i < devices; i++) {
        CUmodule module;
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i));
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuModuleLoadData(&module, kernels_ptx));
        increment[i] = driver_function(module, "increment");
        CU(cuMemAlloc(&memory[i], 4));
        CU(cuMemsetD32(memory[i], 0, 1));
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        CU(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
        CU(cuCtxSynchronize());
    }
}

static CUresult count_of(int device, int *count)
{
    CUresult r = cuMemcpyDtoHAsync(count, memory[device], 4, streams[device]);
    return r == CUDA_SUCCESS ? cuStreamSynchronize(streams[device]) : r;
}

static CUresult use(int device, int *count)
{
    int n = 1;
    void *arguments[] = {&memory[device], &n};
    CUresult r = cuCtxSetCurrent(contexts[device]);
    if (r == CUDA_SUCCESS)
        r = cuLaunchKernel(increment[device], 1, 1, 1, 1, 1, 1, 0, streams[device], arguments,
                           NULL);
    return r == CUDA_SUCCESS ? count_of(device, count) : r;
}

static CUresult copy(int from, int to, int *count)
{
    CUresult r = cuCtxSetCurrent(contexts[to]);
    if (r == CUDA_SUCCESS)
        r = cuMemcpyPeerAsync(memory[to], contexts[to], memory[from], contexts[from], 4,
                              streams[to]);
    return r == CUDA_SUCCESS ? count_of(to, count) : r;
}

static CUresult wait_for(int from, int to, int *count)
{
    CUresult r = cuCtxSetCurrent(contexts[from]);
    if (r == CUDA_SUCCESS)
        r = cuEventRecord(events[from], streams[from]);
    if (r == CUDA_SUCCESS)
        r = cuCtxSetCurrent(contexts[to]);
    if (r == CUDA_SUCCESS)
        r = cuStreamWaitEvent(streams[to], events[from], 0);
    return r == CUDA_SUCCESS ? count_of(to, count) : r;
}

int main(void)
{
    char line[64];
    open_all();
    printf("ready %d\n", devices);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int a, b, count = -1;
        CUresult r = CUDA_ERROR_INVALID_VALUE;
        if (sscanf(line, "use %d", &a) == 1)
            r = use(a, &count);
        else if (sscanf(line, "copy %d %d", &a, &b) == 2)
            r = copy(a, b, &count);
        else if (sscanf(line, "wait %d %d", &a, &b) == 2)
            r = wait_for(a, b, &count);
        if (r == CUDA_SUCCESS)
            printf("%d\n", count);
        else
            printf("%s\n", driver_name(r));
        fflush(stdout);
    }
    return finish("driver_survivor");
}
