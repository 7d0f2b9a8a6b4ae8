/* Module globals, constants, libraries and kernels, and their attributes. */
#include "driver.h"

static void use_globals(CUmodule module)
{
    static const int table[16] = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597};
    CUfunction function = driver_function(module, "use_globals");
    CUdeviceptr counter, constants, out;
    size_t size = 0;
    int value = 0, host[32], hundred = 100;
    void *parameters[] = {&out};

    CU(cuModuleGetGlobal(&counter, &size, module, "counter"));
    EXPECT(size == sizeof(int), "counter has %zu bytes", size);
    CU(cuMemcpyDtoH(&value, counter, sizeof value));
    EXPECT(value == 7, "counter starts at %d, expected 7", value);
    CU(cuModuleGetGlobal(&constants, &size, module, "table"));
    EXPECT(size == sizeof table, "table has %zu bytes", size);
    CU(cuMemAlloc(&out, sizeof host));
    CU(cuMemcpyHtoD(constants + sizeof(int), &hundred, sizeof hundred));
    CU(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(host, out, sizeof host));
    for (int i = 0; i < 32; i++) {
        int expected = (i % 16 == 1 ? 100 : table[i % 16]) + i % 4 + 1;
        EXPECT(host[i] == expected, "value %d is %d, expected %d", i, host[i], expected);
    }
    CU(cuMemcpyDtoH(&value, counter, sizeof value));
    EXPECT(value == 7 + 32, "counter ended at %d, expected 39", value);
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&counter, &size, module, "no_such_variable"));
    /* Either output may be left out. */
    CU(cuModuleGetGlobal(NULL, &size, module, "counter"));
    CU(cuModuleGetGlobal(&counter, NULL, module, "counter"));
    CU(cuMemFree(out));
}

static void library(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUmodule module;
    CUdeviceptr device, global;
    size_t size = 0;
    int n = 64, host[64], threads = 0;

    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, library, "increment"));
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
    CU(cuKernelGetFunction(&function, kernel));
    CU(cuLibraryGetModule(&module, library));
    CU(cuLibraryGetGlobal(&global, &size, library, "counter"));
    EXPECT(size == sizeof(int) && global != 0, "counter has %zu bytes", size);
    CU(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel,
                            driver_device));
    EXPECT(threads >= 128 && threads <= 1024, "the kernel takes %d threads", threads);
    CU(cuMemAlloc(&device, sizeof host));
    CU(cuMemsetD32(device, 5, 64));
    void *parameters[] = {&device, &n};
    CU(cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    /* A CUkernel is taken where a CUfunction is asked for. */
    CU(cuLaunchKernel((CUfunction)kernel, 2, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(host, device, sizeof host));
    for (int i = 0; i < 64; i++)
        EXPECT(host[i] == 7, "value %d is %d, expected 7", i, host[i]);
    CU(cuMemFree(device));
    CU(cuLibraryUnload(library));
}

int main(void)
{
    CUmodule module;
    CUfunction function;
    int value = -1;

    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    use_globals(module);
    library();
    function = driver_function(module, "bounded");
    CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
    EXPECT(value == 128, "bounded takes %d threads, expected 128", value);
    CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
    EXPECT(value == 0, "bounded has %d bytes of shared memory", value);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuFuncGetAttribute(&value, (CUfunction_attribute)999, function));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuFuncGetAttribute(NULL, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_module");
}
