/* What programs ask of devices, contexts, functions, streams and graphs, each once. */
#include "driver.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Of cudaProfiler.h, which not every set of headers has. */
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

static void of_the_device(void)
{
    CUdevprop p;
    int major, minor, want_major, want_minor, threads, affinity;
    char luid[8];
    unsigned mask;
    CU(cuDeviceComputeCapability(&major, &minor, driver_device));
    CU(cuDeviceGetAttribute(&want_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                            driver_device));
    CU(cuDeviceGetAttribute(&want_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                            driver_device));
    EXPECT(major == want_major && minor == want_minor, "the device is %d.%d and %d.%d", major,
           minor, want_major, want_minor);
    CU(cuDeviceGetProperties(&p, driver_device));
    CU(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, driver_device));
    EXPECT(p.maxThreadsPerBlock == threads, "a block has %d and %d threads", p.maxThreadsPerBlock,
           threads);
    CU(cuDeviceGetExecAffinitySupport(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT, driver_device));
    EXPECT(affinity == 0 || affinity == 1, "the affinity is %d", affinity);
    CUresult r = cuDeviceGetLuid(luid, &mask, driver_device); /* a matter of Windows */
    EXPECT(r != CUDA_ERROR_NOT_INITIALIZED, "cuDeviceGetLuid gave %s", driver_name(r));
}

static void of_the_context(void)
{
    unsigned flags = 0;
    CUsharedconfig config;
    CUcontext own = NULL;
    CU(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
    CU(cuCtxGetFlags(&flags));
    EXPECT((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC, "the flags are %u", flags);
    CU(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
    CU(cuCtxGetSharedMemConfig(&config));
    EXPECT((int)config >= 0 && config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE,
           "the width of banks is %d", (int)config);
    CU(cuCtxResetPersistingL2Cache());
    CU(cuCtxSynchronize());
    CU(cuCtxCreate(&own, NULL, 0, driver_device));
    CU(cuCtxDestroy(own));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuProfilerStart());
    CU(cuProfilerStop());
}

static void of_a_function(CUmodule module)
{
    CUfunction f = driver_function(module, "mixed_parameters");
    CUmodule of = NULL;
    const char *name = NULL;
    size_t offset, size;
    int blocks = 0, threads = 0, cluster = 0;
    CU(cuFuncGetModule(&of, f));
    EXPECT(of == module, "it is another module's");
    CU(cuFuncGetName(&name, f));
    EXPECT(strcmp(name, "mixed_parameters") == 0, "its name is '%s'", name);
    CU(cuFuncGetParamInfo(f, 3, &offset, &size));
    EXPECT(offset == 16 && size == 24, "parameter 3 has %zu bytes at %zu", size, offset);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 6, &offset, &size));
    CU(cuFuncSetSharedMemConfig(f, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
    CU(cuOccupancyMaxPotentialBlockSizeWithFlags(&blocks, &threads, f, NULL, 0, 0, 0));
    EXPECT(blocks > 0 && threads > 0, "%d blocks of %d threads", blocks, threads);
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 32,
                             .blockDimY = 1,
                             .blockDimZ = 1};
    CUresult r = cuOccupancyMaxPotentialClusterSize(&cluster, f, &config);
    EXPECT(r != CUDA_SUCCESS || cluster > 0, "a cluster of %d", cluster);
}

static void launched(CUmodule module)
{
    CUdeviceptr values;
    CUstream stream, other;
    CUstreamCaptureStatus status;
    CUgraph graph;
    CUgraphExec runnable;
    cuuint64_t id;
    int n = 8, host[8];
    void *parameters[] = {&values, &n};
    CUfunction f = driver_function(module, "increment");
    CU(cuMemAlloc(&values, sizeof host));
    CU(cuMemsetD32(values, 40, 8));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuCtxSynchronize());
    CU(cuLaunchCooperativeKernel(f, 1, 1, 1, 8, 1, 1, 0, stream, parameters));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, 0, stream, parameters, NULL));
    CU(cuStreamIsCapturing(stream, &status));
    CU(cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the capture is in state %d", (int)status);
    CU(cuStreamEndCapture(stream, &graph));
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.hUploadStream = stream};
    CU(cuGraphInstantiateWithParams(&runnable, graph, &how));
    EXPECT(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS, "it says %d", (int)how.result_out);
    CU(cuGraphLaunch(runnable, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(host, values, sizeof host));
    for (int i = 0; i < n; i++)
        EXPECT(host[i] == 42, "value %d is %d", i, host[i]);
    CUstreamAttrValue set = {.syncPolicy = CU_SYNC_POLICY_YIELD}, got = {.syncPolicy = 0};
    CU(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &set));
    CU(cuStreamCopyAttributes(other, stream));
    CU(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got));
    EXPECT(got.syncPolicy == CU_SYNC_POLICY_YIELD, "the policy is %d", (int)got.syncPolicy);
    CU(cuGraphExecDestroy(runnable));
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(other));
    CU(cuStreamDestroy(stream));
    CU(cuMemFree(values));
}

static void of_a_pool(void)
{
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CUmemAccessDesc access = {props.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccess_flags flags;
    CU(cuMemPoolCreate(&pool, &props));
    CU(cuMemPoolSetAccess(pool, &access, 1));
    CU(cuMemPoolGetAccess(&flags, pool, &access.location));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "the access is %d", (int)flags);
    CU(cuMemPoolDestroy(pool));
    props.allocType =
        CU_MEM_ALLOCATION_TYPE_MANAGED; /* a driver's would be the worker's to touch */
    CU_REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuMemPoolCreate(&pool, &props));
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_HOST;
    CU_REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuMemPoolCreate(&pool, &props));
}

/* A driver ends the process that asks for a wide map of rank 5. */
static void of_a_wide_tensor_map(void)
{
    const cuuint64_t size[5] = {64, 32, 32, 8, 4}, stride[4] = {128, 4096, 131072, 1048576};
    const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuTensorMapEncodeIm2colWide(
                   &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, (void *)4096, size, stride, -1, 1, 64,
                   128, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

static void of_a_tensor_map(void)
{
    CUtensorMap map, moved;
    CUdeviceptr memory;
    const cuuint64_t size[2] = {64, 64}, pitch[1] = {256};
    const cuuint32_t box[2] = {16, 16}, step[2] = {1, 1};
    CU(cuMemAlloc(&memory, 1 << 16));
    CUresult r = cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)memory,
                                        size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memset(&moved, 0, sizeof moved);
    if (r != CUDA_SUCCESS) { /* GPUs before 9.0 */
        EXPECT(r == CUDA_ERROR_NOT_SUPPORTED, "cuTensorMapEncodeTiled gave %s", driver_name(r));
        EXPECT(cuTensorMapReplaceAddress(&moved, (void *)memory) != CUDA_SUCCESS,
               "a map that is none gets an address");
        CU(cuMemFree(memory));
        return;
    }
    moved = map;
    CU(cuTensorMapReplaceAddress(&moved, (void *)(memory + 4096)));
    EXPECT(memcmp(&map, &moved, sizeof map) != 0, "the map has the address that it had");
    CU(cuTensorMapReplaceAddress(&moved, (void *)memory));
    EXPECT(memcmp(&map, &moved, sizeof map) == 0, "the map differs though its address does not");
    CU(cuMemFree(memory));
}

/* A local driver has what its environment says: that much is the same everywhere. */
static void of_core_dumps(void)
{
    bool on = true;
    int flags = -1;
    size_t size = 0, bool_size = sizeof on, flag_size = sizeof flags, short_size = 4;
    char name[1024] = "?";
    CU(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &bool_size));
    EXPECT(!on, "core dumps are made");
    CU(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &flag_size));
    EXPECT(flags == CU_COREDUMP_DEFAULT_FLAGS, "dumps leave %#x out", (unsigned)flags);
    CU(cuCoredumpGetAttribute(CU_COREDUMP_FILE, NULL, &size));
    EXPECT(size > 0 && size <= sizeof name, "a name has %zu bytes", size);
    size = sizeof name;
    CU(cuCoredumpGetAttribute(CU_COREDUMP_FILE, name, &size));
    EXPECT(!*name, "the file is %s", name);
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuCoredumpGetAttribute(CU_COREDUMP_PIPE, name, &short_size));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuCoredumpGetAttribute(CU_COREDUMP_FILE, name, NULL));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuCoredumpGetAttribute((CUcoredumpSettings)99, name, &size));
    CU_REFUSED(CUDA_ERROR_NOT_SUPPORTED,
               cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &(bool){true}, &bool_size));
}

static void of_nobody(void)
{
    const CUuuid unknown = {{0}};
    const void *table = NULL;
    CUresult r = cuGetExportTable(&table, &unknown);
    EXPECT(r != CUDA_SUCCESS, "a table that nobody has is given");
}

/* What cuBLASLt asks for: it looks at the arrays, and not at the result. */
static void of_clusters(void)
{
    const CUuuid uuid = {{0x17, 0x34, (char)0xdc, 0x26, (char)0x80, 0x0d, 0x47, 0x45, (char)0x86,
                          (char)0x96, (char)0xc0, (char)0xf1, (char)0xe7, (char)0xdd, (char)0x8b,
                          (char)0xca}};
    const void *table = NULL;
    unsigned char *gpc = NULL, *index = NULL;
    size_t size = 0;
    if (cuGetExportTable(&table, &uuid) == CUDA_SUCCESS)
        memcpy(&size, table, sizeof size);
    if (size != 17 * sizeof(void *)) /* another driver's */
        return;
    CUresult (*get)(unsigned char **, unsigned char **);
    memcpy(&get, (const char *)table + 4 * sizeof(void *), sizeof get);
    CUresult r = get(&gpc, &index);
    EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_SUPPORTED, "the clusters are an error");
    EXPECT(gpc && index && gpc[0] < 64 && index[0] < 64, "the clusters cannot be read");
}

int main(void)
{
    CUmodule module;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    of_the_device();
    of_the_context();
    of_a_function(module);
    launched(module);
    of_a_pool();
    of_a_tensor_map();
    of_a_wide_tensor_map();
    of_core_dumps();
    of_nobody();
    of_clusters();
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_queries");
}
