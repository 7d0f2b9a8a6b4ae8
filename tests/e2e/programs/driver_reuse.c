/*
 * Memory that is freed while work of another context or device, of a destroyed stream, or of before
 * a capture still writes to it: nobody has it again before that is over. CUDA waits in cuMemFree; here the
 * memory is held back.
 */
#include "driver.h"

#include <pthread.h>
#include <time.h>

enum { PIECES = 8, STALE = 0x11, FRESH = 0x22 };
#define BYTES ((size_t)512 << 10)

static volatile unsigned *flag; /* pinned: a stream that is held waits until it is 1 */
static CUdeviceptr flag_there;

static void hold(CUstream stream)
{
    *flag = 0;
    CU(cuStreamWaitValue32(stream, flag_there, 1, CU_STREAM_WAIT_VALUE_EQ));
}

/* Without a call of CUDA: a local driver may be waiting in one, under its locks. */
static void *release_later(void *unused)
{
    const struct timespec pause = {0, 200000000};
    nanosleep(&pause, NULL);
    *flag = 1;
    return unused;
}

static void expect_fresh(const char *what, CUdeviceptr fresh[PIECES])
{
    unsigned char *host = check_alloc(BYTES);
    for (int i = 0; i < PIECES; i++) {
        size_t wrong = 0;
        CU(cuMemcpyDtoH(host, fresh[i], BYTES));
        for (size_t k = 0; k < BYTES; k++)
            wrong += host[k] != FRESH;
        EXPECT(wrong == 0, "%s: %zu bytes of allocation %d are not what was written", what, wrong,
               i);
        CU(cuMemFree(fresh[i]));
    }
    free(host);
}

/* Frees what a stream has still to write to, and sees that nothing else gets that memory. */
static void free_and_fill(CUdeviceptr old, CUcontext owner, CUstream other,
                          CUdeviceptr fresh[PIECES])
{
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, release_later, NULL) == 0, "no thread");
    CU(cuMemFree(old));
    CU(cuCtxSetCurrent(owner));
    for (int i = 0; i < PIECES; i++) {
        CU(cuMemAlloc(&fresh[i], BYTES));
        CU(cuMemsetD8Async(fresh[i], FRESH, BYTES, other));
    }
    CU(cuStreamSynchronize(other));
    pthread_join(thread, NULL);
}

struct place {
    CUstream stream, other;
    CUdeviceptr old;
};

/* `old` is written when the stream goes on. */
static struct place held_place(void)
{
    struct place p;
    CU(cuStreamCreate(&p.stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&p.other, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&p.old, BYTES));
    CU(cuMemsetD8(p.old, 0, BYTES));
    CU(cuCtxSynchronize());
    hold(p.stream);
    CU(cuMemsetD8Async(p.old, STALE, BYTES, p.stream));
    return p;
}

static void leave(const struct place *p)
{
    CU(cuStreamDestroy(p->stream));
    CU(cuStreamDestroy(p->other));
}

/* Freed in `where`, which knows nothing of the work. */
static void in_other_context(const char *what, CUcontext owner, CUcontext where)
{
    CUdeviceptr mine, fresh[PIECES];
    CU(cuCtxSetCurrent(owner));
    struct place p = held_place();
    CU(cuCtxSetCurrent(where));
    CU(cuMemAlloc(&mine, 4 * BYTES));
    CU(cuCtxSynchronize()); /* its own work is over, and known to be */
    free_and_fill(p.old, owner, p.other, fresh);
    CU(cuCtxSynchronize());
    expect_fresh(what, fresh);
    leave(&p);
    CU(cuCtxSetCurrent(where));
    CU(cuMemFree(mine));
}

/* Who waits for the context waits for work of streams that are gone. */
static void behind_destruction(void)
{
    CUdeviceptr fresh[PIECES];
    pthread_t thread;
    unsigned char last = 0;
    CU(cuCtxSetCurrent(driver_context));
    struct place p = held_place();
    CU(cuStreamDestroy(p.stream));
    REQUIRE(pthread_create(&thread, NULL, release_later, NULL) == 0, "no thread");
    CU(cuCtxSynchronize());
    CU(cuMemcpyDtoH(&last, p.old + BYTES - 1, 1));
    EXPECT(last == STALE, "the last byte is %#x behind a destroyed stream", last);
    pthread_join(thread, NULL);
    CU(cuMemFree(p.old));
    CU(cuStreamDestroy(p.other));
    p = held_place();
    CU(cuStreamDestroy(p.stream));
    free_and_fill(p.old, driver_context, p.other, fresh);
    CU(cuCtxSynchronize());
    expect_fresh("a destroyed stream", fresh);
    CU(cuStreamDestroy(p.other));
}

/* The stream captures by now; what it did before is under way. */
static void before_capture(void)
{
    CUdeviceptr fresh[PIECES];
    CUgraph graph;
    CU(cuCtxSetCurrent(driver_context));
    struct place p = held_place();
    CU(cuStreamBeginCapture(p.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    free_and_fill(p.old, driver_context, p.other, fresh);
    CU(cuStreamEndCapture(p.stream, &graph));
    CU(cuGraphDestroy(graph));
    CU(cuStreamSynchronize(p.stream));
    expect_fresh("a capture", fresh);
    leave(&p);
}

static void flag_new(void)
{
    void *p;
    CU(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(&flag_there, p, 0));
    flag = p;
}

int main(void)
{
    CUcontext second;
    int devices;
    driver_start();
    flag_new();
    CU(cuCtxCreate(&second, NULL, 0, driver_device));
    in_other_context("a second context", driver_context, second);
    in_other_context("the first context", second, driver_context);
    CU(cuCtxDestroy(second));
    CU(cuDeviceGetCount(&devices));
    if (devices > 1) {
        CUdevice device;
        CU(cuDeviceGet(&device, 1));
        CU(cuDevicePrimaryCtxRetain(&second, device));
        in_other_context("a second device", driver_context, second);
        CU(cuDevicePrimaryCtxRelease(device));
    }
    before_capture();
    behind_destruction();
    driver_stop();
    return finish("driver_reuse");
}
