/*
 * What a context takes along when it ends: all that was allocated in it, and nothing of another
 * context's, on the same device too.
 */
#include "driver.h"

enum { ROUNDS = 6, WORDS = 1024 };

static CUdevice device;

static CUcontext context_new(void)
{
    CUcontext context;
    CU(cuCtxCreate(&context, NULL, 0, device));
    return context;
}

/* What the primary context's end left in peace. */
struct other {
    CUcontext context;
    CUdeviceptr memory, managed, copied;
    unsigned host[WORDS]; /* not pinned: the graph's copy has a buffer beside the GPU */
    CUgraphExec exec;
    CUstream stream;
};

static void other_graph(struct other *o)
{
    CUgraph graph;
    CU(cuStreamCreate(&o->stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(o->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemcpyHtoDAsync(o->copied, o->host, sizeof o->host, o->stream));
    CU(cuStreamEndCapture(o->stream, &graph));
    CU(cuGraphInstantiate(&o->exec, graph, 0));
    CU(cuGraphDestroy(graph));
}

static void other_new(struct other *o)
{
    o->context = context_new();
    CU(cuMemAlloc(&o->memory, sizeof o->host));
    CU(cuMemAlloc(&o->copied, sizeof o->host));
    CU(cuMemAllocManaged(&o->managed, sizeof o->host, CU_MEM_ATTACH_GLOBAL));
    CU(cuMemsetD32(o->memory, 77, WORDS));
    CU(cuMemsetD32(o->managed, 78, WORDS));
    other_graph(o);
}

static void other_expect(struct other *o)
{
    unsigned got[WORDS];
    CU(cuCtxSetCurrent(o->context));
    CU(cuMemcpyDtoH(got, o->memory, sizeof got));
    EXPECT(got[WORDS - 1] == 77, "memory of another context holds %u", got[WORDS - 1]);
    CU(cuMemcpyDtoH(got, o->managed, sizeof got));
    EXPECT(got[WORDS - 1] == 78, "managed memory of another context holds %u", got[WORDS - 1]);
    for (unsigned i = 0; i < WORDS; i++)
        o->host[i] = i + 5;
    CU(cuGraphLaunch(o->exec, o->stream));
    CU(cuStreamSynchronize(o->stream));
    CU(cuMemcpyDtoH(got, o->copied, sizeof got));
    EXPECT(got[WORDS - 1] == WORDS + 4, "its graph copied %u", got[WORDS - 1]);
}

/* Of a kind each; the graph makes the primary context one that has buffers for it, too. */
static CUdeviceptr primary_use(CUcontext primary)
{
    static struct other mine;
    CUdeviceptr managed;
    CU(cuCtxSetCurrent(primary));
    CU(cuMemAlloc(&mine.memory, sizeof mine.host));
    CU(cuMemAlloc(&mine.copied, sizeof mine.host));
    CU(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    other_graph(&mine);
    CU(cuGraphLaunch(mine.exec, mine.stream));
    return mine.memory;
}

static void primary_ends(bool reset)
{
    static struct other other;
    CUcontext primary;
    unsigned got;
    other_new(&other);
    CU(cuDevicePrimaryCtxRetain(&primary, device));
    CUdeviceptr memory = primary_use(primary);
    CU(reset ? cuDevicePrimaryCtxReset(device) : cuDevicePrimaryCtxRelease(device));
    other_expect(&other);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&got, memory, sizeof got));
    CU(cuCtxDestroy(other.context));
}

/* Each takes a quarter of the device, and frees nothing. */
static void memory_goes_along(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        size_t rest, all;
        CUdeviceptr memory, small, managed;
        CUcontext context = context_new();
        CU(cuMemGetInfo(&rest, &all));
        CUresult r = cuMemAlloc(&memory, all / 4);
        REQUIRE(r == CUDA_SUCCESS, "context %d: %s with %zu of %zu bytes free", i, driver_name(r),
                rest, all);
        CU(cuMemAlloc(&small, 3000));
        CU(cuMemAllocManaged(&managed, all / 8, CU_MEM_ATTACH_GLOBAL));
        CU(cuMemsetD8Async(memory, 1, all / 4, NULL));
        CU(cuCtxDestroy(context));
    }
}

int main(void)
{
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    primary_ends(false);
    primary_ends(true);
    memory_goes_along();
    return finish("driver_context_memory");
}
