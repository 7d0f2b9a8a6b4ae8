/*
 * Handles and addresses that nobody gave us: `driver_forged [ADDRESS…]`, addresses of
 * another session's memory. Each is an error, none does harm, and work goes on.
 */
#include "driver.h"

static const unsigned long long made_up[] = {
    0x3,
    0x1000,
    0xdeadbeef,
    0x100000001,
    0x7fff12345678,
    0x200000000000,
    0x27ffffffffff,
    0x8000000000000000,
    0xffffffffffffffff,
};
#define MADE_UP (sizeof made_up / sizeof made_up[0])

/* An error at once, or at the next wait for what was only sent. */
#define FORGED(call)                                                                               \
    do {                                                                                           \
        CUresult forged = (call);                                                                  \
        if (forged == CUDA_SUCCESS)                                                                \
            forged = cuCtxSynchronize();                                                           \
        EXPECT(forged != CUDA_SUCCESS, "%s with %#llx was no error", #call, value);                \
    } while (0)

static CUfunction increment;

static void stream(unsigned long long value)
{
    CUstream s = (CUstream)value;
    CUevent own;
    CU(cuEventCreate(&own, 0));
    FORGED(cuStreamQuery(s));
    FORGED(cuStreamSynchronize(s));
    FORGED(cuEventRecord(own, s));
    FORGED(cuStreamWaitEvent(s, own, 0));
    FORGED(cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    FORGED(cuStreamDestroy(s));
    CU(cuEventDestroy(own));
}

static void event(unsigned long long value)
{
    CUevent e = (CUevent)value;
    float time;
    FORGED(cuEventRecord(e, NULL));
    FORGED(cuEventQuery(e));
    FORGED(cuEventSynchronize(e));
    FORGED(cuEventElapsedTime(&time, e, e));
    FORGED(cuStreamWaitEvent(NULL, e, 0));
    FORGED(cuEventDestroy(e));
}

static void module(unsigned long long value)
{
    CUmodule m = (CUmodule)value;
    CUfunction f;
    CUdeviceptr at;
    size_t bytes;
    int registers;
    FORGED(cuModuleGetFunction(&f, m, "increment"));
    FORGED(cuModuleGetGlobal(&at, &bytes, m, "counter"));
    FORGED(cuModuleUnload(m));
    FORGED(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, (CUfunction)value));
    FORGED(cuLaunchKernel((CUfunction)value, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void others(unsigned long long value)
{
    CUdeviceptr at;
    FORGED(cuMemRelease((CUmemGenericAllocationHandle)value));
    FORGED(cuMemPoolDestroy((CUmemoryPool)value));
    FORGED(cuMemAllocFromPoolAsync(&at, 1024, (CUmemoryPool)value, NULL));
    FORGED(cuGraphLaunch((CUgraphExec)value, NULL));
    FORGED(cuGraphExecDestroy((CUgraphExec)value));
    FORGED(cuGraphDestroy((CUgraph)value));
    FORGED(cuCtxSetCurrent((CUcontext)value));
    FORGED(cuCtxDestroy((CUcontext)value));
}

static void address(unsigned long long value)
{
    char bytes[64] = "secret";
    CUdeviceptr at = (CUdeviceptr)value, base;
    CUmemGenericAllocationHandle handle;
    size_t size;
    FORGED(cuMemcpyDtoH(bytes, at, sizeof bytes));
    EXPECT(strcmp(bytes, "secret") == 0, "a copy that failed wrote");
    FORGED(cuMemcpyHtoD(at, bytes, sizeof bytes));
    FORGED(cuMemsetD8(at, 0xff, sizeof bytes));
    FORGED(cuMemFree(at));
    FORGED(cuMemFreeAsync(at, NULL));
    FORGED(cuMemGetAddressRange(&base, &size, at));
    FORGED(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at));
    FORGED(cuMemUnmap(at, 2 << 20));
    FORGED(cuMemAddressFree(at, 2 << 20));
}

/* What is no more is nobody's, either. */
static void stale(void)
{
    unsigned long long value;
    CUstream s;
    CUevent e;
    CU(cuStreamCreate(&s, 0));
    CU(cuEventCreate(&e, 0));
    CU(cuStreamDestroy(s));
    CU(cuEventDestroy(e));
    value = (unsigned long long)s;
    stream(value);
    value = (unsigned long long)e;
    event(value);
}

int main(int argc, char **argv)
{
    CUmodule kernels;
    CUdeviceptr number;
    int value = 41, one = 1;

    driver_start();
    for (int i = 1; i < argc; i++)
        address(strtoull(argv[i], NULL, 16)); /* before there is any memory of our own */
    CU(cuModuleLoadData(&kernels, kernels_ptx));
    increment = driver_function(kernels, "increment");
    for (size_t i = 0; i < MADE_UP; i++) {
        stream(made_up[i]);
        event(made_up[i]);
        module(made_up[i]);
        others(made_up[i]);
        address(made_up[i]);
    }
    stale();
    CU(cuMemAlloc(&number, sizeof value));
    CU(cuMemcpyHtoD(number, &value, sizeof value));
    void *parameters[] = {&number, &one};
    CU(cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(&value, number, sizeof value));
    EXPECT(value == 42, "after all that 41 + 1 is %d", value);
    driver_stop();
    return finish("driver_forged");
}
