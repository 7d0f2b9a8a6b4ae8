/*
 * Devices of two hosts in one process. The argument says how many devices the first
 * host has; all the others are the second one's.
 */
#include "driver.h"

#include <pthread.h>

enum { MOST = 8, N = 1000 };

static int devices, first_of_second;
static CUcontext contexts[MOST];
static CUmodule modules[MOST];
static CUdeviceptr memory[MOST];
static CUstream streams[MOST];

static void list_devices(void)
{
    CU(cuDeviceGetCount(&devices));
    REQUIRE(devices <= MOST && first_of_second < devices, "%d devices", devices);
    for (int i = 0; i < devices; i++) {
        CUuuid a, b;
        char bus[32], other[32];
        CUdevice found;
        CU(cuDeviceGetUuid_v2(&a, i));
        CU(cuDeviceGetPCIBusId(bus, sizeof bus, i));
        CU(cuDeviceGetByPCIBusId(&found, bus));
        EXPECT(found == i, "%s is device %d, expected %d", bus, found, i);
        int domain;
        CU(cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, i));
        EXPECT(strtol(bus, NULL, 16) == domain, "%s is in domain %d", bus, domain);
        for (int j = 0; j < i; j++) {
            CU(cuDeviceGetUuid_v2(&b, j));
            CU(cuDeviceGetPCIBusId(other, sizeof other, j));
            EXPECT(memcmp(&a, &b, sizeof a) != 0, "devices %d and %d have one UUID", i, j);
            EXPECT(strcmp(bus, other) != 0, "devices %d and %d are both at %s", i, j, bus);
        }
    }
    CUdevice none;
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&none, devices));
}

static void peers(void)
{
    int value = -1, same = -1, last = devices - 1;
    CU(cuDeviceCanAccessPeer(&value, 0, last));
    EXPECT(value == 0, "a device of one host reaches one of another");
    CU(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, last, 0));
    EXPECT(value == 0, "access over hosts: %d", value);
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&value, 0, devices));
    CU(cuCtxSetCurrent(contexts[0]));
    CU_GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(contexts[last], 0));
    CU_GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(contexts[last]));
    if (first_of_second > 1) {
        CU(cuDeviceCanAccessPeer(&value, 0, 1));
        CU(cuDeviceCanAccessPeer(&same, first_of_second, last));
        EXPECT(value == same, "within the hosts: %d and %d", value, same);
    }
}

/* Contexts are switched in one thread, whatever their host. */
static void open_all(void)
{
    for (int i = 0; i < devices; i++) {
        CUdevice device;
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i));
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuCtxGetDevice(&device));
        EXPECT(device == i, "device %d, expected %d", device, i);
        CU(cuModuleLoadData(&modules[i], kernels_ptx));
        CU(cuMemAlloc(&memory[i], N * sizeof(int)));
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        CU(cuStreamGetDevice(streams[i], &device));
        EXPECT(device == i, "the stream is of device %d, expected %d", device, i);
    }
}

static void addresses(void)
{
    for (int i = 0; i < devices; i++) {
        int ordinal = -1;
        CUcontext context = NULL;
        CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory[i]));
        CU(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, memory[i]));
        EXPECT(ordinal == i && context == contexts[i], "device %d, expected %d", ordinal, i);
        for (int j = 0; j < i; j++)
            EXPECT(memory[i] >> 40 != memory[j] >> 40, "devices %d and %d share a window", i, j);
    }
}

static void add_one(int device, CUdeviceptr values, int n, CUstream stream)
{
    void *arguments[] = {&values, &n};
    CU(cuLaunchKernel(driver_function(modules[device], "increment"), (unsigned)(n + 127) / 128, 1,
                      1, 128, 1, 1, 0, stream, arguments, NULL));
}

static void expect_all(CUdeviceptr values, int expected, const char *what)
{
    static __thread int host[N];
    CU(cuMemcpyDtoH(host, values, sizeof host));
    for (int i = 0; i < N; i++)
        if (host[i] != expected) {
            EXPECT(host[i] == expected, "%s: [%d] is %d, expected %d", what, i, host[i], expected);
            return;
        }
}

/* Work goes round the devices, so that each call finds another host's context current. */
static void work_in_turns(void)
{
    for (int i = 0; i < devices; i++) {
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuMemsetD32Async(memory[i], 10u * (unsigned)i, N, streams[i]));
    }
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < devices; i++) {
            CU(cuCtxPushCurrent(contexts[i]));
            add_one(i, memory[i], N, streams[i]);
            CU(cuCtxPopCurrent(NULL));
        }
    for (int i = devices; i-- > 0;) {
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuStreamSynchronize(streams[i]));
        expect_all(memory[i], 10 * i + 5, "in turns");
    }
}

/* Streams, events and memory may be named while another host's context is current. */
static void named_from_elsewhere(void)
{
    int here = 0, there = devices - 1;
    CUevent event;
    CU(cuCtxSetCurrent(contexts[there]));
    CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
    CU(cuCtxSetCurrent(contexts[here]));
    CU(cuEventRecord(event, streams[there]));
    CU(cuEventSynchronize(event));
    CU(cuEventQuery(event));
    CU(cuStreamSynchronize(streams[there]));
    CU(cuStreamQuery(streams[there]));

    int *host = calloc(N, sizeof *host);
    for (int i = 0; i < N; i++)
        host[i] = 77;
    CU(cuMemcpyHtoD(memory[there], host, N * sizeof *host));
    expect_all(memory[there], 77, "copied from elsewhere");
    CU(cuMemsetD32(memory[there], 78, N));
    expect_all(memory[there], 78, "set from elsewhere");
    CU(cuMemsetD32Async(memory[there], 79, N, streams[here]));
    CU(cuMemcpyDtoHAsync(host, memory[there], N * sizeof *host, streams[here]));
    CU(cuStreamSynchronize(streams[here]));
    EXPECT(host[0] == 79 && host[N - 1] == 79, "on another host's stream: %d", host[0]);
    CU(cuMemcpy(memory[there], (CUdeviceptr)(size_t)host, N * sizeof *host));
    CUdeviceptr more, more_there;
    CU(cuMemAlloc(&more, 64));
    CU(cuCtxSetCurrent(contexts[there]));
    CU(cuMemFree(more));
    CU(cuMemAlloc(&more_there, N * sizeof(int)));
    CU(cuCtxSetCurrent(contexts[here]));
    CU(cuMemcpyDtoD(more_there, memory[there], N * sizeof(int)));
    expect_all(more_there, 79, "within the other host");
    CU(cuMemFree(more_there));
    CU(cuEventDestroy(event));
    free(host);
}

/* What CUDA says of a handle of another context. */
static void wrong_host(void)
{
    int here = 0, there = devices - 1, n = N;
    CUevent event;
    CUfunction f = driver_function(modules[here], "increment");
    void *arguments[] = {&memory[here], &n};
    CU(cuCtxSetCurrent(contexts[here]));
    CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, streams[there]));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE,
             cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, streams[there], arguments, NULL));
    CU(cuCtxSetCurrent(contexts[there]));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE,
             cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(streams[there], memory[here], 1, 0));
    CU(cuEventDestroy(event));
    CU(cuCtxSynchronize());
}

/* A library is the process's: loaded once, its kernels run on every device. */
static void one_library(void)
{
    CUlibrary library;
    CUkernel kernel;
    int n = N, threads;
    CU(cuCtxSetCurrent(contexts[0]));
    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, library, "increment"));
    for (int i = devices; i-- > 0;) {
        CUfunction function;
        CUmodule module;
        CUdeviceptr table;
        size_t bytes;
        void *arguments[] = {&memory[i], &n};
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuMemsetD32(memory[i], 0, N));
        CU(cuLaunchKernel((CUfunction)kernel, 8, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
        CU(cuKernelGetFunction(&function, kernel));
        CU(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
        CU(cuLibraryGetModule(&module, library));
        CU(cuModuleGetFunction(&function, module, "increment"));
        CU(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
        CU(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, i));
        EXPECT(threads >= 128, "%d threads", threads);
        CU(cuLibraryGetGlobal(&table, &bytes, library, "table"));
        expect_all(memory[i], 3, "a library's kernel");
    }
    CU(cuLibraryUnload(library));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetKernel(&kernel, library, "increment"));
}

static void expect_on(int device, CUdeviceptr at, const char *what)
{
    int ordinal = -1;
    CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    EXPECT(ordinal == device, "%s is on device %d, expected %d", what, ordinal, device);
}

/* Memory lies where it was made, whatever context is current when it is mapped or allocated. */
static void of_another_device(int i, CUmemGenericAllocationHandle handle, CUdeviceptr at,
                              size_t size, CUmemoryPool pool)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, i}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int beside = i < first_of_second
                     ? (i + 1) % first_of_second
                     : first_of_second + (i + 1 - first_of_second) % (devices - first_of_second);
    int remote = i < first_of_second ? devices - 1 : 0;
    for (int k = 0; k < 2; k++) {
        CU(cuCtxSetCurrent(contexts[k ? remote : beside]));
        CU(cuMemMap(at, size, 0, handle, 0));
        CU(cuMemSetAccess(at, size, &access, 1));
        expect_on(i, at, "what is mapped elsewhere");
        CU(cuCtxSetCurrent(contexts[remote]));
        CU(cuMemsetD32(at, 7 + k, N));
        CU(cuCtxSetCurrent(contexts[i]));
        expect_all(at, 7 + k, "set from another host");
        CU(cuMemUnmap(at, size));
    }
    CU(cuMemAllocFromPoolAsync(&at, 4 * N, pool, streams[beside]));
    expect_on(i, at, "memory of a pool, by a stream of another device,");
    CU(cuMemFreeAsync(at, streams[beside]));
    CU(cuStreamSynchronize(streams[beside]));
}

/* Ordinals inside structures, both ways. */
static void locations(void)
{
    for (int i = 0; i < devices; i++) {
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, i}};
        CUmemAllocationProp back;
        CUmemGenericAllocationHandle handle;
        CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        size_t size;
        CUdeviceptr at;
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        CU(cuMemCreate(&handle, size, &prop, 0));
        CU(cuMemGetAllocationPropertiesFromHandle(&back, handle));
        EXPECT(back.location.id == i, "allocated on device %d, expected %d", back.location.id, i);
        CU(cuMemAddressReserve(&at, size, 0, 0, 0));
        CU(cuMemMap(at, size, 0, handle, 0));
        CU(cuMemSetAccess(at, size, &access, 1));
        CU(cuMemsetD32(at, 5, N));
        expect_all(at, 5, "mapped");
        CU(cuMemUnmap(at, size));

        CUmemPoolProps pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {CU_MEM_LOCATION_TYPE_DEVICE, i}};
        CUmemoryPool made, usual;
        CU(cuMemPoolCreate(&made, &pool));
        of_another_device(i, handle, at, size, made);
        CU(cuMemAddressFree(at, size));
        CU(cuMemRelease(handle));
        CU(cuDeviceGetDefaultMemPool(&usual, i));
        CU(cuMemAllocFromPoolAsync(&at, 4 * N, made, streams[i]));
        CU(cuMemsetD32Async(at, 6, N, streams[i]));
        CU(cuStreamSynchronize(streams[i]));
        expect_all(at, 6, "from a pool");
        expect_on(i, at, "the pool's memory");
        CU(cuMemFreeAsync(at, streams[i]));
        CU(cuStreamSynchronize(streams[i]));
        CU(cuMemPoolDestroy(made));
    }
}

static void graphs(void)
{
    for (int i = devices; i-- > 0;) {
        CUgraph graph;
        CUgraphExec exec;
        CUgraphNode nodes[4];
        CUgraphNodeType type;
        size_t count = 4;
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuMemsetD32(memory[i], 0, N));
        CU(cuCtxSynchronize());
        CU(cuStreamBeginCapture(streams[i], CU_STREAM_CAPTURE_MODE_RELAXED));
        add_one(i, memory[i], N, streams[i]);
        add_one(i, memory[i], N, streams[i]);
        CU(cuStreamEndCapture(streams[i], &graph));
        CU(cuGraphGetNodes(graph, nodes, &count));
        EXPECT(count == 2, "%zu nodes", count);
        CU(cuGraphNodeGetType(nodes[0], &type));
        EXPECT(type == CU_GRAPH_NODE_TYPE_KERNEL, "type %d", type);
        CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
        int elsewhere = i < first_of_second ? devices - 1 : 0;
        CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, streams[elsewhere]));
        for (int k = 0; k < 3; k++)
            CU(cuGraphLaunch(exec, streams[i]));
        CU(cuStreamSynchronize(streams[i]));
        expect_all(memory[i], 6, "a graph");
        CU(cuGraphExecDestroy(exec));
        CU(cuGraphDestroy(graph));
    }
}

static int called[MOST];

static void CUDA_CB call(void *argument)
{
    __sync_fetch_and_add(&called[(size_t)argument], 1);
}

/* A pinned buffer serves copies of every host, and host functions run for each. */
static void host_side(void)
{
    int *pinned;
    CU(cuCtxSetCurrent(contexts[0]));
    CU(cuMemHostAlloc((void **)&pinned, N * sizeof *pinned, CU_MEMHOSTALLOC_PORTABLE));
    for (int i = 0; i < devices; i++) {
        CU(cuCtxSetCurrent(contexts[i]));
        for (int k = 0; k < N; k++)
            pinned[k] = 3 * i + k % 7;
        CU(cuMemcpyHtoDAsync(memory[i], pinned, N * sizeof *pinned, streams[i]));
        add_one(i, memory[i], N, streams[i]);
        CU(cuLaunchHostFunc(streams[i], call, (void *)(size_t)i));
        CU(cuMemcpyDtoHAsync(pinned, memory[i], N * sizeof *pinned, streams[i]));
        CU(cuStreamSynchronize(streams[i]));
        EXPECT(called[i] == 1, "the host function of device %d ran %d times", i, called[i]);
        for (int k = 0; k < N; k++)
            REQUIRE(pinned[k] == 3 * i + k % 7 + 1, "device %d: [%d] is %d", i, k, pinned[k]);
    }
    CU(cuMemFreeHost(pinned));
}

static void *one_thread(void *argument)
{
    int device = (int)(size_t)argument;
    CU(cuCtxSetCurrent(contexts[device]));
    CU(cuMemsetD32(memory[device], 0, N));
    CU(cuStreamSynchronize(NULL));
    for (int i = 0; i < 50; i++) {
        add_one(device, memory[device], N, streams[device]);
        if (i % 5 == 0)
            CU(cuStreamSynchronize(streams[device]));
    }
    CU(cuStreamSynchronize(streams[device]));
    expect_all(memory[device], 50, "a thread");
    return NULL;
}

static void threads(void)
{
    pthread_t each[MOST];
    for (int i = 0; i < devices; i++)
        pthread_create(&each[i], NULL, one_thread, (void *)(size_t)i);
    for (int i = 0; i < devices; i++)
        pthread_join(each[i], NULL);
}

int main(int argc, char **argv)
{
    first_of_second = argc > 1 ? atoi(argv[1]) : 1;
    CU(cuInit(0));
    list_devices();
    open_all();
    addresses();
    peers();
    work_in_turns();
    named_from_elsewhere();
    wrong_host();
    one_library();
    locations();
    graphs();
    host_side();
    threads();
    for (int i = 0; i < devices; i++)
        CU(cuDevicePrimaryCtxRelease(i));
    return finish("driver_hosts");
}
