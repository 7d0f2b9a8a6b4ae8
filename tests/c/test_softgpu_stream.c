/*
 * Order between streams. What must wait is held back by a word in memory that
 * the test writes, never by time.
 */
#include "softgpu_check.h"

#include <pthread.h>

static volatile int order[16];
static volatile int steps;

static void step(void *data)
{
    order[steps++] = (int)(size_t)data;
}

struct gate {
    unsigned *word; /* pinned */
    CUdeviceptr at;
};

static struct gate gate_make(void)
{
    struct gate gate;
    void *word;
    OK(cuMemHostAlloc(&word, 4, 0));
    gate.word = word;
    *gate.word = 0;
    OK(cuMemHostGetDevicePointer(&gate.at, word, 0));
    return gate;
}

static void gate_open(struct gate gate)
{
    __atomic_store_n(gate.word, 1, __ATOMIC_SEQ_CST);
}

static void *step_name(int i)
{
    return (void *)(size_t)i;
}

static void events(void)
{
    CUstream a, b;
    CUevent event, start;
    float ms;
    struct gate gate = gate_make();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuEventCreate(&start, 0));
    OK(cuEventQuery(event)); /* never recorded counts as done */
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, event));
    steps = 0;
    OK(cuEventRecord(start, a));
    OK(cuStreamWaitValue32(a, gate.at, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuLaunchHostFunc(a, step, step_name(1)));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(cuLaunchHostFunc(b, step, step_name(2)));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, start, event));
    CHECK(steps == 0);
    gate_open(gate);
    OK(cuStreamSynchronize(b));
    CHECK(steps == 2 && order[0] == 1 && order[1] == 2);
    OK(cuEventSynchronize(event));
    OK(cuEventElapsedTime(&ms, start, event));
    CHECK(ms >= 0);
    OK(cuEventDestroy(event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(event));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, a));
    OK(cuStreamSynchronize(a));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, event));
    OK(cuEventDestroy(event));
    OK(cuEventDestroy(start));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(b));
    OK(cuMemFreeHost(gate.word));
}

/* Behind what has been seen to be over there are but events: the stream is idle, when its thread comes
 * to them or not; and so is `asked` (NULL: that stream), for which it is busy otherwise. */
static void idle_but_for_events(unsigned flags, CUstream asked)
{
    CUstream stream;
    CUevent events[3];
    struct gate gate = gate_make(), seen = gate_make();
    OK(cuStreamCreate(&stream, flags));
    for (int i = 0; i < 3; i++)
        OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    for (unsigned round = 1; round <= 200; round++) {
        OK(cuStreamWaitValue32(stream, gate.at, round, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuStreamWriteValue32(stream, seen.at, round, 0));
        for (int i = 0; i < 3; i++)
            OK(cuEventRecord(events[i], stream));
        EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(asked ? asked : stream));
        __atomic_store_n(gate.word, round, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(seen.word, __ATOMIC_SEQ_CST) != round)
            ;
        OK(cuStreamQuery(asked ? asked : stream));
    }
    for (int i = 0; i < 3; i++)
        OK(cuEventDestroy(events[i]));
    OK(cuStreamDestroy(stream));
    OK(cuMemFreeHost(gate.word));
    OK(cuMemFreeHost(seen.word));
}

/* The default stream waits for blocking streams and they for it; others run free. */
static void default_stream(void)
{
    CUstream blocking, other;
    struct gate gate = gate_make(), second = gate_make();
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    steps = 0;
    OK(cuStreamWaitValue32(blocking, gate.at, 1, 0));
    OK(cuLaunchHostFunc(blocking, step, step_name(1)));
    OK(cuLaunchHostFunc(NULL, step, step_name(2)));
    OK(cuLaunchHostFunc(blocking, step, step_name(3)));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    OK(cuLaunchHostFunc(other, step, step_name(0)));
    OK(cuStreamSynchronize(other)); /* passes while the others are held */
    CHECK(steps == 1 && order[0] == 0);
    gate_open(gate);
    OK(cuStreamSynchronize(blocking));
    CHECK(steps == 4 && order[1] == 1 && order[2] == 2 && order[3] == 3);
    OK(cuStreamWaitValue32(CU_STREAM_PER_THREAD, second.at, 1, 0));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
    gate_open(second);
    OK(cuCtxSynchronize());
    OK(cuStreamQuery(CU_STREAM_PER_THREAD));
    OK(cuStreamDestroy(blocking));
    OK(cuStreamDestroy(other));
    OK(cuMemFreeHost(gate.word));
    OK(cuMemFreeHost(second.word));
}

struct two_devices {
    CUcontext context[2];
    CUdeviceptr memory[2];
    CUstream blocking[2];
};

static struct two_devices two_devices_make(void)
{
    struct two_devices d;
    for (int i = 0; i < 2; i++) {
        OK(cuDevicePrimaryCtxRetain(&d.context[i], i));
        OK(cuCtxSetCurrent(d.context[i]));
        OK(cuMemAlloc(&d.memory[i], 4));
        OK(cuMemsetD32(d.memory[i], 0, 1));
        OK(cuCtxSynchronize());
        OK(cuStreamCreate(&d.blocking[i], 0));
    }
    return d;
}

static void two_devices_end(struct two_devices *d)
{
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(d->context[i]));
        OK(cuMemFree(d->memory[i]));
        OK(cuStreamDestroy(d->blocking[i]));
        OK(cuDevicePrimaryCtxRelease(i));
    }
    OK(cuCtxSetCurrent(d->context[0]));
}

/* Work of one device is held, on its default stream or on one that heeds that: a copy on the
 * other's default stream reads what the work writes, and is read from before it changes. */
static void copy_behind_both(struct two_devices *d, CUstream held)
{
    struct gate gate = gate_make();
    int got = 0;
    OK(cuCtxSetCurrent(d->context[1]));
    OK(cuStreamWaitValue32(held, gate.at, 1, 0));
    OK(cuMemsetD32Async(d->memory[1], 7, 1, held));
    OK(cuCtxSetCurrent(d->context[0]));
    OK(cuMemcpyDtoDAsync(d->memory[0], d->memory[1], 4, NULL));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    OK(cuCtxSetCurrent(d->context[1]));
    OK(cuMemsetD32Async(d->memory[1], 8, 1, d->blocking[1]));
    OK(cuCtxSetCurrent(d->context[0]));
    gate_open(gate);
    OK(cuMemcpyDtoH(&got, d->memory[0], 4));
    CHECK(got == 7);
    OK(cuCtxSetCurrent(d->context[1]));
    OK(cuCtxSynchronize());
    OK(cuMemFreeHost(gate.word));
}

/* The copy is held: what the other device does next waits for it. */
static void copy_before_both(struct two_devices *d)
{
    struct gate gate = gate_make();
    CUstream free_of_it;
    int got = 0;
    OK(cuCtxSetCurrent(d->context[1]));
    OK(cuStreamCreate(&free_of_it, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD32(d->memory[1], 5, 1));
    OK(cuCtxSetCurrent(d->context[0]));
    OK(cuStreamWaitValue32(NULL, gate.at, 1, 0));
    OK(cuMemcpyDtoD(d->memory[0], d->memory[1], 4));
    OK(cuCtxSetCurrent(d->context[1]));
    OK(cuMemsetD32Async(d->memory[1], 6, 1, d->blocking[1]));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(d->blocking[1]));
    OK(cuStreamQuery(free_of_it));
    OK(cuStreamDestroy(free_of_it));
    gate_open(gate);
    OK(cuCtxSetCurrent(d->context[0]));
    OK(cuMemcpyDtoH(&got, d->memory[0], 4));
    CHECK(got == 5);
    OK(cuMemFreeHost(gate.word));
}

/* Each device's default stream orders a copy between the two. */
static void between_devices(void)
{
    struct two_devices d = two_devices_make();
    copy_behind_both(&d, NULL);
    copy_behind_both(&d, d.blocking[1]);
    copy_before_both(&d);
    two_devices_end(&d);
}

/* A stream destroyed with work in it still does the work. */
static void destroyed(void)
{
    CUstream stream;
    struct gate gate = gate_make();
    OK(cuStreamCreate(&stream, 0));
    steps = 0;
    OK(cuStreamWaitValue32(stream, gate.at, 1, 0));
    OK(cuLaunchHostFunc(stream, step, step_name(5)));
    OK(cuStreamDestroy(stream));
    CHECK(steps == 0);
    gate_open(gate);
    OK(cuCtxSynchronize());
    CHECK(steps == 1 && order[0] == 5);
    OK(cuMemFreeHost(gate.word));
}

/* A pageable source may change as soon as the copy has been asked for. */
static void pageable_source(void)
{
    CUstream stream;
    CUdeviceptr device;
    struct gate gate = gate_make();
    int source = 11, back = 0;
    OK(cuMemAlloc(&device, 4));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32(stream, gate.at, 1, 0));
    OK(cuMemcpyHtoDAsync(device, &source, 4, stream));
    source = 22;
    gate_open(gate);
    OK(cuMemcpyDtoHAsync(&back, device, 4, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(back == 11);
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(device));
    OK(cuMemFreeHost(gate.word));
}

static void forbidden(void *data)
{
    CUdeviceptr p;
    *(CUresult *)data = cuMemAlloc(&p, 16);
}

static void *many(void *context)
{
    CUdeviceptr device;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&device, 4096));
    for (int i = 0; i < 200; i++) {
        CUstream stream;
        int value = i, back = -1;
        OK(cuStreamCreate(&stream, i & 1));
        OK(cuMemcpyHtoDAsync(device, &value, 4, stream));
        OK(cuMemcpyDtoHAsync(&back, device, 4, stream));
        OK(cuStreamSynchronize(stream));
        CHECK(back == i);
        OK(cuStreamDestroy(stream));
    }
    OK(cuMemFree(device));
    return NULL;
}

int main(void)
{
    setenv("GPUPOOL_SOFT_GPUS", "2", 1);
    CUcontext context = softgpu_begin();
    events();
    idle_but_for_events(CU_STREAM_NON_BLOCKING, NULL);
    idle_but_for_events(CU_STREAM_DEFAULT, CU_STREAM_LEGACY);
    default_stream();
    between_devices();
    destroyed();
    pageable_source();
    CUresult result = CUDA_SUCCESS;
    OK(cuLaunchHostFunc(NULL, forbidden, &result));
    OK(cuStreamSynchronize(NULL));
    CHECK(result == CUDA_ERROR_NOT_PERMITTED);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, many, context) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
