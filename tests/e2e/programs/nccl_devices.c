/*
 * One process with two GPUs, a rank of NCCL on each: by groups of one thread, and by a thread for
 * each rank, which must not hold each other up.
 */
#include "nccl_ranks.h"

#include <malloc.h>
#include <pthread.h>

#define COUNT 5000
#define ROUNDS 20
#define THREADS 200

static struct rank {
    CUcontext context;
    CUstream stream;
    CUdeviceptr a, b;
    ncclComm_t comm;
    ncclUniqueId id;
    int number;
} ranks[2];

static void fill(void)
{
    for (int i = 0; i < 2; i++) {
        CU(cuCtxSetCurrent(ranks[i].context));
        nccl_fill(ranks[i].a, ncclInt32, (uint64_t)i + 1, COUNT);
    }
}

static void expect(const char *what)
{
    for (int i = 0; i < 2; i++) {
        CU(cuCtxSetCurrent(ranks[i].context));
        CU(cuStreamSynchronize(ranks[i].stream));
        nccl_expect(what, ranks[i].b, ncclInt32, 3, COUNT);
    }
}

static ncclResult_t reduce(const struct rank *r)
{
    return nccl.AllReduce((void *)(uintptr_t)r->a, (void *)(uintptr_t)r->b, COUNT, ncclInt32,
                          ncclSum, r->comm, r->stream);
}

/* A part of one rank alone: in a group no call waits for those that come behind it. */
static void part_of_one(const ncclComm_t comms[2])
{
    ncclComm_t parts[2];
    int count = 0;
    NCCL(nccl.GroupStart());
    NCCL(nccl.CommSplit(comms[0], NCCL_SPLIT_NOCOLOR, 0, &parts[0], NULL));
    NCCL(nccl.CommSplit(comms[1], 1, 0, &parts[1], NULL));
    NCCL(nccl.GroupEnd());
    EXPECT(!parts[0] && parts[1], "the parts are %p and %p", (void *)parts[0], (void *)parts[1]);
    NCCL(nccl.CommCount(parts[1], &count));
    EXPECT(count == 1, "%d ranks", count);
    NCCL(nccl.CommDestroy(parts[1]));
}

static void by_groups(void)
{
    ncclComm_t comms[2];
    int twice[2] = {0, 0}, device = -1;
    NCCL_GIVES(ncclInvalidUsage, nccl.CommInitAll(comms, 2, twice));
    NCCL(nccl.CommInitAll(comms, 2, NULL));
    NCCL(nccl.CommCuDevice(comms[1], &device));
    EXPECT(device == 1, "the second rank is on device %d", device);
    ranks[0].comm = comms[0];
    ranks[1].comm = comms[1];
    fill();
    for (int round = 0; round < ROUNDS; round++) {
        NCCL(nccl.GroupStart());
        NCCL(reduce(&ranks[0]));
        NCCL(reduce(&ranks[1]));
        NCCL(nccl.GroupEnd());
    }
    expect("by groups");
    part_of_one(comms);
    NCCL(nccl.CommDestroy(comms[0]));
    NCCL(nccl.CommDestroy(comms[1]));
}

static void *one_thread(void *arg)
{
    struct rank *r = arg;
    CU(cuCtxSetCurrent(r->context));
    NCCL(nccl.CommInitRank(&r->comm, 2, r->id, r->number));
    for (int round = 0; round < ROUNDS; round++)
        NCCL(reduce(r));
    CU(cuStreamSynchronize(r->stream));
    return NULL;
}

static void by_threads(void)
{
    pthread_t threads[2];
    NCCL(nccl.GetUniqueId(&ranks[0].id));
    ranks[1].id = ranks[0].id;
    fill();
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, one_thread, &ranks[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    expect("by threads");
    for (int i = 0; i < 2; i++)
        NCCL(nccl.CommDestroy(ranks[i].comm));
}

static void *one_call(void *arg)
{
    struct rank *r = arg;
    CU(cuCtxSetCurrent(r->context));
    NCCL(reduce(r));
    return NULL;
}

static size_t after_threads(int count)
{
    pthread_t thread;
    for (int i = 0; i < count; i++) {
        pthread_create(&thread, NULL, one_call, &ranks[0]);
        pthread_join(thread, NULL);
    }
    CU(cuStreamSynchronize(ranks[0].stream));
    return mallinfo2().uordblks;
}

/* Threads that come and go leave nothing of their groups. */
static void threads_that_end(void)
{
    int first = 0;
    NCCL(nccl.CommInitAll(&ranks[0].comm, 1, &first));
    size_t before = after_threads(20), after = after_threads(THREADS);
    EXPECT(after < before + THREADS * 512, "%d threads have left %zu bytes", THREADS,
           after - before);
    NCCL(nccl.CommDestroy(ranks[0].comm));
}

/* A communicator goes no further than its context. */
static void without_context(void)
{
    ncclComm_t comm;
    ncclResult_t state = ncclSuccess;
    int first = 0;
    NCCL(nccl.CommInitAll(&comm, 1, &first));
    CU(cuDevicePrimaryCtxReset(0));
    CU(cuCtxSetCurrent(ranks[1].context));
    NCCL(nccl.CommGetAsyncError(comm, &state));
    EXPECT(state == ncclUnhandledCudaError, "the state is %d", (int)state);
    nccl.CommAbort(comm);
}

int main(void)
{
    nccl_open();
    CU(cuInit(0));
    for (int i = 0; i < 2; i++) {
        ranks[i].number = i;
        CU(cuDevicePrimaryCtxRetain(&ranks[i].context, i));
        CU(cuCtxSetCurrent(ranks[i].context));
        CU(cuStreamCreate(&ranks[i].stream, CU_STREAM_NON_BLOCKING));
        CU(cuMemAlloc(&ranks[i].a, 4 * COUNT));
        CU(cuMemAlloc(&ranks[i].b, 4 * COUNT));
    }
    by_groups();
    by_threads();
    if (!driver_is_native()) {
        threads_that_end();
        without_context();
    }
    return finish("nccl_devices");
}
