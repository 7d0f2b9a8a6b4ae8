/* Launches and contexts as before CUDA 4: what is set on a function, and uses that are counted. */
#include "driver.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void set_parameters(CUfunction f, CUdeviceptr out, short b, float d)
{
    struct mixed {
        char tag;
        double weight;
        short pair[3];
    } m = {'x', 2.5, {1, 2, 3}};
    const char a = -3;
    const long long c = -5000000000LL;
    CU(cuParamSetSize(f, 64));
    CU(cuParamSetv(f, 0, &out, sizeof out));
    CU(cuParamSetv(f, 8, (void *)&a, sizeof a));
    CU(cuParamSetv(f, 10, &b, sizeof b));
    CU(cuParamSetv(f, 16, &m, sizeof m));
    CU(cuParamSetv(f, 40, (void *)&c, sizeof c));
    CU(cuParamSetf(f, 48, d));
}

static void expect_parameters(CUdeviceptr out, double b, double d)
{
    double got[7], expected[7] = {-3, b, 'x', 2.5, 3, -5000000000.0, d};
    CU(cuMemcpyDtoH(got, out, sizeof got));
    for (int i = 0; i < 7; i++)
        EXPECT(got[i] == expected[i], "parameter %d arrived as %g, expected %g", i, got[i],
               expected[i]);
}

/* A driver of today may find no resources for a launch of these forms, whatever was set: it says
 * so, and nothing runs. */
static bool launched(CUresult r)
{
    if (driver_is_native() && r == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
        return false;
    EXPECT(r == CUDA_SUCCESS, "a launch gave %s", driver_name(r));
    return r == CUDA_SUCCESS;
}

static void one_block(CUmodule module)
{
    CUfunction f = driver_function(module, "mixed_parameters");
    CUdeviceptr out;
    CUstream stream;
    CU(cuMemAlloc(&out, 7 * sizeof(double)));
    CU(cuStreamCreate(&stream, 0));
    set_parameters(f, out, 1234, 0.125f);
    if (driver_is_native()) /* there a block has no size until one is set */
        CU(cuFuncSetBlockShape(f, 1, 1, 1));
    if (launched(cuLaunch(f))) /* a block of one thread, as nothing else was said */
        expect_parameters(out, 1234, 0.125);
    set_parameters(f, out, -7, 3);
    CU(cuFuncSetBlockShape(f, 1, 1, 1));
    if (launched(cuLaunchGrid(f, 1, 1)))
        expect_parameters(out, -7, 3);
    set_parameters(f, out, 99, 4);
    bool went = launched(cuLaunchGridAsync(f, 1, 1, stream));
    CU(cuStreamSynchronize(stream));
    if (went)
        expect_parameters(out, 99, 4);
    CU(cuStreamDestroy(stream));
    CU(cuMemFree(out));
}

/* Every value is 10 more, by a grid of two rows of blocks. */
static void a_grid(CUmodule module)
{
    enum { N = 1000 };
    CUfunction f = driver_function(module, "multiply_add");
    CUdeviceptr values;
    static int host[N];
    CU(cuMemAlloc(&values, sizeof host));
    CU(cuMemsetD32(values, 3, N));
    CU(cuParamSetSize(f, 20));
    CU(cuParamSetv(f, 0, &values, sizeof values));
    CU(cuParamSeti(f, 8, N));
    CU(cuParamSeti(f, 12, 2));
    CU(cuParamSeti(f, 16, 4));
    CU(cuFuncSetBlockShape(f, 128, 1, 1));
    CU(cuFuncSetSharedSize(f, 64));
    int expected = launched(cuLaunchGrid(f, 8, 1)) ? 10 : 3;
    CU(cuMemcpyDtoH(host, values, sizeof host));
    for (int i = 0; i < N; i++)
        EXPECT(host[i] == expected, "value %d is %d", i, host[i]);
    CU(cuMemFree(values));
}

static void refused(CUmodule module)
{
    CUfunction f = driver_function(module, "increment");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(f, 0, 1, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(f, -1, 1, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(f, 2048, 1, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetSharedSize(f, 1000000000));
    CU(cuParamSetSize(f, 12));
    CU(cuParamSeti(f, 13, 1)); /* beyond the size, and not aligned */
}

/* A kernel of a library and the function made of it are set each by itself. */
static void of_a_library(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction f;
    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, library, "increment"));
    (void)cuFuncSetBlockShape((CUfunction)kernel, 32, 1, 1); /* not every driver takes one */
    CU(cuKernelGetFunction(&f, kernel));
    CU(cuFuncSetBlockShape(f, 64, 1, 1));
    CU(cuLibraryUnload(library));
}

static void on_several_devices(CUmodule module)
{
    CUfunction f = driver_function(module, "increment");
    CUdeviceptr values;
    CUstream stream;
    int n = 8, host[8];
    CU(cuMemAlloc(&values, sizeof host));
    CU(cuMemsetD32(values, 41, 8));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuCtxSynchronize());
    void *parameters[] = {&values, &n};
    CUDA_LAUNCH_PARAMS launch[2] = {{.function = f,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 8,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .hStream = stream,
                                     .kernelParams = parameters}};
    CU(cuLaunchCooperativeKernelMultiDevice(launch, 1, 0));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(host, values, sizeof host));
    for (int i = 0; i < n; i++)
        EXPECT(host[i] == 42, "value %d is %d", i, host[i]);
    launch[1] = launch[0]; /* the same device again */
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(launch, 2, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(launch, 0, 0));
    launch[0].hStream = NULL;
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchCooperativeKernelMultiDevice(launch, 1, 0));
    CU(cuStreamDestroy(stream));
    CU(cuMemFree(values));
}

static void uses_of_a_context(void)
{
    CUcontext own = NULL, attached = NULL, current = NULL;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&attached, 1));
    CU(cuCtxAttach(&attached, 0));
    EXPECT(attached == driver_context, "another context than the current one is attached");
    CU(cuCtxDetach(attached));
    CU(cuCtxCreate(&own, NULL, 0, driver_device));
    CU(cuCtxAttach(&attached, 0));
    EXPECT(attached == own, "another context than the new one is attached");
    CU(cuCtxDetach(own));
    CU(cuCtxSynchronize());
    CU(cuCtxDetach(own));
    CU(cuCtxGetCurrent(&current));
    EXPECT(current != own, "the context is current after its last use");
    CU(cuCtxSetCurrent(driver_context));
}

int main(void)
{
    CUmodule module;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    one_block(module);
    a_grid(module);
    refused(module);
    of_a_library();
    on_several_devices(module);
    uses_of_a_context();
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_superseded");
}
