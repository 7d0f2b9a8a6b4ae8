/*
 * Managed memory: host and kernels use the same addresses. Every test writes on one side and
 * reads on the other, with nothing between but the synchronization that CUDA asks for.
 */
#include "driver.h"

#define INTS ((int)1 << 20)
#define BYTES ((size_t)INTS * sizeof(int))

static CUmodule module;
static CUfunction increment, multiply_add;

static int *managed(size_t bytes, unsigned flags)
{
    CUdeviceptr at;
    CU(cuMemAllocManaged(&at, bytes, flags));
    return (int *)(uintptr_t)at;
}

static void give(int *p)
{
    CU(cuMemFree((CUdeviceptr)(uintptr_t)p));
}

static void run(CUfunction f, CUstream stream, int *p, int n, int factor, int term)
{
    void *parameters[] = {&p, &n, &factor, &term};
    CU(cuLaunchKernel(f, (unsigned)(n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

static void expect(const int *p, int n, int from, int step, const char *what)
{
    for (int i = 0; i < n; i++)
        if (p[i] != from + step * i) {
            EXPECT(0, "%s: %d is %d", what, i, p[i]);
            return;
        }
}

/* --- what it is ----------------------------------------------------------------------------- */

static void attributes(void)
{
    int *p = managed(BYTES, CU_MEM_ATTACH_GLOBAL);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p, base, said;
    unsigned is_managed = 9, type = 9;
    void *host = NULL;
    size_t size;
    int ordinal = -7, one;
    CU(cuDeviceGetAttribute(&one, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, driver_device));
    EXPECT(one == 1, "MANAGED_MEMORY is %d", one);
    CU(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at + 5));
    EXPECT(is_managed == 1, "IS_MANAGED is %u", is_managed);
    CU(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, at + 12));
    EXPECT(host == (char *)p + 12, "HOST_POINTER is %p", host);
    CU(cuPointerGetAttribute(&said, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at + 12));
    EXPECT(said == at + 12, "DEVICE_POINTER is %llx", said);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void *data[] = {&type, &ordinal, &is_managed};
    is_managed = 0;
    CU(cuPointerGetAttributes(3, which, data, at));
    EXPECT(type == CU_MEMORYTYPE_DEVICE && ordinal == driver_device && is_managed == 1,
           "attributes are %u, %d, %u", type, ordinal, is_managed);
    CU(cuMemGetAddressRange(&base, &size, at + 100));
    EXPECT(base == at && size == BYTES, "range is %llx, %zu", base, size);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&said, 0, CU_MEM_ATTACH_GLOBAL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&said, 64, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&said, 64, CU_MEM_ATTACH_SINGLE));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(NULL, 64, CU_MEM_ATTACH_GLOBAL));
    give(p);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
}

/* --- who sees what ---------------------------------------------------------------------------- */

static void both_ways(void)
{
    int *p = managed(BYTES, CU_MEM_ATTACH_GLOBAL);
    expect(p, INTS, 0, 0, "fresh memory");
    for (int i = 0; i < INTS; i++)
        p[i] = i;
    run(multiply_add, NULL, p, INTS, 3, 7);
    CU(cuCtxSynchronize());
    expect(p, INTS, 7, 3, "what the kernel made");
    p[INTS / 2] = 1000; /* one page of many */
    run(increment, NULL, p, INTS, 0, 0);
    CU(cuCtxSynchronize());
    EXPECT(p[INTS / 2] == 1001, "the page that was written is %d", p[INTS / 2]);
    EXPECT(p[0] == 8 && p[INTS - 1] == 8 + 3 * (INTS - 1), "the others are %d, %d", p[0],
           p[INTS - 1]);
    for (int round = 0; round < 20; round++) {
        p[round * 1000] = -1;
        run(increment, NULL, p, INTS, 0, 0);
        CU(cuCtxSynchronize());
        EXPECT(p[round * 1000] == 0, "round %d: %d", round, p[round * 1000]);
    }
    give(p);
}

/* A kernel sees what the host wrote on another stream than the last one's. */
static void streams(void)
{
    CUstream stream[2];
    int *p = managed(BYTES, CU_MEM_ATTACH_GLOBAL), *q = managed(4096, CU_MEM_ATTACH_GLOBAL);
    for (int i = 0; i < 2; i++)
        CU(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < INTS; i++)
        p[i] = i;
    q[0] = 5;
    run(increment, stream[0], q, 1, 0, 0);
    run(increment, stream[1], p, INTS, 0, 0);
    CU(cuStreamSynchronize(stream[0]));
    CU(cuStreamSynchronize(stream[1]));
    EXPECT(q[0] == 6, "q is %d", q[0]);
    expect(p, INTS, 1, 1, "the other stream");
    for (int i = 0; i < 2; i++)
        CU(cuStreamDestroy(stream[i]));
    give(p);
    give(q);
}

static void copies(void)
{
    int *p = managed(BYTES, CU_MEM_ATTACH_GLOBAL), *plain = malloc(BYTES);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p, device;
    CU(cuMemAlloc(&device, BYTES));
    for (int i = 0; i < INTS; i++)
        p[i] = 2 * i;
    CU(cuMemcpyDtoH(plain, at, BYTES));
    expect(plain, INTS, 0, 2, "to the host");
    p[3] = 99; /* after a copy that only read it */
    CU(cuMemcpy(device, at, BYTES));
    CU(cuMemcpyDtoH(plain, device, BYTES));
    EXPECT(plain[3] == 99 && plain[4] == 8, "to the device: %d, %d", plain[3], plain[4]);
    for (int i = 0; i < INTS; i++)
        plain[i] = 5 - i;
    CU(cuMemcpyHtoD(at, plain, BYTES));
    expect(p, INTS, 5, -1, "from the host");
    CU(cuMemcpyHtoD(device, p, BYTES)); /* as host memory */
    CU(cuMemsetD32(at + 4, 77, 2));
    CU(cuCtxSynchronize());
    EXPECT(p[0] == 5 && p[1] == 77 && p[2] == 77 && p[3] == 2, "a set: %d %d %d %d", p[0], p[1],
           p[2], p[3]);
    CU(cuMemcpyDtoD(at, device, BYTES));
    CU(cuCtxSynchronize());
    expect(p, INTS, 5, -1, "within the device");
    CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                         .srcHost = plain,
                         .srcPitch = 64,
                         .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .dstDevice = at,
                         .dstPitch = 4096,
                         .WidthInBytes = 64,
                         .Height = 4};
    p[16] = -5;
    CU(cuMemcpy2D(&box));
    EXPECT(p[15] == plain[15] && p[16] == -5 && p[1024] == plain[16], "rows: %d %d %d", p[15],
           p[16], p[1024]);
    CU(cuMemFree(device));
    give(p);
    free(plain);
}

static void graph(void)
{
    CUgraph made;
    CUgraphExec exec;
    CUstream stream;
    int *p = managed(BYTES, CU_MEM_ATTACH_GLOBAL);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    run(increment, stream, p, INTS, 0, 0);
    run(increment, stream, p, INTS, 0, 0);
    CU(cuStreamEndCapture(stream, &made));
    CU(cuGraphInstantiate(&exec, made, 0));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < INTS; i++)
            p[i] = i * round;
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        expect(p, INTS, 2, round, "a graph");
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(made));
    CU(cuStreamDestroy(stream));
    give(p);
}

/* What a call is given may lie there: its arguments, its text, what it fills. */
static void as_arguments(void)
{
    int *p = managed(65536, CU_MEM_ATTACH_GLOBAL);
    int *work = managed(4096, CU_MEM_ATTACH_GLOBAL);
    run(increment, NULL, work, 1024, 0, 0); /* and all of it is the GPU's */
    char *name = (char *)p;
    CUfunction *found = (CUfunction *)(p + 1024);
    void **parameters = (void **)(p + 2048);
    struct {
        int *at;
        int n, factor, term;
    } *values = (void *)(p + 4096);
    strcpy(name, "multiply_add");
    CU(cuModuleGetFunction(found, module, name));
    values->at = work;
    values->n = 1024;
    values->factor = 10;
    values->term = 1;
    parameters[0] = &values->at;
    parameters[1] = &values->n;
    parameters[2] = &values->factor;
    parameters[3] = &values->term;
    CU(cuLaunchKernel(*found, 4, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(p + 8192, (CUdeviceptr)(uintptr_t)work, 4096));
    EXPECT(p[8192] == 11 && p[8192 + 1023] == 11, "the result is %d", p[8192]);
    size_t *free_bytes = (size_t *)p, *total = free_bytes + 1;
    CU(cuMemGetInfo(free_bytes, total));
    EXPECT(*total > 0 && *free_bytes <= *total, "free %zu of %zu", *free_bytes, *total);
    give(p);
    give(work);
}

/* --- whose it is ------------------------------------------------------------------------------- */

static void on_host(void *data)
{
    int *p = data;
    EXPECT(p[7] == 8, "in a host function: %d", p[7]);
    p[7] = 100;
}

static void host_functions(void)
{
    CUstream stream;
    int *p = managed(BYTES, CU_MEM_ATTACH_GLOBAL);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < INTS; i++)
        p[i] = i;
    run(increment, stream, p, INTS, 0, 0);
    CU(cuLaunchHostFunc(stream, on_host, p));
    CU(cuStreamSynchronize(stream));
    run(increment, stream, p, INTS, 0, 0);
    CU(cuStreamSynchronize(stream));
    EXPECT(p[7] == 101 && p[6] == 8, "behind it: %d, %d", p[7], p[6]);
    CU(cuStreamDestroy(stream));
    give(p);
}

static void attached(void)
{
    CUstream stream, other;
    int *p = managed(BYTES, CU_MEM_ATTACH_HOST), *q = managed(BYTES, CU_MEM_ATTACH_GLOBAL);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < INTS; i++)
        p[i] = i;
    run(increment, other, q, INTS, 0, 0);
    EXPECT(p[9] == 9, "the host's own is %d", p[9]);
    CU(cuStreamAttachMemAsync(stream, at, 0, CU_MEM_ATTACH_SINGLE));
    CU(cuStreamSynchronize(stream));
    run(increment, stream, p, INTS, 0, 0);
    run(increment, other, q, INTS, 0, 0);
    CU(cuStreamSynchronize(stream));
    expect(p, INTS, 1, 1, "one stream's");
    CU(cuStreamAttachMemAsync(stream, at, BYTES, CU_MEM_ATTACH_GLOBAL));
    CU(cuStreamSynchronize(stream));
    p[0] = 50;
    run(increment, other, p, INTS, 0, 0);
    CU(cuCtxSynchronize());
    EXPECT(p[0] == 51 && q[0] == 2, "everybody's again: %d, %d", p[0], q[0]);
    CU(cuStreamAttachMemAsync(other, (CUdeviceptr)(uintptr_t)q, 0, CU_MEM_ATTACH_SINGLE));
    run(increment, other, q, INTS, 0, 0);
    CU(cuStreamSynchronize(other));
    CU(cuStreamDestroy(other)); /* and with it what was attached to it */
    q[0] = 60;
    run(increment, stream, q, INTS, 0, 0);
    CU(cuCtxSynchronize());
    EXPECT(q[0] == 61, "a dead stream's: %d", q[0]);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(stream, at, 64, CU_MEM_ATTACH_HOST));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(stream, at, 0, 8));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(stream, 4096, 0, CU_MEM_ATTACH_HOST));
    CU(cuStreamDestroy(stream));
    give(p);
    give(q);
}

/* Many, so that some lie side by side, freed in another order. */
static void many(void)
{
    enum { COUNT = 300 };
    static int *p[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = managed((size_t)(i % 7 + 1) * 3000, CU_MEM_ATTACH_GLOBAL);
        p[i][i] = i;
    }
    for (int i = 0; i < COUNT; i++)
        run(increment, NULL, p[i], i + 1, 0, 0);
    CU(cuCtxSynchronize());
    for (int i = 0; i < COUNT; i++)
        EXPECT(p[i][i] == i + 1, "%d is %d", i, p[i][i]);
    for (int i = 0; i < COUNT; i++)
        give(p[(i * 7) % COUNT]);
    int *again = managed(BYTES, CU_MEM_ATTACH_GLOBAL);
    expect(again, INTS, 0, 0, "memory given anew");
    run(increment, NULL, again, INTS, 0, 0);
    CU(cuCtxSynchronize());
    expect(again, INTS, 1, 0, "and on the GPU");
    give(again);
}

int main(void)
{
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    multiply_add = driver_function(module, "multiply_add");
    attributes();
    both_ways();
    streams();
    copies();
    graph();
    as_arguments();
    host_functions();
    attached();
    many();
    int *left = managed(BYTES, CU_MEM_ATTACH_GLOBAL); /* goes with the context */
    left[5] = 1;
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_managed");
}
