/*
 * Pinned memory that kernels reach by its address. The first tests write on one side and read on the
 * other, with the synchronization that CUDA asks for between the two; the last ones have none:
 * host and kernel wait for each other's words while both run.
 *
 * With an argument it is memory of the program's that it registers.
 */
#include "driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#define INTS ((int)1 << 18)
#define BYTES ((size_t)INTS * sizeof(int))
#define ROUNDS 100

/* For each round it waits for `ask`, reads `data`, writes `answer`, and then `done`. */
static const char ping_pong_ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry ping_pong(.param .u64 data, .param .u64 ask, .param .u64 answer,\n"
    "  .param .u64 done, .param .u32 rounds)\n{\n"
    "  .reg .u64 %a<5>;\n  .reg .u32 %r<6>;\n  .reg .pred %p<3>;\n"
    "  ld.param.u64 %a1, [data];\n  ld.param.u64 %a2, [ask];\n"
    "  ld.param.u64 %a3, [answer];\n  ld.param.u64 %a4, [done];\n"
    "  ld.param.u32 %r1, [rounds];\n  mov.u32 %r2, 0;\n"
    "NEXT:\n  add.u32 %r2, %r2, 1;\n"
    "WAIT:\n  ld.volatile.global.u32 %r3, [%a2];\n  setp.lt.u32 %p1, %r3, %r2;\n"
    "  @%p1 bra WAIT;\n"
    "  ld.volatile.global.u32 %r4, [%a1];\n  mad.lo.u32 %r5, %r4, 3, 1;\n"
    "  st.volatile.global.u32 [%a3], %r5;\n  membar.sys;\n"
    "  st.volatile.global.u32 [%a4], %r2;\n"
    "  setp.lt.u32 %p2, %r2, %r1;\n  @%p2 bra NEXT;\n  ret;\n}\n";

/*
 * shows: writes each round's number to `data`, and then to `flag`.
 * watches: reads `flag` and then `data` until all rounds have come; `older` counts data that was not
 * there although its flag was.
 */
static const char order_ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry shows(.param .u64 data, .param .u64 flag, .param .u32 rounds)\n{\n"
    "  .reg .u64 %a<3>;\n  .reg .u32 %r<3>;\n  .reg .pred %p<2>;\n"
    "  ld.param.u64 %a1, [data];\n  ld.param.u64 %a2, [flag];\n"
    "  ld.param.u32 %r1, [rounds];\n  mov.u32 %r2, 0;\n"
    "NEXT:\n  add.u32 %r2, %r2, 1;\n  st.volatile.global.u32 [%a1], %r2;\n  membar.sys;\n"
    "  st.volatile.global.u32 [%a2], %r2;\n  membar.sys;\n"
    "  setp.lt.u32 %p1, %r2, %r1;\n  @%p1 bra NEXT;\n  ret;\n}\n"
    ".visible .entry watches(.param .u64 data, .param .u64 flag, .param .u32 rounds,"
    " .param .u64 older)\n{\n"
    "  .reg .u64 %a<4>;\n  .reg .u32 %r<5>;\n  .reg .pred %p<3>;\n"
    "  ld.param.u64 %a1, [data];\n  ld.param.u64 %a2, [flag];\n  ld.param.u64 %a3, [older];\n"
    "  ld.param.u32 %r1, [rounds];\n  mov.u32 %r4, 0;\n"
    "NEXT:\n  ld.volatile.global.u32 %r2, [%a2];\n  membar.sys;\n"
    "  ld.volatile.global.u32 %r3, [%a1];\n  setp.lt.u32 %p1, %r3, %r2;\n"
    "  @%p1 add.u32 %r4, %r4, 1;\n  setp.lt.u32 %p2, %r2, %r1;\n  @%p2 bra NEXT;\n"
    "  st.global.u32 [%a3], %r4;\n  ret;\n}\n";

static CUfunction increment, multiply_add, ping_pong, shows, watches;
static CUstream stream;

static bool registered; /* it is the program's own memory, which it has registered */

static size_t whole_pages(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static int *pinned(size_t bytes)
{
    void *p;
    if (registered) {
        p = driver_own_memory(whole_pages(bytes));
        CU(cuMemHostRegister(p, whole_pages(bytes), CU_MEMHOSTREGISTER_DEVICEMAP));
    } else {
        CU(cuMemHostAlloc(&p, bytes, CU_MEMHOSTALLOC_PORTABLE));
    }
    return p;
}

static void release(void *p)
{
    CU(registered ? cuMemHostUnregister(p) : cuMemFreeHost(p));
}

static CUdeviceptr on_device(const void *p)
{
    CUdeviceptr at;
    CU(cuMemHostGetDevicePointer(&at, (void *)(uintptr_t)p, 0));
    return at;
}

static void run(CUfunction f, CUdeviceptr p, int n, int factor, int term)
{
    void *parameters[] = {&p, &n, &factor, &term};
    CU(cuLaunchKernel(f, (unsigned)(n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

static void expect(const int *p, int n, int from, int step, const char *what)
{
    for (int i = 0; i < n; i++)
        if (p[i] != from + step * i) {
            EXPECT(0, "%s: %d is %d", what, i, p[i]);
            return;
        }
}

/* --- one after the other ---------------------------------------------------------------------- */

static void attributes(void)
{
    int *p = pinned(BYTES);
    CUdeviceptr at = on_device(p), said = 0;
    unsigned type = 0;
    void *host = NULL;
    EXPECT(on_device(p + 3) == at + 12, "of a part: %#llx", on_device(p + 3));
    CU(cuPointerGetAttribute(&said, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (CUdeviceptr)(p + 3)));
    EXPECT(said == at + 12, "DEVICE_POINTER is %#llx", said);
    CU(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, (CUdeviceptr)p));
    EXPECT(host == p, "HOST_POINTER is %p", host);
    CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)p));
    EXPECT(type == CU_MEMORYTYPE_HOST, "MEMORY_TYPE is %u", type);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(NULL, p, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&at, p, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&at, &type, 0));
    release(p);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&at, p, 0));
}

/* What was there before its address was asked for is what the kernel finds. */
static void both_ways(void)
{
    int *p = pinned(BYTES);
    for (int i = 0; i < INTS; i++)
        p[i] = i;
    CUdeviceptr at = on_device(p);
    run(multiply_add, at, INTS, 3, 7);
    CU(cuStreamSynchronize(stream));
    expect(p, INTS, 7, 3, "what the kernel made");
    p[INTS / 2] = 1000;
    run(increment, at, INTS, 0, 0);
    CU(cuCtxSynchronize());
    EXPECT(p[INTS / 2] == 1001 && p[0] == 8, "a page that was written: %d, %d", p[INTS / 2], p[0]);
    for (int round = 0; round < 20; round++) {
        p[round * 1000] = -1;
        run(increment, at, INTS, 0, 0);
        while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
            ;
        EXPECT(p[round * 1000] == 0, "round %d: %d", round, p[round * 1000]);
    }
    release(p);
}

/* Nobody asks for its address: one address is good on both sides. */
static void by_its_own_address(void)
{
    int *p = pinned(BYTES);
    for (int i = 0; i < INTS; i++)
        p[i] = -i;
    run(increment, (CUdeviceptr)(uintptr_t)p, INTS, 0, 0);
    CU(cuStreamSynchronize(stream));
    expect(p, INTS, 1, -1, "by the host's address");
    release(p);
}

static void copies(void)
{
    int *p = pinned(BYTES), *plain = malloc(BYTES), *other = pinned(BYTES);
    CUdeviceptr at = on_device(p), device;
    CU(cuMemAlloc(&device, BYTES));
    for (int i = 0; i < INTS; i++)
        p[i] = 2 * i;
    CU(cuMemcpyHtoDAsync(device, p, BYTES, stream));
    run(increment, device, INTS, 0, 0);
    CU(cuMemcpyDtoHAsync(p, device, BYTES, stream));
    run(increment, at, INTS, 0, 0);
    CU(cuMemcpyDtoHAsync(other, at, BYTES, stream));
    CU(cuStreamSynchronize(stream));
    expect(p, INTS, 2, 2, "copied there and back");
    expect(other, INTS, 2, 2, "to other pinned memory");
    for (int i = 0; i < INTS; i++)
        plain[i] = 5 - i;
    CU(cuMemcpy(at, (CUdeviceptr)(uintptr_t)plain, BYTES));
    CU(cuMemsetD32Async(at + 4, 77, 2, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(p[0] == 5 && p[1] == 77 && p[2] == 77 && p[3] == 2, "a set: %d %d %d %d", p[0], p[1],
           p[2], p[3]);
    p[3] = 12;
    CU(cuMemcpyHtoD(device, p, BYTES));
    CU(cuMemcpyDtoH(plain, device, BYTES));
    EXPECT(plain[2] == 77 && plain[3] == 12 && plain[4] == 1, "from it: %d %d %d", plain[2],
           plain[3], plain[4]);
    CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = device,
                         .srcPitch = 64,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = p,
                         .dstPitch = 4096,
                         .WidthInBytes = 64,
                         .Height = 4};
    p[16] = -5;
    CU(cuMemcpy2D(&box));
    EXPECT(p[15] == plain[15] && p[16] == -5 && p[1024] == plain[16], "rows: %d %d %d", p[15],
           p[16], p[1024]);
    CU(cuMemFree(device));
    release(p);
    release(other);
    free(plain);
}

static void graph(void)
{
    CUgraph made;
    CUgraphExec exec;
    int *p = pinned(BYTES);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p, device; /* which the capture is the first to use */
    if (registered)
        at = on_device(p);
    CU(cuMemAlloc(&device, BYTES));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemcpyHtoDAsync(device, p, BYTES, stream));
    run(increment, device, INTS, 0, 0);
    CU(cuMemcpyDtoHAsync(p, device, BYTES, stream));
    run(increment, at, INTS, 0, 0);
    CU(cuStreamEndCapture(stream, &made));
    CU(cuGraphInstantiate(&exec, made, 0));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < INTS; i++)
            p[i] = i * round;
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        expect(p, INTS, 2, round, "a graph");
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(made));
    CU(cuMemFree(device));
    release(p);
}

static void on_host(void *data)
{
    int *p = data;
    EXPECT(p[7] == 8, "in a host function: %d", p[7]);
    p[7] = 100;
}

/* The kernel behind a host function sees what that wrote. */
static void host_functions(void)
{
    int *p = pinned(BYTES);
    CUdeviceptr at = on_device(p);
    for (int i = 0; i < INTS; i++)
        p[i] = i;
    run(increment, at, INTS, 0, 0);
    CU(cuLaunchHostFunc(stream, on_host, p));
    run(increment, at, INTS, 0, 0);
    CU(cuStreamSynchronize(stream));
    EXPECT(p[7] == 101 && p[6] == 8, "behind it: %d, %d", p[7], p[6]);
    release(p);
}

static void many(void)
{
    enum { COUNT = 100 };
    int *p[COUNT];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            p[i] = pinned((size_t)(i % 7 + 1) * 3000);
            p[i][i] = i;
            run(increment, on_device(p[i]), i + 1, 0, 0);
        }
        CU(cuStreamSynchronize(stream));
        for (int i = 0; i < COUNT; i++)
            EXPECT(p[i][i] == i + 1 && (i == 0 || p[i][0] == 1), "%d is %d", i, p[i][i]);
        for (int i = 0; i < COUNT; i++)
            release(p[i * 7 % COUNT]);
    }
}

/* --- at the same time ------------------------------------------------------------------------ */

static bool comes(volatile unsigned *word, unsigned value)
{
    for (long turns = 0; *word < value; turns++)
        if (turns > 100000 && cuStreamQuery(stream) != CUDA_ERROR_NOT_READY)
            return *word >= value;
    return true;
}

/* Their four words lie in one page, or far from each other. */
static void polled(size_t words_apart)
{
    volatile unsigned *p = (volatile unsigned *)pinned((4 * words_apart + 1) * sizeof *p);
    CUdeviceptr at = on_device((const void *)(uintptr_t)p);
    CUdeviceptr word[4];
    unsigned rounds = ROUNDS;
    for (unsigned i = 0; i < 4; i++)
        word[i] = at + i * words_apart * sizeof *p;
    void *parameters[] = {&word[0], &word[1], &word[2], &word[3], &rounds};
    CU(cuLaunchKernel(ping_pong, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    for (unsigned i = 1; i <= rounds; i++) {
        p[0] = 1000 + i;
        p[words_apart] = i;
        REQUIRE(comes(p + 3 * words_apart, i), "round %u never came", i);
        EXPECT(p[2 * words_apart] == 3 * (1000 + i) + 1, "%zu apart, round %u: %u", words_apart, i,
               p[2 * words_apart]);
    }
    CU(cuStreamSynchronize(stream));
    EXPECT(p[0] == 1000 + rounds && p[3 * words_apart] == rounds, "at the end: %u, %u", p[0],
           p[3 * words_apart]);
    release((void *)(uintptr_t)p);
}

/* Nobody waits for the other one: no flag is seen before its data, whenever that is looked at. */
static void in_order(size_t words_apart, unsigned rounds)
{
    volatile unsigned *p = (volatile unsigned *)pinned((words_apart + 1) * sizeof *p);
    CUdeviceptr data = on_device((const void *)(uintptr_t)p), flag = data + words_apart * sizeof *p;
    CUdeviceptr older;
    unsigned count = 1, seen;
    CU(cuMemAlloc(&older, sizeof count));
    void *parameters[] = {&data, &flag, &rounds, &older};
    CU(cuLaunchKernel(watches, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    for (unsigned i = 1; i <= rounds; i++) {
        p[0] = i;
        for (volatile unsigned turns = i % 97 * 20; turns; turns--)
            ;
        p[words_apart] = i;
    }
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(&count, older, sizeof count));
    EXPECT(count == 0, "%zu apart: a kernel found %u flags without their data", words_apart, count);
    p[0] = p[words_apart] = 0;
    CU(cuLaunchKernel(shows, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    do {
        seen = p[words_apart];
        unsigned with_it = p[0];
        EXPECT(with_it >= seen, "%zu apart: %u came before its data, %u", words_apart, seen,
               with_it);
    } while (seen < rounds);
    CU(cuStreamSynchronize(stream));
    CU(cuMemFree(older));
    release((void *)(uintptr_t)p);
}

/* Each instruction needs a page of both. */
static void copied_meanwhile(void)
{
    unsigned *p = (unsigned *)pinned(8 * 65536);
    unsigned rounds = 1;
    memset(p, 7, 65536);
    CUdeviceptr data = on_device(p + 7 * 16384), ask = data + 4, answer = data + 8,
                done = data + 12;
    void *parameters[] = {&data, &ask, &answer, &done, &rounds};
    CU(cuLaunchKernel(ping_pong, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    memcpy(p + 16384 - 2, p, 4096);
    EXPECT(p[16384 - 2] == 0x07070707 && p[16384] == 0x07070707, "copied: %x, %x", p[16384 - 2],
           p[16384]);
    p[7 * 16384] = 4;
    p[7 * 16384 + 1] = 1;
    CU(cuStreamSynchronize(stream));
    EXPECT(p[7 * 16384 + 2] == 13, "the answer is %u", p[7 * 16384 + 2]);
    EXPECT(p[16384 + 1020] == 0x07070707, "what was copied: %x", p[16384 + 1020]);
    release(p);
}

/* Registered memory stays when kernels cannot reach it any more, with what they made of it. */
static void kept(void)
{
    int *p = driver_own_memory(whole_pages(BYTES)), status = 0;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < INTS; i++)
            p[i] = i - round;
        CU(cuMemHostRegister(p, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
        run(increment, on_device(p), INTS / 2, 0, 0);
        for (int i = INTS / 2; i < INTS && round % 2; i++)
            p[i]++;
        CU(cuStreamSynchronize(stream));
        CU(cuMemHostUnregister(p));
        expect(p, INTS / 2, 1 - round, 1, "given back");
        EXPECT(p[INTS - 1] == INTS - 1 - round + round % 2, "the last one is %d", p[INTS - 1]);
    }
    pid_t child = fork();
    if (child == 0) {
        p[0]++;
        _exit(p[0] == -17 && p[INTS - 1] == INTS - 19 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    EXPECT(status == 0 && p[0] == -18, "a child ended with %d, and %d is here", status, p[0]);
    munmap(p, whole_pages(BYTES));
}

static volatile bool over;

/* What the program does with its memory while it is taken and given back. */
static void *counts(void *arg)
{
    volatile uint64_t *word = arg; /* 32 bits are through in a few seconds */
    for (; !over; *word += 1)
        ;
    return NULL;
}

static void kept_from_a_thread(void)
{
    enum { WORD = 5000 };
    unsigned *p = driver_own_memory(65536);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, counts, p + WORD) == 0, "no thread");
    for (int round = 0; round < 50; round++) {
        volatile uint64_t *word = (volatile uint64_t *)(p + WORD);
        uint64_t before = *word;
        CU(cuMemHostRegister(p, 65536, CU_MEMHOSTREGISTER_DEVICEMAP));
        run(increment, on_device(p), 10, 0, 0);
        CU(cuStreamSynchronize(stream));
        CU(cuMemHostUnregister(p));
        EXPECT(p[9] == (unsigned)round + 1, "round %d: %u", round, p[9]);
        uint64_t now = *word;
        EXPECT(now >= before, "it counted back from %llu to %llu", (unsigned long long)before,
               (unsigned long long)now);
    }
    over = true;
    pthread_join(thread, NULL);
    munmap(p, 65536);
}

int main(int argc, char **argv)
{
    CUmodule module, second, third;
    (void)argv;
    registered = argc > 1;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuModuleLoadData(&second, ping_pong_ptx));
    increment = driver_function(module, "increment");
    multiply_add = driver_function(module, "multiply_add");
    CU(cuModuleLoadData(&third, order_ptx));
    ping_pong = driver_function(second, "ping_pong");
    shows = driver_function(third, "shows");
    watches = driver_function(third, "watches");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    attributes();
    both_ways();
    if (registered) {
        kept();
        kept_from_a_thread();
    } else {
        by_its_own_address();
    }
    copies();
    graph();
    host_functions();
    many();
    polled(1);
    polled(16384);
    in_order(1, 3000);
    in_order(2000, 3000);
    in_order(16384, 100);
    copied_meanwhile();
    int *left = pinned(BYTES); /* goes with the context */
    run(increment, on_device(left), INTS, 0, 0);
    CU(cuStreamDestroy(stream));
    CU(cuModuleUnload(third));
    CU(cuModuleUnload(second));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_mapped");
}
