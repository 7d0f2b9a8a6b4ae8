/*
 * What goes between the GPUs of two hosts: copies in the order of streams, and streams
 * that wait for each other's events. The argument says how many devices the first host
 * has; all the others are other hosts'. Large data is made and checked by the GPUs, so
 * that the client's own traffic stays small.
 */
#include "driver.h"

#include <semaphore.h>
#include <stdbool.h>

enum { MOST = 8, WORDS = 1 << 19 };

static int devices, first_of_second;
static CUcontext contexts[MOST];
static CUmodule modules[MOST];
static CUdeviceptr memory[MOST];
static CUstream streams[MOST];

static void open_all(void)
{
    CU(cuInit(0));
    CU(cuDeviceGetCount(&devices));
    REQUIRE(devices <= MOST && first_of_second < devices, "%d devices", devices);
    for (int i = 0; i < devices; i++) {
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i));
        CU(cuCtxSetCurrent(contexts[i]));
        CU(cuModuleLoadData(&modules[i], kernels_ptx));
        CU(cuMemAlloc(&memory[i], 4 * WORDS));
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
}

static void use(int device)
{
    CU(cuCtxSetCurrent(contexts[device]));
}

static void launch(int device, const char *name, CUdeviceptr values, int n, int factor, int term,
                   CUstream stream)
{
    void *arguments[] = {&values, &n, &factor, &term};
    CU(cuLaunchKernel(driver_function(modules[device], name), (unsigned)(n + 255) / 256, 1, 1, 256,
                      1, 1, 0, stream, arguments, NULL));
}

static int word(CUdeviceptr base, size_t at)
{
    int value = 0;
    CU(cuMemcpyDtoH(&value, base + 4 * at, 4));
    return value;
}

/* Sizes and offsets, to and fro, against what the host would have done. */
static void sizes(void)
{
    static const size_t bytes[] = {1, 3, 4, 4095, 4096, 4097, 65536, 100000};
    static unsigned char from[1 << 17], to[1 << 17], got[1 << 17];
    unsigned seed = 7;
    int a = 0, b = devices - 1;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)check_random(&seed);
    for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++)
        for (size_t way = 0; way < 2; way++) {
            size_t at = 17 * k + way, into = 5 * k + 3 * way;
            memset(to, (int)k, sizeof to);
            use(a);
            CU(cuMemcpyHtoD(memory[a], from, sizeof from));
            use(b);
            CU(cuMemcpyHtoD(memory[b], to, sizeof to));
            use(way ? a : b); /* the copy is called from either side */
            if (k % 2)
                CU(cuMemcpyDtoD(memory[b] + into, memory[a] + at, bytes[k]));
            else
                CU(cuMemcpyPeer(memory[b] + into, contexts[b], memory[a] + at, contexts[a],
                                bytes[k]));
            CU(cuCtxSynchronize());
            memcpy(to + into, from + at, bytes[k]);
            CU(cuMemcpyDtoH(got, memory[b], sizeof got));
            EXPECT(memcmp(got, to, sizeof to) == 0, "%zu bytes from %zu to %zu", bytes[k], at,
                   into);
        }
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(memory[b], memory[a], 4 * WORDS + 1));
    CU(cuMemcpyDtoD(memory[b], memory[a], 0));
}

/* Round all devices, without a wait: each adds what the next one sees. */
static void ring(void)
{
    int n = WORDS, laps = 3;
    use(0);
    CU(cuMemsetD32Async(memory[0], 1, WORDS, streams[0]));
    CU(cuStreamSynchronize(streams[0]));
    for (int i = 0; i < laps * devices; i++) {
        int from = i % devices, to = (i + 1) % devices;
        CUevent passed;
        use(from);
        launch(from, "multiply_add", memory[from], n, 1, 1, streams[from]);
        CU(cuEventCreate(&passed, CU_EVENT_DISABLE_TIMING));
        CU(cuEventRecord(passed, streams[from]));
        use(to);
        CU(cuStreamWaitEvent(streams[to], passed, 0));
        CU(cuMemcpyPeerAsync(memory[to], contexts[to], memory[from], contexts[from], 4 * WORDS,
                             streams[to]));
        CU(cuEventDestroy(passed));
    }
    use(0);
    CU(cuStreamSynchronize(streams[0]));
    for (size_t at = 0; at < WORDS; at += WORDS / 7)
        EXPECT(word(memory[0], at) == 1 + laps * devices, "[%zu] is %d, expected %d", at,
               word(memory[0], at), 1 + laps * devices);
}

/* On the sender's stream: what follows in it finds the bytes at the other host. */
static void pushed(void)
{
    int a = 0, b = devices - 1;
    CUevent done;
    use(b);
    CU(cuMemsetD32(memory[b], 0, WORDS));
    CU(cuCtxSynchronize());
    use(a);
    CU(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    CU(cuMemsetD32Async(memory[a], 5, WORDS, streams[a]));
    CU(cuMemcpyDtoDAsync(memory[b], memory[a], 4 * WORDS, streams[a]));
    CU(cuMemsetD32Async(memory[a], 6, WORDS, streams[a])); /* the copy has read by then */
    CU(cuEventRecord(done, streams[a]));
    use(b);
    CU(cuStreamWaitEvent(streams[b], done, 0));
    launch(b, "multiply_add", memory[b], WORDS, 10, 1, streams[b]);
    CU(cuStreamSynchronize(streams[b]));
    EXPECT(word(memory[b], 0) == 51 && word(memory[b], WORDS - 1) == 51, "%d, expected 51",
           word(memory[b], 0));
    use(a);
    CU(cuStreamSynchronize(streams[a]));
    EXPECT(word(memory[a], 9) == 6, "%d, expected 6", word(memory[a], 9));
    CU(cuEventDestroy(done));
}

/* The default streams: behind everything on either device, before what follows. */
static void default_streams(void)
{
    int a = 0, b = devices - 1;
    for (int i = 0; i < 20; i++) {
        use(a);
        launch(a, "multiply_add", memory[a], WORDS, 0, i, NULL);
        use(b);
        launch(b, "multiply_add", memory[b], WORDS, 0, -1, NULL);
        use(i % 2 ? a : b);
        CU(cuMemcpy(memory[b], memory[a], 4 * WORDS));
        use(a);
        launch(a, "multiply_add", memory[a], WORDS, 0, -2, NULL);
        use(b);
        launch(b, "multiply_add", memory[b], WORDS, 2, 1, NULL);
        EXPECT(word(memory[b], WORDS / 2) == 2 * i + 1, "%d, expected %d",
               word(memory[b], WORDS / 2), 2 * i + 1);
    }
    use(a); /* the streams of what follows do not wait for default streams */
    CU(cuCtxSynchronize());
}

/* A stream of a third device may order a copy between two others. */
static void third(void)
{
    if (devices < 3)
        return;
    int a = 0, b = devices - 1, c = 1;
    CUevent set, copied;
    use(a);
    CU(cuEventCreate(&set, CU_EVENT_DISABLE_TIMING));
    CU(cuMemsetD32Async(memory[a], 33, WORDS, streams[a]));
    CU(cuEventRecord(set, streams[a]));
    use(c);
    CU(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
    CU(cuStreamWaitEvent(streams[c], set, 0));
    CU(cuMemcpyPeerAsync(memory[b], contexts[b], memory[a], contexts[a], 4 * WORDS, streams[c]));
    CU(cuEventRecord(copied, streams[c]));
    use(b);
    CU(cuStreamWaitEvent(streams[b], copied, 0));
    CU(cuStreamSynchronize(streams[b]));
    EXPECT(word(memory[b], 77) == 33, "%d, expected 33", word(memory[b], 77));
    CU(cuEventDestroy(set));
    CU(cuEventDestroy(copied));
}

static sem_t open_gate;

static void CUDA_CB stay(void *arg)
{
    (void)arg;
    while (sem_wait(&open_gate) != 0)
        ;
}

/* Device `from` is held before it writes what device `on`'s default stream is to copy. That
 * copy is not made before, though another one of the same way, on a stream that heeds no
 * default stream, is submitted later and over sooner; and `from` writes again behind it. */
static void behind_both(int on, int to, int from, int value)
{
    size_t spare = 4 * (WORDS - 1);
    use(from);
    CU(cuLaunchHostFunc(NULL, stay, NULL));
    CU(cuMemsetD32Async(memory[from], (unsigned)value, 64, NULL));
    use(on);
    CU(cuMemcpyPeerAsync(memory[to], contexts[to], memory[from], contexts[from], 4 * 64, NULL));
    use(to);
    CU(cuMemcpyPeerAsync(memory[to] + spare, contexts[to], memory[from] + spare, contexts[from], 4,
                         streams[to]));
    CU(cuStreamSynchronize(streams[to]));
    use(from);
    CU(cuMemsetD32Async(memory[from], 0, 64, NULL)); /* the copy has read by then */
    REQUIRE(sem_post(&open_gate) == 0, "sem_post");
    use(to);
    EXPECT(word(memory[to], 63) == value, "%d to %d on %d: %d, expected %d", from, to, on,
           word(memory[to], 63), value);
    use(from);
    CU(cuCtxSynchronize());
    use(on);
    CU(cuCtxSynchronize());
}

static bool is_second(int device)
{
    return device >= first_of_second;
}

/* A copy within a host that is called from another one is waited for in the call. */
static bool waits(int on, int to, int from)
{
    return is_second(to) == is_second(from) && is_second(on) != is_second(to);
}

/* Default streams of devices on one host and on two, the copy being called from each. */
static void both_devices(void)
{
    int value = 100;
    REQUIRE(sem_init(&open_gate, 0, 0) == 0, "sem_init");
    for (int from = 0; from < devices; from++)
        for (int to = 0; to < devices; to++)
            for (int on = 0; on < devices && to != from; on++)
                if (!waits(on, to, from))
                    behind_both(on, to, from, value++);
}

static void pitched(void)
{
    int a = 0, b = devices - 1, host[8 * 16];
    use(b);
    CU(cuMemsetD32(memory[b], 0, 8 * 32));
    CU(cuCtxSynchronize());
    use(a);
    for (int i = 0; i < 8 * 16; i++)
        host[i] = i;
    CU(cuMemcpyHtoD(memory[a], host, sizeof host));
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = memory[a],
                          .srcPitch = 16 * 4,
                          .srcXInBytes = 4 * 4,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = memory[b],
                          .dstPitch = 32 * 4,
                          .WidthInBytes = 5 * 4,
                          .Height = 8};
    CU(cuMemcpy2D(&copy));
    CU(cuCtxSynchronize());
    use(b);
    for (size_t y = 0; y < 8; y++)
        EXPECT(word(memory[b], 32 * y + 4) == (int)(16 * y + 8) && word(memory[b], 32 * y + 5) == 0,
               "row %zu: %d, %d", y, word(memory[b], 32 * y + 4), word(memory[b], 32 * y + 5));
}

static void refused(void)
{
    int a = 0, b = devices - 1;
    CUevent one, other;
    CUgraph graph;
    float time;
    use(a);
    CU(cuEventCreate(&one, CU_EVENT_DEFAULT));
    CU(cuEventRecord(one, streams[a]));
    use(b);
    CU(cuEventCreate(&other, CU_EVENT_DEFAULT));
    CU(cuEventRecord(other, streams[b]));
    CU(cuEventSynchronize(one));
    CU(cuEventSynchronize(other));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&time, one, other));
    CU(cuStreamBeginCapture(streams[b], CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemcpyDtoDAsync(memory[b], memory[a], 64, streams[b]));
    CU(cuStreamEndCapture(streams[b], &graph));
    CU(cuGraphDestroy(graph));
    CU(cuEventDestroy(one));
    CU(cuEventDestroy(other));
}

int main(int argc, char **argv)
{
    first_of_second = argc > 1 ? atoi(argv[1]) : 1;
    open_all();
    sizes();
    ring();
    pushed();
    default_streams();
    third();
    both_devices();
    pitched();
    refused();
    for (int i = 0; i < devices; i++)
        CU(cuDevicePrimaryCtxRelease(i));
    return finish("driver_between");
}
