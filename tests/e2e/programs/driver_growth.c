/*
 * Memory that the driver takes by itself, under a limit: modules' and libraries'
 * variables, graphs' memory nodes, threads' local memory. What fits is counted and given
 * back; what does not is refused, and takes nothing from what was free before.
 *
 * `driver_growth`, under a limit well below the device's memory.
 */
#include "driver.h"

#include <string.h>

#define MIB ((size_t)1 << 20)

static size_t total;

static size_t free_now(void)
{
    size_t left;
    CU(cuMemGetInfo(&left, &total));
    return left;
}

/* A kernel that reads a variable of so many bytes, or has so much local memory. */
static const char *ptx(size_t variable, size_t local)
{
    static char text[2048];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_80\n.address_size 64\n"
             ".visible .global .align 8 .b8 big[%zu];\n"
             ".visible .entry touch(.param .u64 at, .param .u64 out)\n{\n"
             "    .local .align 8 .b8 own[%zu];\n"
             "    .reg .b64 %%rd<8>;\n    .reg .b32 %%r<4>;\n"
             "    ld.param.u64 %%rd1, [at];\n    ld.param.u64 %%rd2, [out];\n"
             "    mov.u64 %%rd3, big;\n    add.u64 %%rd3, %%rd3, %%rd1;\n"
             "    ld.global.u8 %%r1, [%%rd3];\n"
             "    mov.u64 %%rd4, own;\n    add.u64 %%rd4, %%rd4, %%rd1;\n"
             "    st.local.u8 [%%rd4], %%r1;\n    st.local.u8 [own], %%r1;\n"
             "    ld.local.u8 %%r2, [%%rd4];\n    st.global.u32 [%%rd2], %%r2;\n    ret;\n}\n",
             variable, local);
    return text;
}

static CUresult launch(CUfunction f)
{
    CUdeviceptr out;
    unsigned long long at = 0;
    void *parameters[] = {&at, &out};
    CU(cuMemAlloc(&out, 4));
    CUresult r = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    CUresult later = cuCtxSynchronize();
    CU(cuMemFree(out));
    return r != CUDA_SUCCESS ? r : later;
}

static void modules(size_t left)
{
    CUmodule module;
    CUdeviceptr at;
    size_t bytes;
    CU(cuModuleLoadData(&module, ptx(left / 4, 8)));
    CU(launch(driver_function(module, "touch")));
    CU(cuModuleGetGlobal(&at, &bytes, module, "big"));
    EXPECT(bytes == left / 4, "the variable has %zu bytes, not %zu", bytes, left / 4);
    EXPECT(free_now() <= left - left / 4 + MIB, "%zu of %zu are free with a variable of %zu",
           free_now(), left, left / 4);
    CU(cuModuleUnload(module));
    EXPECT(free_now() + 8 * MIB >= left, "%zu of %zu are free without it", free_now(), left);

    /* the refusal may come with the load or, where drivers put it off, with the first use */
    CUresult r = cuModuleLoadData(&module, ptx(left + 128 * MIB, 8));
    if (r == CUDA_SUCCESS) {
        CUfunction f;
        r = cuModuleGetFunction(&f, module, "touch");
    }
    EXPECT(r == CUDA_ERROR_OUT_OF_MEMORY, "a module over the limit gave %s", driver_name(r));
    EXPECT(free_now() + 8 * MIB >= left, "%zu of %zu are free after it", free_now(), left);
}

static void libraries(size_t left)
{
    CUlibrary library;
    CUkernel kernel = NULL;
    CUresult r = cuLibraryLoadData(&library, ptx(left + 128 * MIB, 8), NULL, NULL, 0, NULL, NULL,
                                   0);
    if (r == CUDA_SUCCESS)
        r = cuLibraryGetKernel(&kernel, library, "touch");
    if (r == CUDA_SUCCESS)
        r = launch((CUfunction)kernel);
    EXPECT(r == CUDA_ERROR_OUT_OF_MEMORY, "a library over the limit gave %s", driver_name(r));
    EXPECT(free_now() + 8 * MIB >= left, "%zu of %zu are free after it", free_now(), left);
}

static CUresult make_array(CUarray *array, size_t bytes)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {
        .Width = 16384, .Height = bytes >> 18, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    return cuArray3DCreate(array, &d);
}

static void arrays(size_t left)
{
    const CUDA_ARRAY3D_DESCRIPTOR levels = {.Width = 16384,
                                            .Height = (left / 8 * 7) >> 18,
                                            .Format = CU_AD_FORMAT_FLOAT,
                                            .NumChannels = 4};
    CUarray one, other;
    CUmipmappedArray mipmap;
    CUdeviceptr memory;
    CU(make_array(&one, left / 2));
    EXPECT(free_now() <= left - left / 2 + MIB, "%zu of %zu are free with an array of %zu",
           free_now(), left, left / 2);
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, make_array(&other, left / 2 + 16 * MIB));
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&memory, left / 2 + 16 * MIB));
    CU(cuArrayDestroy(one));
    EXPECT(free_now() + 8 * MIB >= left, "%zu of %zu are free without it", free_now(), left);
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, make_array(&one, left + 128 * MIB));
    /* its first level fits, and all of them together do not */
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMipmappedArrayCreate(&mipmap, &levels, 15));
    EXPECT(free_now() + 8 * MIB >= left, "%zu of %zu are free after it", free_now(), left);
}

static CUresult run_graph(size_t bytes)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CUresult captured = cuMemAllocAsync(&at, bytes, stream);
    if (captured == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) { /* a driver without such nodes */
        cuStreamEndCapture(stream, &graph);
        CU(cuStreamDestroy(stream));
        return captured;
    }
    CU(captured);
    CU(cuMemsetD8Async(at, 1, 4096, stream));
    CU(cuMemFreeAsync(at, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CUresult r = cuGraphInstantiate(&exec, graph, 0);
    if (r == CUDA_SUCCESS) {
        r = cuGraphLaunch(exec, stream);
        CUresult later = cuStreamSynchronize(stream);
        r = r != CUDA_SUCCESS ? r : later;
        CU(cuGraphExecDestroy(exec));
    }
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
    CU(cuDeviceGraphMemTrim(driver_device));
    return r;
}

static void graphs(size_t left)
{
    CU_GIVES(CUDA_SUCCESS, run_graph(left / 4));
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, run_graph(left + 128 * MIB));
    EXPECT(free_now() + 8 * MIB >= left, "%zu of %zu are free after a graph", free_now(), left);
}

/* Every thread that the device can hold gets as much, from the first launch on. */
static void local_memory(size_t left)
{
    CUmodule module;
    int processors, threads;
    CU(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, driver_device));
    CU(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                            driver_device));
    size_t most = left / ((size_t)processors * (size_t)threads) + 64 * 1024;
    if (most > 500 * 1024)
        return; /* no kernel may have so much */
    CU(cuModuleLoadData(&module, ptx(8, most / 8 * 8)));
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, launch(driver_function(module, "touch")));
    EXPECT(free_now() + 8 * MIB >= left, "%zu of %zu are free after it", free_now(), left);
    CU(cuModuleUnload(module));
}

int main(void)
{
    driver_start();
    CUdeviceptr first; /* what comes with the first allocation and launch is there */
    CU(cuMemAlloc(&first, MIB));
    CUmodule module;
    CU(cuModuleLoadData(&module, ptx(8, 8)));
    CU(launch(driver_function(module, "touch")));
    CUresult nodes = run_graph(MIB);
    EXPECT(nodes == CUDA_SUCCESS || nodes == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
           "a graph that allocates gave %s", driver_name(nodes));
    size_t left = free_now();
    REQUIRE(left >= 32 * MIB, "only %zu bytes are free", left);
    modules(left);
    libraries(left);
    arrays(left);
    if (nodes == CUDA_SUCCESS)
        graphs(left);
    local_memory(left);
    CU(cuModuleUnload(module));
    CU(cuMemFree(first));
    driver_stop();
    return finish("driver_growth");
}
