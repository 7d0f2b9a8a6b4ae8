/*
 * Events that are asked again and again: what a query says is true, whoever says it, and it is no
 * question for the worker each time.
 *
 *   driver_polled            what queries say
 *   driver_polled count N    N queries of events that are over; the waits are counted from outside,
 *                            so nothing is asked for here that may be over or not
 *   driver_polled awaited N  N records that are known to be over when they are waited for; likewise
 *   driver_polled idle N     N records in a stream that is idle, which are over at once; likewise
 *   driver_polled fresh N    N events that are made, recorded and asked for once, ten by ten with a
 *                            wait behind; likewise
 *   driver_polled streams N  N queries of streams that a wait has seen idle; likewise
 *   driver_polled fault      behind a kernel that faults
 *   driver_polled hold       behind work that never ends, until the worker is gone
 */
#include "driver.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 50, EVENTS = 16, THREADS = 8, MANY = 200 };

static CUstream stream, other;
static CUdeviceptr words; /* one holds a stream back until it is 1 */
static CUevent polled;

/* From its second record on it is polled. */
static CUevent polled_event(CUstream where)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, where));
    CU(cuEventSynchronize(event));
    CU(cuEventQuery(event));
    return event;
}

static CUresult poll_event(CUevent event)
{
    CUresult r;
    while ((r = cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
        ;
    return r;
}

static void prepare(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, 4096));
    CU(cuMemsetD8(words, 0, 4096));
    CU(cuCtxSynchronize()); /* these streams wait for nothing else */
    polled = polled_event(stream);
}

static void hold(CUstream held, unsigned word)
{
    CU(cuStreamWaitValue32(held, words + 4 * word, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void release(unsigned word)
{
    CU(cuMemsetD32Async(words + 4 * word, 1, 1, other));
}

/* What is over is told, and what is known to be over otherwise, too. */
static void over(void)
{
    CUevent second = polled_event(stream);
    for (int i = 0; i < ROUNDS; i++) {
        unsigned got = 0;
        CU(cuMemsetD32Async(words + 2048, (unsigned)i, 1, stream));
        CU(cuEventRecord(polled, stream));
        CU(poll_event(polled));
        CU(cuMemcpyDtoHAsync(&got, words + 2048, sizeof got, other));
        CU(cuStreamSynchronize(other));
        EXPECT(got == (unsigned)i, "round %d: %u behind the event", i, got);
        CU(cuEventRecord(polled, stream));
        CU(cuEventSynchronize(polled));
        CU_GIVES(CUDA_SUCCESS, cuEventQuery(polled));
        CU(cuEventRecordWithFlags(second, stream, 0));
        CU(cuStreamWaitEvent(other, second, 0));
        CU(cuStreamSynchronize(other));
        CU_GIVES(CUDA_SUCCESS, cuEventQuery(second));
    }
    CU(cuEventDestroy(second));
    if (!driver_is_native()) /* NVIDIA's driver reads a handle that is no more */
        CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(second));
}

/* An event that is not over; one that is recorded on a second stream meanwhile. */
static void not_over(void)
{
    CUevent twice = polled_event(stream);
    hold(stream, 1);
    CU(cuEventRecord(polled, stream));
    CU(cuEventRecord(twice, stream));
    for (int i = 0; i < ROUNDS; i++)
        CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(polled));
    CU(cuEventRecord(twice, other));
    CU(cuStreamSynchronize(other));
    CU_GIVES(CUDA_SUCCESS, cuEventQuery(twice));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(polled));
    release(1);
    CU(poll_event(polled));
    CU(cuStreamSynchronize(stream));
    CU_GIVES(CUDA_SUCCESS, cuEventQuery(twice));
    hold(stream, 4);
    CU(cuEventRecord(twice, stream));
    CU(cuEventRecord(twice, other));
    CU(cuStreamSynchronize(other));
    release(4);
    CU(cuStreamSynchronize(stream)); /* what the older record writes comes later */
    CU_GIVES(CUDA_SUCCESS, cuEventQuery(twice));
    CU(cuEventDestroy(twice));
}

/* More than anybody keeps watch for: each is over for who has waited for its stream, at once. */
static void many(void)
{
    CUevent events[MANY];
    for (int i = 0; i < MANY; i++)
        events[i] = polled_event(stream);
    hold(stream, 5);
    for (int i = 0; i < MANY; i++)
        CU(cuEventRecord(events[i], stream));
    for (int i = 0; i < MANY; i++)
        CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(events[i]));
    release(5);
    CU(cuStreamSynchronize(stream));
    for (int i = 0; i < MANY; i++)
        CU_GIVES(CUDA_SUCCESS, cuEventQuery(events[i]));
    for (int i = 0; i < MANY; i++)
        CU(cuEventDestroy(events[i]));
}

/* A graph records it again, and a capture in no way that tells of an end. */
static void graphs(void)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUevent captured = polled_event(stream), recorded = polled_event(stream);
    CU(cuEventRecord(recorded, stream));
    CU(poll_event(recorded));
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddEventRecordNode(&node, graph, NULL, 0, recorded));
    CU(cuGraphInstantiate(&exec, graph, 0));
    hold(stream, 2);
    CU(cuGraphLaunch(exec, stream));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(recorded));
    release(2);
    CU(poll_event(recorded));
    CU(cuStreamSynchronize(stream));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    CU(cuEventRecord(captured, stream));
    CU(poll_event(captured));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuEventRecord(captured, stream));
    CU_GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(captured));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CU(cuEventRecord(captured, stream));
    CU(poll_event(captured));
    CU(cuEventDestroy(captured));
    CU(cuEventDestroy(recorded));
}

/* The events of a second context, and those of the first behind its end. */
static void contexts(void)
{
    CUcontext context;
    CUstream its;
    CU(cuCtxCreate(&context, NULL, 0, driver_device));
    CU(cuStreamCreate(&its, CU_STREAM_NON_BLOCKING));
    CUevent event = polled_event(its);
    for (int i = 0; i < ROUNDS; i++) {
        CU(cuEventRecord(event, its));
        CU(cuStreamSynchronize(its));
        CU_GIVES(CUDA_SUCCESS, cuEventQuery(event));
    }
    CU(cuCtxDestroy(context));
    CU(cuCtxSetCurrent(driver_context));
    for (int i = 0; i < ROUNDS; i++) {
        CU(cuEventRecord(polled, stream));
        CU(cuStreamSynchronize(stream));
        CU_GIVES(CUDA_SUCCESS, cuEventQuery(polled));
    }
}

static void *one_thread(void *unused)
{
    CUstream own;
    (void)unused;
    CU(cuCtxSetCurrent(driver_context));
    CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < ROUNDS / 5; i++) {
        CUevent event = polled_event(own);
        for (int n = 0; n < 4; n++) {
            CU(cuEventRecord(event, own));
            CU(poll_event(event));
        }
        CU(cuEventDestroy(event));
    }
    CU(cuStreamDestroy(own));
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&all[i], NULL, one_thread, NULL) == 0, "no thread %d", i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
}

static void count(int queries)
{
    CUevent events[EVENTS];
    hold(stream, 7);
    for (int i = 0; i < EVENTS; i++) {
        CU(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
        CU(cuEventRecord(events[i], stream));
    }
    for (int i = 0; i < EVENTS; i++)
        CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(events[i]));
    release(7);
    CU(cuStreamSynchronize(stream));
    CU(cuMemsetD32Async(words + 2048, 1, 1, stream)); /* else nothing has to be told */
    for (int i = 0; i < EVENTS; i++)
        CU(cuEventRecord(events[i], stream));
    CU(cuStreamSynchronize(stream));
    for (int i = 0; i < queries; i++)
        CU(cuEventQuery(events[i % EVENTS]));
}

static void awaited(int records)
{
    for (int i = 0; i < records; i++) {
        unsigned got = 0;
        CU(cuMemsetD32Async(words + 2048, (unsigned)i, 1, stream));
        CU(cuEventRecord(polled, stream));
        CU(cuMemcpyDtoHAsync(&got, words + 2048, sizeof got, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(got == (unsigned)i, "record %d: %u", i, got);
        CU(cuEventSynchronize(polled));
    }
}

/* What a capture has recorded is no record any more that needs none like it. */
static void idle_behind_capture(CUevent event)
{
    CUgraph graph;
    CU(cuStreamSynchronize(stream));
    CU(cuEventRecord(event, stream));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuEventRecord(event, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    CU(cuCtxSynchronize());
    CU(cuEventRecord(event, stream));
    CU_GIVES(CUDA_SUCCESS, cuEventQuery(event));
    CU(cuStreamWaitEvent(other, event, 0)); /* the driver knows of it, too */
    CU(cuStreamSynchronize(other));
}

/* Nothing is before them. In other streams it may be, and then there is something to wait for. */
static void idle(int records)
{
    CUevent events[2];
    for (int i = 0; i < 2; i++)
        CU(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    CU(cuMemsetD32Async(words + 2048, 1, 1, stream));
    hold(other, 6);
    CU(cuStreamSynchronize(stream));
    for (int i = 0; i < records; i++) {
        CUevent event = i % 3 < 2 ? events[i % 3] : polled;
        CU(cuEventRecord(event, stream));
        CU_GIVES(CUDA_SUCCESS, cuEventQuery(event));
        CU(cuEventSynchronize(event));
        CU_GIVES(CUDA_SUCCESS, cuStreamQuery(stream));
    }
    CU(cuEventRecord(polled, other));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(polled));
    CU(cuMemsetD32Async(words + 4 * 6, 1, 1, stream));
    CU(cuStreamSynchronize(other)); /* who polls asks as often as it takes */
    CU_GIVES(CUDA_SUCCESS, cuEventQuery(polled));
    CU(cuEventRecord(events[0], CU_STREAM_LEGACY)); /* idle, but nobody has said so */
    CU(cuStreamSynchronize(CU_STREAM_LEGACY));
    CU(cuEventSynchronize(events[0]));
    idle_behind_capture(events[1]);
}

/* As who keeps memory until a copy of it is through. Held, as an event of which the worker speaks
 * while it is made is told or asked for, by chance. */
static void fresh_ten(unsigned turn)
{
    CU(cuStreamWaitValue32(stream, words + 4 * 8, turn, CU_STREAM_WAIT_VALUE_GEQ));
    for (int i = 0; i < 10; i++) {
        CUevent event;
        CU(cuEventCreate(&event, i % 2 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
        CU(cuEventRecord(event, stream));
        CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        CU(cuEventDestroy(event));
    }
    CU(cuMemsetD32Async(words + 4 * 8, turn, 1, other));
    CU(cuStreamSynchronize(stream));
}

static void fresh(int events)
{
    for (int turn = 1; turn <= events / 10; turn++)
        fresh_ten((unsigned)turn);
}

/* While nothing holds them. */
static void fresh_free(void)
{
    for (int i = 0; i < MANY; i++) {
        CUevent event;
        CUresult r;
        CU(cuEventCreate(&event, i % 2 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
        CU(cuEventRecord(event, stream));
        r = cuEventQuery(event);
        EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY, "event %d: %d", i, (int)r);
        CU(cuEventDestroy(event));
    }
    CU(cuStreamSynchronize(stream));
}

static void fault(void)
{
    CUmodule module;
    CUdeviceptr p = 0x10;
    void *parameters[] = {&p};
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuLaunchKernel(driver_function(module, "write_to"), 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                      NULL));
    cuEventRecord(polled, stream); /* may know of it already */
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, poll_event(polled));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventQuery(polled));
}

static void never(void)
{
    hold(stream, 3);
    CU(cuEventRecord(polled, stream));
    printf("ready\n");
    fflush(stdout);
    CU_GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, poll_event(polled));
    CU_GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuEventQuery(polled));
}

/* Whatever the worker has recorded behind the work meanwhile. */
static void streams(int queries)
{
    CUstream all[] = {stream, other, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    for (int i = 0; i < 4; i++)
        CU(cuMemsetD32Async(words, 1, 1, all[i]));
    CU(cuCtxSynchronize());
    for (int i = 0; i < queries; i++)
        CU(cuStreamQuery(all[i % 4]));
    for (int i = 0; i < 4; i++)
        CU(cuMemsetD32Async(words, 0, 1, all[i]));
    hold(stream, 1);
    CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    release(1);
    for (int i = 0; i < 4; i++)
        CU(cuStreamSynchronize(all[i]));
    for (int i = 0; i < queries; i++)
        CU(cuStreamQuery(all[i % 4]));
}

int main(int argc, char **argv)
{
    prepare();
    if (argc == 3 && strcmp(argv[1], "count") == 0) {
        count(atoi(argv[2]));
    } else if (argc == 3 && strcmp(argv[1], "awaited") == 0) {
        awaited(atoi(argv[2]));
    } else if (argc == 3 && strcmp(argv[1], "idle") == 0) {
        idle(atoi(argv[2]));
    } else if (argc == 3 && strcmp(argv[1], "fresh") == 0) {
        fresh(atoi(argv[2]));
    } else if (argc == 3 && strcmp(argv[1], "streams") == 0) {
        streams(atoi(argv[2]));
    } else if (argc == 2 && strcmp(argv[1], "fault") == 0) {
        fault();
        return finish("driver_polled");
    } else if (argc == 2 && strcmp(argv[1], "hold") == 0) {
        never();
        return finish("driver_polled");
    } else {
        over();
        idle(ROUNDS);
        not_over();
        many();
        fresh_free();
        graphs();
        threads();
        contexts();
    }
    driver_stop();
    return finish("driver_polled");
}
