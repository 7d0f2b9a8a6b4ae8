/*
 * Waits for streams and for a few bytes, again and again: what they wait for has happened when they
 * end, whoever ends them, and bytes are the right ones.
 *
 *   driver_waits            in many ways
 *   driver_waits fault      for a kernel that faults
 *   driver_waits hold       for work that never ends, until the worker is gone
 *   driver_waits print N    N times for a kernel that prints, with lines of the host's between
 *   driver_waits says N     likewise, by events
 *   driver_waits silent N   N times as count, with a kernel looked up that would print
 *   driver_waits sleep N    N times in a context whose threads are to sleep
 *   driver_waits looks N    N times for 20 ms in a context whose threads are to spin: they do
 *   driver_waits rests N    likewise in one whose threads are to sleep
 *   driver_waits count N    N times for memory that is set, and for four bytes of it
 */
#include "driver.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 40, THREADS = 40, BYTES = 1 << 14 };

static const char print_ptx[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
    ".global .align 1 .b8 text[8] = {71, 80, 85, 10, 0};\n"
    ".visible .entry print()\n"
    "{\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<3>;\n"
    "    mov.u64 %rd1, text;\n"
    "    cvta.global.u64 %rd2, %rd1;\n"
    "    { .param .b64 f; .param .b64 a; .param .b32 r;\n"
    "      st.param.b64 [f], %rd2; st.param.b64 [a], 0;\n"
    "      call.uni (r), vprintf, (f, a);\n"
    "      ld.param.b32 %r1, [r]; }\n"
    "    ret;\n"
    "}\n";

static CUstream stream, other;
static CUdeviceptr words; /* one of the last holds a stream back until it is 1 */

static void prepare(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, BYTES));
    CU(cuMemsetD8(words, 0, BYTES));
    CU(cuCtxSynchronize()); /* these streams wait for nothing else */
}

static void hold(CUstream held, unsigned word)
{
    CU(cuStreamWaitValue32(held, words + BYTES - 64 + 4 * word, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void release(unsigned word)
{
    CU(cuMemsetD32Async(words + BYTES - 64 + 4 * word, 1, 1, other));
}

static void wait_once(CUstream where, CUdeviceptr at, unsigned value)
{
    unsigned got = ~value;
    CU(cuMemsetD32Async(at, value, 1, where));
    CU(cuMemcpyDtoHAsync(&got, at, sizeof got, where));
    EXPECT(got == value, "%u came, not %u", got, value);
    CU(cuMemsetD32Async(at, value + 1, 1, where));
    CU(cuStreamSynchronize(where));
    CU_GIVES(CUDA_SUCCESS, cuStreamQuery(where));
    CU(cuMemcpyDtoH(&got, at, sizeof got));
    EXPECT(got == value + 1, "%u came behind the wait, not %u", got, value + 1);
}

static void count(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        unsigned got = 0;
        CU(cuMemsetD32Async(words, (unsigned)i, 1, stream));
        CU(cuStreamSynchronize(stream));
        CU(cuMemcpyDtoHAsync(&got, words, sizeof got, stream));
        EXPECT(got == (unsigned)i, "round %d: %u", i, got);
        CU(cuMemsetD32Async(words, (unsigned)i + 1, 1, NULL));
        CU(cuCtxSynchronize());
    }
}

/* Around what one place of the page has room for. */
static void sizes(void)
{
    static const size_t bytes[] = {1, 2, 3, 7, 64, 4095, 4096, 4097, 8192};
    static unsigned char sent[BYTES], got[BYTES + 1];
    CUdeviceptr managed;
    CU(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        for (size_t k = 0; k < bytes[i]; k++)
            sent[k] = (unsigned char)(k * 31 + i + 1);
        memset(got, 0, sizeof got);
        CU(cuMemcpyHtoDAsync(words + 1, sent, bytes[i], stream));
        CU(cuMemcpyDtoHAsync(got, words + 1, bytes[i], stream));
        EXPECT(memcmp(sent, got, bytes[i]) == 0, "%zu bytes differ", bytes[i]);
        EXPECT(got[bytes[i]] == 0, "more than %zu bytes came", bytes[i]);
        CU(cuMemcpyDtoHAsync((void *)(uintptr_t)managed, words + 1, bytes[i], stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(memcmp(sent, (void *)(uintptr_t)managed, bytes[i]) == 0, "%zu managed bytes differ",
               bytes[i]);
    }
    CU(cuMemFree(managed));
    CU(cuMemsetD8(words, 0, BYTES));
}

/* A copy without a stream is over when it returns, for streams, too, that wait for no other. Out of
 * pageable memory CUDA promises less, and a local driver keeps no more. */
static void uploads(bool pinned)
{
    static unsigned from[1 << 20];
    CUdeviceptr to;
    if (pinned)
        CU(cuMemHostRegister(from, sizeof from, 0));
    CU(cuMemAlloc(&to, sizeof from));
    for (unsigned i = 1; i <= ROUNDS / 4; i++) {
        unsigned got = 0, *last = &from[sizeof from / sizeof *from - 1];
        *last = i;
        CU(cuMemcpyHtoD(to, from, sizeof from));
        CU(cuMemcpyDtoHAsync(&got, to + sizeof from - sizeof got, sizeof got, stream));
        EXPECT(got == i, "round %u: %u behind the copy", i, got);
        CU(cuCtxSynchronize());
    }
    CU(cuMemFree(to));
    if (pinned)
        CU(cuMemHostUnregister(from));
}

static void CUDA_CB set_flag(void *flag)
{
    __atomic_store_n((int *)flag, 1, __ATOMIC_RELEASE);
}

static void host_functions(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        int flag = 0;
        CU(cuLaunchHostFunc(i % 2 ? stream : NULL, set_flag, &flag));
        CU(cuStreamSynchronize(i % 2 ? stream : NULL));
        EXPECT(__atomic_load_n(&flag, __ATOMIC_ACQUIRE), "round %d: the function has not run", i);
    }
}

/* All streams of a context, those too that the legacy one does not wait for. */
static void whole(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        unsigned got[3] = {0};
        for (unsigned k = 0; k < 3; k++)
            CU(cuMemsetD32Async(words + BYTES / 4 * k, (unsigned)i, BYTES / 16,
                                k == 0   ? NULL
                                : k == 1 ? stream
                                         : other));
        CU(cuCtxSynchronize());
        for (unsigned k = 0; k < 3; k++) {
            CU(cuMemcpyDtoH(&got[k], words + BYTES / 4 * (k + 1) - 4, sizeof got[k]));
            EXPECT(got[k] == (unsigned)i, "round %d: %u in stream %u", i, got[k], k);
        }
    }
    CU(cuMemsetD8(words, 0, BYTES));
    CU(cuCtxSynchronize());
}

/* The legacy stream waits for blocking ones, and no wait for it ends before those do. */
static void legacy(void)
{
    CUstream blocking;
    CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (int i = 0; i < ROUNDS; i++) {
        unsigned got = 0;
        CU(cuMemsetD32Async(words, (unsigned)i, BYTES / 8, blocking));
        CU(cuStreamSynchronize(NULL));
        CU(cuMemcpyDtoHAsync(&got, words + BYTES / 2 - 4, sizeof got, other));
        EXPECT(got == (unsigned)i, "round %d: %u behind the legacy stream", i, got);
        wait_once(NULL, words, (unsigned)i);
        wait_once(CU_STREAM_PER_THREAD, words + 4, (unsigned)i);
    }
    CU(cuStreamDestroy(blocking));
}

static void *waits_for_held(void *over)
{
    static int count;
    CU(cuCtxSetCurrent(driver_context));
    if (__atomic_fetch_add(&count, 1, __ATOMIC_RELAXED) % 2)
        CU(cuCtxSynchronize());
    else
        CU(cuStreamSynchronize(stream));
    set_flag(over);
    return NULL;
}

/* Several threads wait for one stream, and a thread for others meanwhile. */
static void held(void)
{
    pthread_t all[4];
    int over = 0;
    hold(stream, 0);
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&all[i], NULL, waits_for_held, &over) == 0, "no thread %d", i);
    for (unsigned i = 0; i < ROUNDS; i++)
        wait_once(other, words + 8, i);
    EXPECT(!__atomic_load_n(&over, __ATOMIC_ACQUIRE), "a wait has ended before its work");
    release(0);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
}

static void *one_thread(void *at)
{
    CUstream own;
    CU(cuCtxSetCurrent(driver_context));
    CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 10; i++) {
        wait_once(own, (CUdeviceptr)(uintptr_t)at, i);
        CU(cuStreamSynchronize(stream));
    }
    CU(cuStreamDestroy(own));
    return NULL;
}

/* More than there are places in the page. */
static void threads(void)
{
    pthread_t all[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&all[i], NULL, one_thread, (void *)(words + 16 + 4 * i)) == 0,
                "no thread %d", (int)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
}

/* An event ends with its work, and never before, whether or not the GPU writes that it has. */
static void events(void)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < ROUNDS; i++) {
        unsigned got = 0;
        CUstream where = i % 3 == 0 ? NULL : i % 3 == 1 ? stream : other;
        CU(cuMemsetD32Async(words, (unsigned)i, BYTES / 8, where));
        CU(cuEventRecord(event, where));
        CU(cuEventSynchronize(event));
        CU_GIVES(CUDA_SUCCESS, cuEventQuery(event));
        CU(cuMemcpyDtoHAsync(&got, words + BYTES / 2 - 4, sizeof got,
                             where == stream ? other : stream));
        EXPECT(got == (unsigned)i, "round %d: %u behind the event", i, got);
    }
    CU(cuEventDestroy(event));
}

static void capture(void)
{
    CUgraph graph;
    CUstream captured;
    CU(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemsetD32Async(words, 1, 1, captured));
    CU(cuMemsetD32Async(words, 2, 1, stream));
    CU(cuStreamSynchronize(stream));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(captured));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(captured, &graph));
    CU(cuStreamDestroy(captured));
    for (unsigned i = 0; i < ROUNDS; i++)
        wait_once(stream, words, i);
}

static void contexts(void)
{
    CUcontext context;
    CUstream its;
    CUdeviceptr memory;
    for (unsigned round = 0; round < 2; round++) {
        CU(cuCtxCreate(&context, NULL, 0, driver_device));
        CU(cuStreamCreate(&its, CU_STREAM_NON_BLOCKING));
        CU(cuMemAlloc(&memory, 4));
        for (unsigned i = 0; i < ROUNDS; i++)
            wait_once(its, memory, i);
        CU(cuCtxDestroy(context));
        CU(cuCtxSetCurrent(driver_context));
        for (unsigned i = 0; i < ROUNDS; i++)
            wait_once(stream, words, i);
    }
    CU(cuDevicePrimaryCtxRelease(driver_device));
    CU(cuDevicePrimaryCtxRetain(&driver_context, driver_device));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, BYTES));
    for (unsigned i = 0; i < ROUNDS; i++)
        wait_once(stream, words, i);
}

static void fault(void)
{
    CUmodule module;
    CUdeviceptr p = 0x10;
    void *parameters[] = {&p};
    unsigned got;
    count(ROUNDS);
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuLaunchKernel(driver_function(module, "write_to"), 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                      NULL));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoHAsync(&got, words, sizeof got, stream));
}

static void never(void)
{
    count(ROUNDS);
    hold(stream, 1);
    printf("ready\n");
    fflush(stdout);
    CU_GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuStreamSynchronize(stream));
    CU_GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, cuStreamSynchronize(stream));
}

static CUfunction printing(void)
{
    CUmodule module;
    count(ROUNDS);
    CU(cuModuleLoadData(&module, print_ptx));
    return driver_function(module, "print");
}

/* An event that is waited for has been waited for before: from then on the GPU writes. */
static void print(int rounds, bool by_event)
{
    CUfunction function = printing();
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, stream));
    CU(cuEventSynchronize(event));
    for (int i = 0; i < rounds; i++) {
        CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        if (by_event)
            CU(cuEventRecord(event, stream));
        CU(by_event ? cuEventSynchronize(event) : cuStreamSynchronize(stream));
        puts("host"); /* by the same buffer */
    }
}

/* Of an image that may print nothing does before it is launched. */
static void silent(int rounds)
{
    CUmodule module;
    CUfunction write_to;
    CUdeviceptr to = words;
    void *parameters[] = {&to};
    printing();
    CU(cuModuleLoadData(&module, kernels_ptx));
    write_to = driver_function(module, "write_to");
    CU(cuLaunchKernel(write_to, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    CU(cuStreamSynchronize(stream));
    count(rounds);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *releases(void *unused)
{
    const struct timespec pause = {0, 20000000};
    CU(cuCtxSetCurrent(driver_context));
    nanosleep(&pause, NULL);
    release(0);
    return unused;
}

/* The part of a long wait for which its thread keeps a processor busy. */
static double busy_part(void)
{
    pthread_t thread;
    hold(stream, 0);
    double wall = seconds_of(CLOCK_MONOTONIC), own = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    REQUIRE(pthread_create(&thread, NULL, releases, NULL) == 0, "no thread");
    CU(cuStreamSynchronize(stream));
    own = seconds_of(CLOCK_THREAD_CPUTIME_ID) - own;
    wall = seconds_of(CLOCK_MONOTONIC) - wall;
    pthread_join(thread, NULL);
    CU(cuMemsetD32(words + BYTES - 64, 0, 1));
    CU(cuCtxSynchronize());
    return own / wall;
}

/* A machine that is busy gives nobody a whole processor, and who sleeps needs next to nothing. */
static void long_waits(int rounds, bool spin)
{
    double most = 0;
    for (int i = 0; i < rounds; i++) {
        double part = busy_part();
        most = part > most ? part : most;
    }
    EXPECT((most > 0.05) == spin, "a wait took %.2f of a processor", most);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int rounds = argc > 2 ? atoi(argv[2]) : 0;
    bool looks = strcmp(what, "looks") == 0, rests = strcmp(what, "rests") == 0;
    if (looks || rests || strcmp(what, "sleep") == 0) {
        const char *device = getenv("E2E_DEVICE");
        CU(cuInit(0));
        CU(cuDevicePrimaryCtxSetFlags(device ? atoi(device) : 0,
                                      looks ? CU_CTX_SCHED_SPIN : CU_CTX_SCHED_BLOCKING_SYNC));
    }
    prepare();
    if (strcmp(what, "fault") == 0 || strcmp(what, "hold") == 0) {
        strcmp(what, "hold") == 0 ? never() : fault();
        return finish("driver_waits");
    }
    if (strcmp(what, "print") == 0 || strcmp(what, "says") == 0) {
        print(rounds, strcmp(what, "says") == 0);
    } else if (looks || rests) {
        long_waits(rounds, looks);
    } else if (strcmp(what, "silent") == 0) {
        silent(rounds);
    } else if (rounds) {
        count(rounds);
    } else {
        sizes();
        uploads(true);
        if (!driver_is_native())
            uploads(false);
        host_functions();
        whole();
        legacy();
        held();
        threads();
        events();
        capture();
        contexts();
    }
    driver_stop();
    return finish("driver_waits");
}
