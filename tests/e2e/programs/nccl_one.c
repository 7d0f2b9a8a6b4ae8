/* A communicator of one rank, as a training job on one GPU makes it. */
#include "nccl_ranks.h"

#define COUNT 1000

static ncclComm_t comm;
static CUstream stream;
static CUdeviceptr a, b;

static void expect(const char *what, uint64_t value)
{
    CU(cuStreamSynchronize(stream));
    nccl_expect(what, b, ncclInt32, value, COUNT);
    nccl_fill(b, ncclInt32, 0, COUNT);
}

int main(void)
{
    ncclUniqueId id;
    int count = 0;
    nccl_open();
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&a, COUNT * 4));
    CU(cuMemAlloc(&b, COUNT * 4));
    nccl_fill(a, ncclInt32, 7, COUNT);
    nccl_fill(b, ncclInt32, 0, COUNT);
    for (int again = 0; again < 2; again++) {
        NCCL(nccl.GetUniqueId(&id));
        NCCL(nccl.CommInitRank(&comm, 1, id, 0));
        NCCL(nccl.CommCount(comm, &count));
        EXPECT(count == 1, "%d ranks", count);
        void *from = (void *)(uintptr_t)a, *to = (void *)(uintptr_t)b;
        NCCL(nccl.AllReduce(from, to, COUNT, ncclInt32, ncclSum, comm, stream));
        expect("all-reduce", 7);
        NCCL(nccl.Broadcast(from, to, COUNT, ncclInt32, 0, comm, stream));
        expect("broadcast", 7);
        NCCL(nccl.AllGather(from, to, COUNT, ncclInt32, comm, stream));
        expect("all-gather", 7);
        NCCL(nccl.ReduceScatter(from, to, COUNT, ncclInt32, ncclMax, comm, stream));
        expect("reduce-scatter", 7);
        NCCL(nccl.CommDestroy(comm));
    }
    return finish("nccl_one");
}
