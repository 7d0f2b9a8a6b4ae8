/*
 * One of two ranks, a process each: every collective, every type and reduction, groups, captures,
 * parts of a communicator, and what is refused.
 *
 *   nccl_ranks RANK FILE [dies|warm|ends]
 *
 * `dies`: rank 1 ends in the middle, and rank 0 hears of it. `warm`: the same collective often.
 * `ends`: the same collective until there is an error, which is told.
 */
#include "nccl_ranks.h"

#define COUNT 1000
#define WARM 200

static int rank;
static ncclComm_t comm;
static CUstream stream;
static CUdeviceptr a, b;

static void *at(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

static uint64_t mine(int type)
{
    return rank == 0 ? nccl_types[type].one : nccl_types[type].two;
}

static void wait_stream(void)
{
    CU(cuStreamSynchronize(stream));
}

static void reductions(void)
{
    for (int type = 0; type < ncclNumTypes; type++)
        for (int op = 0; op < ncclNumOps; op++) {
            const uint64_t expected[ncclNumOps] = {nccl_types[type].three, nccl_types[type].two,
                                                   nccl_types[type].two, nccl_types[type].one,
                                                   nccl_types[type].half};
            nccl_fill(a, type, mine(type), COUNT);
            NCCL(nccl.AllReduce(at(a), at(b), COUNT, (ncclDataType_t)type, (ncclRedOp_t)op, comm,
                                stream));
            wait_stream();
            nccl_expect("all-reduce", b, type, expected[op], COUNT);
        }
}

static void others(void)
{
    const int t = ncclInt32;
    nccl_fill(a, t, mine(t), 2 * COUNT);
    NCCL(nccl.Broadcast(at(a), at(b), COUNT, ncclInt32, 1, comm, stream));
    wait_stream();
    nccl_expect("broadcast", b, t, 2, COUNT);
    NCCL(nccl.AllGather(at(a), at(b), COUNT, ncclInt32, comm, stream));
    wait_stream();
    nccl_expect("all-gather", b, t, 1, COUNT);
    nccl_expect("all-gather", b + 4 * COUNT, t, 2, COUNT);
    NCCL(nccl.ReduceScatter(at(a), at(b), COUNT, ncclInt32, ncclSum, comm, stream));
    wait_stream();
    nccl_expect("reduce-scatter", b, t, 3, COUNT);
    NCCL(nccl.Reduce(at(a), at(b), COUNT, ncclInt32, ncclMax, 0, comm, stream));
    wait_stream();
    nccl_expect("reduce", b, t, rank == 0 ? 2 : 3, COUNT);
    NCCL(nccl.AlltoAll(at(a), at(b), COUNT, ncclInt32, comm, stream));
    wait_stream();
    nccl_expect("all-to-all", b, t, 1, COUNT);
    nccl_expect("all-to-all", b + 4 * COUNT, t, 2, COUNT);
    NCCL(nccl.Gather(at(a), at(b), COUNT, ncclInt32, 1, comm, stream));
    NCCL(nccl.Scatter(at(b), at(a), COUNT, ncclInt32, 1, comm, stream));
    wait_stream();
    nccl_expect("scatter", a, t, (uint64_t)rank + 1, COUNT);
    NCCL(nccl.Bcast(at(a), COUNT, ncclInt32, 0, comm, stream));
    wait_stream();
    nccl_expect("bcast", a, t, 1, COUNT);
}

static void groups(void)
{
    const int t = ncclInt64;
    nccl_fill(a, t, mine(t), 2 * COUNT);
    NCCL(nccl.GroupStart());
    NCCL(nccl.Send(at(a), COUNT, ncclInt64, 1 - rank, comm, stream));
    NCCL(nccl.GroupStart());
    NCCL(nccl.Recv(at(b), COUNT, ncclInt64, 1 - rank, comm, stream));
    NCCL(nccl.GroupEnd());
    NCCL(nccl.AllReduce(at(a + 8 * COUNT), at(b + 8 * COUNT), COUNT, ncclInt64, ncclSum, comm,
                        stream));
    NCCL(nccl.GroupEnd());
    wait_stream();
    nccl_expect("send and recv", b, t, rank == 0 ? 2 : 1, COUNT);
    nccl_expect("in a group", b + 8 * COUNT, t, 3, COUNT);
    NCCL(nccl.GroupStart());
    NCCL(nccl.GroupEnd());
    NCCL_GIVES(ncclInvalidUsage, nccl.GroupEnd());
}

static void captured(void)
{
    CUgraph graph;
    CUgraphExec exec;
    nccl_fill(a, ncclInt32, mine(ncclInt32), COUNT);
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NCCL(nccl.AllReduce(at(a), at(b), COUNT, ncclInt32, ncclSum, comm, stream));
    NCCL(nccl.AllReduce(at(b), at(a), COUNT, ncclInt32, ncclSum, comm, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    wait_stream();
    nccl_expect("a captured all-reduce", a, ncclInt32, 6, COUNT);
    CU(cuGraphLaunch(exec, stream));
    wait_stream();
    nccl_expect("the same again", a, ncclInt32, 24, COUNT);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* Who has no colour has no part, whether the call waits or not. */
static void part_that_does_not_block(void)
{
    const struct timespec moment = {.tv_nsec = 1000 * 1000};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t part;
    ncclResult_t state;
    config.blocking = 0;
    state = nccl.CommSplit(comm, rank == 0 ? 1 : NCCL_SPLIT_NOCOLOR, 0, &part, &config);
    EXPECT(state == ncclSuccess || state == ncclInProgress, "the split gave %d", (int)state);
    EXPECT((part != NULL) == (rank == 0), "rank %d is part %p", rank, (void *)part);
    while (part && nccl.CommGetAsyncError(part, &state) == ncclSuccess && state == ncclInProgress)
        nanosleep(&moment, NULL);
    EXPECT(state == ncclSuccess || !part, "the state is %d", (int)state);
    if (part)
        NCCL(nccl.CommDestroy(part));
}

static void made_of_it(void)
{
    ncclComm_t part;
    ncclRedOp_t tripled;
    int count = 0, number = -1, device = -1, three = 3;
    void *memory, *handle;
    NCCL(nccl.CommSplit(comm, 7, -rank, &part, NULL));
    NCCL(nccl.CommCount(part, &count));
    NCCL(nccl.CommUserRank(part, &number));
    NCCL(nccl.CommCuDevice(part, &device));
    EXPECT(count == 2 && number == 1 - rank && device == driver_device,
           "%d ranks, rank %d, device %d", count, number, device);
    nccl_fill(a, ncclInt32, mine(ncclInt32), COUNT);
    NCCL(nccl.Broadcast(at(a), at(b), COUNT, ncclInt32, 0, part, stream));
    wait_stream();
    nccl_expect("broadcast by a part", b, ncclInt32, 2, COUNT);
    NCCL(nccl.CommDestroy(part));
    NCCL(nccl.CommSplit(comm, rank == 0 ? 1 : NCCL_SPLIT_NOCOLOR, 0, &part, NULL));
    EXPECT((part != NULL) == (rank == 0), "rank %d is part %p", rank, (void *)part);
    if (part)
        NCCL(nccl.CommDestroy(part));
    part_that_does_not_block();
    NCCL(nccl.RedOpCreatePreMulSum(&tripled, &three, ncclInt32, ncclScalarHostImmediate, comm));
    NCCL(nccl.AllReduce(at(a), at(b), COUNT, ncclInt32, tripled, comm, stream));
    wait_stream();
    nccl_expect("a sum of multiples", b, ncclInt32, 9, COUNT);
    NCCL(nccl.RedOpDestroy(tripled, comm));
    NCCL(nccl.MemAlloc(&memory, 1 << 20));
    NCCL(nccl.CommRegister(comm, memory, 1 << 20, &handle));
    NCCL(nccl.CommDeregister(comm, handle));
    NCCL(nccl.MemFree(memory));
}

/* NCCL says at once what it sees at once; and nothing of it reaches a GPU. */
static void refused(void)
{
    ncclComm_t none = NULL;
    ncclUniqueId forged;
    ncclWindow_t window;
    void *handle;
    memset(&forged, 7, sizeof forged);
    NCCL_GIVES(ncclInvalidArgument,
               nccl.AllReduce(at(a), at(b), 1, ncclNumTypes, ncclSum, comm, stream));
    NCCL_GIVES(ncclInvalidArgument,
               nccl.AllReduce(NULL, at(b), 1, ncclInt8, ncclSum, comm, stream));
    NCCL_GIVES(ncclInvalidArgument,
               nccl.AllReduce(at(a), at(b), 1, ncclInt8, ncclSum, NULL, stream));
    NCCL_GIVES(ncclInvalidArgument, nccl.Broadcast(at(a), at(b), 1, ncclInt8, 2, comm, stream));
    NCCL_GIVES(ncclInvalidArgument, nccl.Send(at(a), 1, ncclInt8, -1, comm, stream));
    NCCL_GIVES(ncclInvalidArgument, nccl.CommInitRank(&none, 2, forged, 2));
    NCCL_GIVES(ncclInvalidArgument, nccl.CommRegister(comm, at(a), (size_t)1 << 60, &handle));
    if (!driver_is_native()) {
        NCCL_GIVES(ncclInvalidArgument, nccl.CommInitRank(&none, 1, forged, 0));
        NCCL_GIVES(ncclInvalidUsage, nccl.CommWindowRegister(comm, at(a), 4096, &window, 0));
    }
    EXPECT(none == NULL, "a communicator came of it");
}

/* Memory beyond the buffer is not the program's: a communicator that is told of it is of no use. */
static void beyond(const char *file)
{
    ncclComm_t victim;
    ncclResult_t state = ncclSuccess;
    char path[512];
    snprintf(path, sizeof path, "%s.beyond", file);
    NCCL(nccl.CommInitRank(&victim, 2, nccl_meet(path, rank), rank));
    NCCL_GIVES(ncclInvalidArgument,
               nccl.AllReduce(at(a), at(b), (size_t)1 << 61, ncclInt64, ncclSum, victim, stream));
    NCCL(nccl.CommGetAsyncError(victim, &state));
    EXPECT(state == ncclInvalidArgument, "the state is %d", (int)state);
    NCCL(nccl.CommAbort(victim));
}

static void dies(void)
{
    const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    ncclResult_t state = ncclSuccess;
    nccl_fill(a, ncclInt32, 1, COUNT);
    NCCL(nccl.AllReduce(at(a), at(b), COUNT, ncclInt32, ncclSum, comm, stream));
    wait_stream();
    if (rank == 1)
        _exit(0);
    nccl.AllReduce(at(a), at(b), COUNT, ncclInt32, ncclSum, comm, stream);
    while (nccl.CommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess)
        nanosleep(&moment, NULL);
    EXPECT(state == ncclRemoteError, "the state is %s", nccl.GetErrorString(state));
    wait_stream(); /* the collective does not wait for the dead */
    NCCL(nccl.CommAbort(comm));
}

/* Also of parts that are made alike, as frameworks make one for each purpose. */
static void warm(void)
{
    ncclComm_t all[3] = {comm};
    NCCL(nccl.CommSplit(comm, 0, rank, &all[1], NULL));
    NCCL(nccl.CommSplit(comm, 0, rank, &all[2], NULL));
    nccl_fill(a, ncclFloat32, 0, COUNT);
    for (int i = 0; i < WARM; i++)
        NCCL(nccl.AllReduce(at(a), at(a), COUNT, ncclFloat32, ncclSum, all[i % 3], stream));
    wait_stream();
    nccl_expect("many", a, ncclFloat32, 0, COUNT);
    for (int i = 3; i-- > 0;)
        NCCL(nccl.CommDestroy(all[i]));
}

static void ends(void)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    ncclResult_t state = ncclSuccess;
    CUresult stream_says = CUDA_SUCCESS;
    nccl_fill(a, ncclInt32, 1, COUNT);
    for (int round = 0; state == ncclSuccess && stream_says == CUDA_SUCCESS; round++) {
        state = nccl.AllReduce(at(a), at(b), COUNT, ncclInt32, ncclSum, comm, stream);
        if (state == ncclSuccess)
            stream_says = cuStreamSynchronize(stream);
        if (state == ncclSuccess)
            EXPECT(nccl.CommGetAsyncError(comm, &state) == ncclSuccess, "it cannot be asked");
        if (round == 0)
            puts("ready");
        fflush(stdout);
        nanosleep(&moment, NULL);
    }
    printf("NCCL error %d, CUDA error %d\n", (int)state, (int)stream_says);
    nccl.CommAbort(comm);
}

static void all(const char *file)
{
    int version = 0;
    NCCL(nccl.GetVersion(&version));
    EXPECT(version > 20000, "version %d", version);
    reductions();
    others();
    groups();
    captured();
    made_of_it();
    refused();
    if (!driver_is_native())
        beyond(file);
    NCCL(nccl.CommFinalize(comm));
    NCCL(nccl.CommDestroy(comm));
}

int main(int argc, char **argv)
{
    REQUIRE(argc >= 3, "nccl_ranks RANK FILE [dies|warm|ends]");
    rank = atoi(argv[1]);
    nccl_open();
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&a, 1 << 20));
    CU(cuMemAlloc(&b, 1 << 20));
    NCCL(nccl.CommInitRank(&comm, 2, nccl_meet(argv[2], rank), rank));
    if (argc > 3 && strcmp(argv[3], "dies") == 0)
        dies();
    else if (argc > 3 && strcmp(argv[3], "ends") == 0)
        ends();
    else if (argc > 3)
        warm();
    else
        all(argv[2]);
    return finish("nccl_ranks");
}
