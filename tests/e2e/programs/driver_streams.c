/* Streams: priorities, flags, the default streams' order, and host functions in that order. */
#include "driver.h"

enum { NOTES = 32 };

static int notes[NOTES], noted;

static void CUDA_CB note(void *argument)
{
    int at = __sync_fetch_and_add(&noted, 1);
    if (at < NOTES)
        notes[at] = (int)(size_t)argument;
}

static void CUDA_CB note_status(CUstream stream, CUresult status, void *argument)
{
    (void)stream;
    note((void *)((size_t)argument + (status == CUDA_SUCCESS ? 0 : 1000)));
}

/* The host function sees what ran before it, and what runs after it sees its work. */
struct between {
    int *pinned;
    int seen;
};

static void CUDA_CB between(void *argument)
{
    struct between *b = argument;
    b->seen = b->pinned[0];
    b->pinned[0] = b->seen * 10;
}

static void host_functions(CUstream stream)
{
    struct between b;
    CUdeviceptr device;
    int host = 0;

    for (size_t i = 0; i < 10; i++) {
        if (i % 3 == 2)
            CU(cuStreamAddCallback(stream, note_status, (void *)i, 0));
        else
            CU(cuLaunchHostFunc(stream, note, (void *)i));
    }
    CU(cuStreamSynchronize(stream));
    EXPECT(noted == 10, "%d host functions ran, expected 10", noted);
    for (int i = 0; i < 10; i++)
        EXPECT(notes[i] == i, "host function %d ran in place %d", notes[i], i);

    CU(cuMemAlloc(&device, 4));
    CU(cuMemAllocHost((void **)&b.pinned, 4));
    CU(cuMemsetD32Async(device, 21, 1, stream));
    CU(cuMemcpyDtoHAsync(b.pinned, device, 4, stream));
    CU(cuLaunchHostFunc(stream, between, &b));
    CU(cuMemcpyHtoDAsync(device, b.pinned, 4, stream));
    CU(cuMemcpyDtoHAsync(&host, device, 4, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(b.seen == 21, "the host function saw %d, expected 21", b.seen);
    EXPECT(host == 210, "the device got %d, expected 210", host);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(stream, NULL, NULL));
    CU(cuMemFreeHost(b.pinned));
    CU(cuMemFree(device));
}

static void priorities(void)
{
    CUstream stream;
    int least = -99, greatest = -99, value = -99;
    unsigned flags = 99;
    unsigned long long id = 0, id2 = 0;
    CUcontext context = NULL;

    CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    EXPECT(least == 0 && greatest <= 0, "priorities reach from %d to %d", least, greatest);
    CU(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
    CU(cuStreamGetPriority(stream, &value));
    EXPECT(value == greatest, "the priority is %d, expected %d", value, greatest);
    CU(cuStreamGetFlags(stream, &flags));
    EXPECT(flags == CU_STREAM_NON_BLOCKING, "the flags are %u", flags);
    CU(cuStreamGetCtx(stream, &context));
    EXPECT(context == driver_context, "the stream is of another context");
    CU(cuStreamGetId(stream, &id));
    CU(cuStreamGetId(NULL, &id2));
    EXPECT(id != id2, "two streams have the id %llu", id);
    CU(cuStreamDestroy(stream));
    /* Out of range: clamped, not refused. */
    CU(cuStreamCreateWithPriority(&stream, CU_STREAM_DEFAULT, greatest - 100));
    CU(cuStreamGetPriority(stream, &value));
    EXPECT(value == greatest, "the clamped priority is %d, expected %d", value, greatest);
    CU(cuStreamDestroy(stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 0x100));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));
}

/* Work in the legacy default stream orders with a blocking stream on both sides. */
static void default_stream(CUmodule module)
{
    CUfunction step = driver_function(module, "multiply_add");
    CUstream blocking;
    CUdeviceptr device;
    int n = 128, host[128], two = 2, three = 3, five = 5;
    void *first[] = {&device, &n, &two, &three}, *second[] = {&device, &n, &five, &two};

    CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CU(cuMemAlloc(&device, sizeof host));
    CU(cuMemsetD32Async(device, 1, 128, blocking));
    for (int i = 0; i < 3; i++) {
        CU(cuLaunchKernel(step, 1, 1, 1, 128, 1, 1, 0, NULL, first, NULL));
        CU(cuLaunchKernel(step, 1, 1, 1, 128, 1, 1, 0, blocking, second, NULL));
    }
    CU(cuMemcpyDtoH(host, device, sizeof host));
    for (int i = 0, expected = 1; i < 3; i++) {
        expected = (expected * 2 + 3) * 5 + 2;
        if (i == 2)
            EXPECT(host[0] == expected && host[127] == expected,
                   "the order gave %d and %d, expected %d", host[0], host[127], expected);
    }
    /* The two named default streams are streams. */
    CU(cuStreamSynchronize(CU_STREAM_LEGACY));
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    CU(cuStreamQuery(CU_STREAM_LEGACY));
    CU(cuMemFree(device));
    CU(cuStreamDestroy(blocking));
}

/* A thread's own default stream goes with its context; a later one has another. */
static void own_stream_of_a_later_context(void)
{
    for (int i = 1; i <= 3; i++) {
        CUdeviceptr device;
        unsigned char got = 0;
        driver_start();
        CU(cuMemAlloc(&device, 64));
        CU(cuMemsetD8Async(device, (unsigned char)i, 64, CU_STREAM_PER_THREAD));
        CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        CU(cuMemcpyDtoH(&got, device, 1));
        EXPECT(got == i, "life %d of the context set %d", i, got);
        driver_stop();
    }
}

int main(void)
{
    CUmodule module;
    CUstream stream;

    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    host_functions(stream);
    priorities();
    default_stream(module);
    CU(cuStreamDestroy(stream));
    CU(cuModuleUnload(module));
    driver_stop();
    own_stream_of_a_later_context();
    return finish("driver_streams");
}
