/* Attributes of kernels and functions: asked, set on one and seen on the other, refused;
 * and what the driver loads, and does not load, because of it. */
#include "driver.h"

#define MOST CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
#define CARVEOUT CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT

enum { MUCH = 60000 }; /* bytes of shared memory, more than a kernel has unasked */

static CUlibrary library;
static CUkernel kernel;
static int opt_in;

static int of_kernel(CUfunction_attribute attribute)
{
    int value = -1;
    CU(cuKernelGetAttribute(&value, attribute, kernel, driver_device));
    return value;
}

static int of_function(CUfunction f, CUfunction_attribute attribute)
{
    int value = -1;
    CU(cuFuncGetAttribute(&value, attribute, f));
    return value;
}

static void same_at_first(CUfunction f)
{
    for (int i = 0; i <= CARVEOUT; i++)
        EXPECT(of_kernel(i) == of_function(f, i),
               "attribute %d: the kernel's is %d, the function's %d", i, of_kernel(i),
               of_function(f, i));
    EXPECT(of_kernel(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) > 0, "no block fits");
    /* CUB looks among what it was compiled for by this number: kernels.cu's PTX is of sm_75 */
    EXPECT(of_kernel(CU_FUNC_ATTRIBUTE_PTX_VERSION) == 75, "the kernel's PTX is of sm_%d",
           of_kernel(CU_FUNC_ATTRIBUTE_PTX_VERSION));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(NULL, MOST, f));
    int value;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&value, 4711, f));
}

/* A kernel's setting is for its device, so its function has it. */
static void set_on_kernel(CUfunction f)
{
    const int values[] = {1024, 8192, 1024, opt_in, 8192, 0};

    for (unsigned i = 0; i < sizeof values / sizeof values[0]; i++) {
        CU(cuKernelSetAttribute(MOST, values[i], kernel, driver_device));
        EXPECT(of_kernel(MOST) == values[i], "set to %d, the kernel's is %d", values[i],
               of_kernel(MOST));
        EXPECT(of_function(f, MOST) == values[i], "set to %d, the function's is %d", values[i],
               of_function(f, MOST));
    }
    CU(cuKernelSetAttribute(CARVEOUT, 25, kernel, driver_device));
    EXPECT(of_kernel(CARVEOUT) == 25 && of_kernel(MOST) == 0, "the carveout is %d, the limit %d",
           of_kernel(CARVEOUT), of_kernel(MOST));
}

static void limits_are(CUfunction f, int of_the_kernel, int of_the_function)
{
    EXPECT(of_kernel(MOST) == of_the_kernel, "the kernel's limit is %d, not %d", of_kernel(MOST),
           of_the_kernel);
    EXPECT(of_function(f, MOST) == of_the_function, "the function's limit is %d, not %d",
           of_function(f, MOST), of_the_function);
}

/* A function's own setting counts for good: the kernel's shows on it no more. */
static void set_on_function(CUfunction f)
{
    CU(cuKernelSetAttribute(MOST, MUCH, kernel, driver_device));
    limits_are(f, MUCH, MUCH);
    for (int i = 0; i < 4; i++) {
        int value = i % 2 ? 2048 : 4096;
        CU(cuFuncSetAttribute(f, MOST, value));
        limits_are(f, MUCH, value);
    }
    CU(cuKernelSetAttribute(MOST, 512, kernel, driver_device));
    limits_are(f, 512, 2048);
    CU(cuKernelSetAttribute(MOST, MUCH, kernel, driver_device));
    limits_are(f, MUCH, 2048);
    EXPECT(of_function(f, CARVEOUT) == 25,
           "the kernel's carveout is the function's, but that is %d", of_function(f, CARVEOUT));
    CU(cuFuncSetAttribute(f, CARVEOUT, 50));
    CU(cuKernelSetAttribute(CARVEOUT, 75, kernel, driver_device));
    EXPECT(of_kernel(CARVEOUT) == 75 && of_function(f, CARVEOUT) == 50,
           "the kernel's carveout is %d, the function's %d", of_kernel(CARVEOUT),
           of_function(f, CARVEOUT));
}

/* At once, and what was there stays. */
static void refused(CUfunction f)
{
    CU(cuFuncSetAttribute(f, MOST, 2048));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, MOST, opt_in + 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS, 8));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, 4711, 8));
    EXPECT(of_function(f, MOST) == 2048, "a refused setting left %d", of_function(f, MOST));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuKernelSetAttribute(MOST, opt_in + 1, kernel, driver_device));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuKernelSetAttribute(MOST, 1024, kernel, 4711));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuKernelGetAttribute(&(int){0}, MOST, kernel, 4711));
}

static CUresult sum(CUfunction f, unsigned shared)
{
    CUdeviceptr numbers;
    int out = 0;

    CU(cuMemAlloc(&numbers, 1024));
    CU(cuMemsetD32(numbers, 2, 256));
    void *parameters[] = {&numbers, &numbers};
    CUresult result = cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, shared, NULL, parameters, NULL);
    CU(cuMemcpyDtoH(&out, numbers, sizeof out));
    EXPECT(result != CUDA_SUCCESS || out == 128, "the sum in shared memory is %d", out);
    CU(cuMemFree(numbers));
    return result;
}

/* Shared memory beyond the common limit is for who has asked for it. A launch in either form
 * is judged by the function, and refused at once. */
static void launches(CUfunction f)
{
    CUkernel other;

    CU(cuLibraryGetKernel(&other, library, "add"));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, sum((CUfunction)other, (unsigned)opt_in));
    CU(cuFuncSetAttribute(f, MOST, 2048));
    CU(cuKernelSetAttribute(MOST, MUCH, kernel, driver_device));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, sum(f, MUCH));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, sum((CUfunction)kernel, MUCH));
    CU_GIVES(CUDA_SUCCESS, sum((CUfunction)kernel, 2048));
    CU(cuFuncSetAttribute(f, MOST, MUCH));
    CU(cuKernelSetAttribute(MOST, 100, kernel, driver_device));
    CU_GIVES(CUDA_SUCCESS, sum(f, MUCH));
    CU_GIVES(CUDA_SUCCESS, sum((CUfunction)kernel, MUCH));
    CU(cuFuncSetAttribute(f, MOST, opt_in));
    CU_GIVES(CUDA_SUCCESS, sum(f, (unsigned)opt_in));
    CU(cuKernelSetAttribute(MOST, 4096, kernel, driver_device));
}

/* Before a function has a setting of its own, the kernel's is its. */
static void launches_by_the_kernel(void)
{
    CUlibrary fresh;
    CUkernel k;
    CUfunction f;

    CU(cuLibraryLoadData(&fresh, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&k, fresh, "shared_sum"));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, sum((CUfunction)k, MUCH));
    CU(cuKernelSetAttribute(MOST, MUCH, k, driver_device));
    CU_GIVES(CUDA_SUCCESS, sum((CUfunction)k, MUCH));
    CU(cuKernelGetFunction(&f, k));
    CU_GIVES(CUDA_SUCCESS, sum(f, MUCH));
    CU(cuKernelSetAttribute(MOST, 1024, k, driver_device));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, sum(f, MUCH));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, sum((CUfunction)k, MUCH));
    CU(cuLibraryUnload(fresh));
}

static unsigned loaded(const CUfunction *functions, unsigned count)
{
    CUfunctionLoadingState state;
    unsigned n = 0;

    for (unsigned i = 0; i < count; i++) {
        CU(cuFuncIsLoaded(&state, functions[i]));
        n += state == CU_FUNCTION_LOADING_STATE_LOADED;
    }
    return n;
}

/* A function that was listed alone has attributes when it is loaded. */
static void asked_when_loaded(CUfunction f)
{
    int value = 0;

    if (loaded(&f, 1) == 0) {
        CU_GIVES(CUDA_ERROR_FUNCTION_NOT_LOADED,
                 cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
        EXPECT(loaded(&f, 1) == 0, "a question loads a function");
        CU(cuFuncLoad(f));
    }
    EXPECT(loaded(&f, 1) == 1, "the function is not loaded");
    EXPECT(of_function(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) > 0, "no block of it fits");
}

/* Whoever lists an image's functions has loaded none, and a launch loads one: on the soft
 * GPU. A real driver may load an image that it compiles as a whole. */
static void lists_load_nothing(void)
{
    CUmodule module;
    CUfunction functions[32];
    char name[64] = "";
    unsigned count = 0, listed, launched;

    CU(cuDeviceGetName(name, sizeof name, driver_device));
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuModuleGetFunctionCount(&count, module));
    REQUIRE(count > 4 && count <= 32, "the module has %u functions", count);
    CU(cuModuleEnumerateFunctions(functions, count, module));
    listed = loaded(functions, count);
    CU(sum(driver_function(module, "shared_sum"), 256));
    launched = loaded(functions, count);
    if (strstr(name, "soft GPU") || listed < count)
        EXPECT(listed == 0 && launched == 1,
               "%u of %u functions are loaded by a list, %u by a launch", listed, count, launched);
    for (unsigned i = 0; i < count; i++)
        asked_when_loaded(functions[i]);
    CU(cuModuleUnload(module));
}

/* The module that a library is in the current context has its variables on that device. */
static void module_here(CUdevice device)
{
    CUmodule module;
    CUdeviceptr table;
    size_t bytes = 0;
    int ordinal = -1, first = 0;

    CU(cuLibraryGetModule(&module, library));
    CU(cuModuleGetGlobal(&table, &bytes, module, "table"));
    CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, table));
    EXPECT(ordinal == device, "the table for device %d is on device %d", device, ordinal);
    CU(cuMemcpyDtoH(&first, table, sizeof first));
    EXPECT(first == 1 && bytes == 64, "the table has %zu bytes and begins with %d", bytes, first);
}

/* What is set for one device is not set for another. */
static void another_device(CUfunction f)
{
    CUcontext context;
    CUfunction there;
    CUdevice other = driver_device + 1;
    int count, value = -1;

    module_here(driver_device);
    CU(cuDeviceGetCount(&count));
    if (other >= count)
        return;
    CU(cuKernelSetAttribute(MOST, 3072, kernel, driver_device));
    CU(cuDevicePrimaryCtxRetain(&context, other));
    CU(cuCtxSetCurrent(context));
    CU(cuKernelGetAttribute(&value, MOST, kernel, other));
    EXPECT(value != 3072, "the other device has the limit, too");
    CU(cuKernelSetAttribute(MOST, 2048, kernel, other));
    CU(cuKernelGetFunction(&there, kernel));
    EXPECT(there != f, "a kernel is one function in two contexts");
    EXPECT(of_function(there, MOST) == 2048, "there the limit is %d", of_function(there, MOST));
    CU_GIVES(CUDA_SUCCESS, sum(there, 256));
    CU_GIVES(CUDA_SUCCESS, sum((CUfunction)kernel, 256));
    module_here(other);
    CU(cuCtxSetCurrent(driver_context));
    CU(cuDevicePrimaryCtxRelease(other));
    EXPECT(of_kernel(MOST) == 3072, "here the limit is %d", of_kernel(MOST));
    module_here(driver_device);
}

static void global_here(void)
{
    CUdeviceptr scale;
    float first = 0;

    CU(cuLibraryGetGlobal(&scale, NULL, library, "scale_of_all"));
    CU(cuMemcpyDtoH(&first, scale, sizeof first));
    EXPECT(first == 1, "the variable is %g", first);
}

/* A library outlives contexts; what its kernels were in one does not. */
static void another_context(void)
{
    CUfunction f;
    CUdeviceptr in_the_way;
    size_t stack = 0, usual;

    CU(cuCtxGetLimit(&usual, CU_LIMIT_STACK_SIZE));
    CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2 * usual));
    CU(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    EXPECT(stack >= 2 * usual, "the stack is %zu, set to %zu", stack, 2 * usual);
    global_here();
    CU(cuDevicePrimaryCtxRelease(driver_device));
    CU(cuDevicePrimaryCtxRetain(&driver_context, driver_device));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuMemAlloc(&in_the_way, 8 << 20)); /* so that variables get another place */
    CU(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    EXPECT(stack == usual, "the new context's stack is %zu, not %zu", stack, usual);
    CU(cuKernelGetFunction(&f, kernel));
    global_here();
    module_here(driver_device);
    CU_GIVES(CUDA_SUCCESS, sum(f, 256));
    CU_GIVES(CUDA_SUCCESS, sum((CUfunction)kernel, 256));
    CU(cuKernelSetAttribute(MOST, 4096, kernel, driver_device));
    EXPECT(of_function(f, MOST) == 4096, "the function's limit is %d", of_function(f, MOST));
}

int main(void)
{
    CUfunction f, again;

    driver_start();
    CU(cuDeviceGetAttribute(&opt_in, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                            driver_device));
    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, library, "shared_sum"));
    CU(cuKernelGetFunction(&f, kernel));
    CU(cuKernelGetFunction(&again, kernel));
    EXPECT(f == again, "a kernel has two functions in one context");
    same_at_first(f);
    set_on_kernel(f);
    set_on_function(f);
    refused(f);
    launches(f);
    launches_by_the_kernel();
    lists_load_nothing();
    another_device(f);
    another_context();
    CU(cuLibraryUnload(library));
    driver_stop();
    return finish("driver_attributes");
}
