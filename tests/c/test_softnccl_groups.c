/* What a thread does with several communicators, streams and calls at once; captures; communicators
 * from others; those that do not block; reductions of a program's own. */
#include "softnccl_check.h"

#include <netinet/tcp.h>

#define RANKS 3
#define COUNT 1000

static void *numbers(int first)
{
    int data[COUNT];
    for (int i = 0; i < COUNT; i++)
        data[i] = first + i;
    return memory_with(data, sizeof data);
}

static void check_numbers(struct rank *r, const void *at, int first, int step)
{
    int data[COUNT];
    read_back(r, data, at, sizeof data);
    for (int i = 0; i < COUNT; i++)
        CHECK(data[i] == first + i * step);
}

/* ---- one thread with all GPUs ---- */
static void enter(struct rank *ranks)
{
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.rank = i, .ranks = RANKS, .device = i};
        rank_enter(&ranks[i]);
    }
}

static void all_reduce_of_all(struct rank *ranks)
{
    void *in[RANKS], *out[RANKS];
    for (int i = 0; i < RANKS; i++) {
        CUcontext context;
        OK(cuDevicePrimaryCtxRetain(&context, i));
        OK(cuCtxSetCurrent(context));
        in[i] = numbers(i);
        out[i] = memory(COUNT * sizeof(int));
    }
    NOK(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) /* the context is the last device's */
        NOK(ncclAllReduce(in[i], out[i], COUNT, ncclInt32, ncclSum, ranks[i].comm,
                          ranks[i].stream));
    NOK(ncclGroupEnd());
    for (int i = 0; i < RANKS; i++) {
        check_numbers(&ranks[i], out[i], 3, 3);
        memory_free(in[i]);
        memory_free(out[i]);
    }
}

static void one_thread(void)
{
    struct rank ranks[RANKS];
    ncclComm_t comms[RANKS];
    ncclUniqueId id;
    enter(ranks);
    NOK(ncclCommInitAll(comms, RANKS, NULL));
    for (int i = 0; i < RANKS; i++)
        ranks[i].comm = comms[i];
    all_reduce_of_all(ranks);
    for (int i = 0; i < RANKS; i++)
        NOK(ncclCommDestroy(comms[i]));
    NOK(ncclGetUniqueId(&id));
    NOK(ncclGroupStart());
    for (int i = 0; i < RANKS; i++) {
        rank_enter(&ranks[i]);
        NOK(ncclCommInitRank(&ranks[i].comm, RANKS, id, i));
    }
    NOK(ncclGroupEnd());
    all_reduce_of_all(ranks);
    for (int i = 0; i < RANKS; i++)
        NOK(ncclCommDestroy(ranks[i].comm));
}

/* ---- groups of one communicator ---- */
static void ring(struct rank *r)
{
    const int next = (r->rank + 1) % RANKS, previous = (r->rank + RANKS - 1) % RANKS;
    void *mine = numbers(100 * r->rank), *theirs = memory(COUNT * sizeof(int));
    void *own = memory(COUNT * sizeof(int));
    NOK(ncclGroupStart());
    NOK(ncclSend(mine, COUNT, ncclInt32, next, r->comm, r->stream));
    NOK(ncclRecv(theirs, COUNT, ncclInt32, previous, r->comm, r->stream));
    NOK(ncclSend(mine, COUNT, ncclInt32, r->rank, r->comm, r->stream)); /* to itself */
    NOK(ncclRecv(own, COUNT, ncclInt32, r->rank, r->comm, r->stream));
    NOK(ncclSend(mine, 0, ncclInt32, next, r->comm, r->stream));
    NOK(ncclRecv(theirs, 0, ncclInt32, previous, r->comm, r->stream));
    NOK(ncclGroupEnd());
    check_numbers(r, theirs, 100 * previous, 1);
    check_numbers(r, own, 100 * r->rank, 1);
    memory_free(own);
    memory_free(mine);
    memory_free(theirs);
}

/* More than sockets hold, both ways at once. */
static void large_both_ways(struct rank *r)
{
    const size_t bytes = (size_t)8 << 20;
    const int other = r->rank ^ 1;
    void *mine = memory(bytes), *theirs = memory(bytes);
    unsigned char last;
    if (r->rank < 2) {
        OK(cuMemsetD8((CUdeviceptr)(uintptr_t)mine, (unsigned char)(r->rank + 1), bytes));
        OK(cuCtxSynchronize());
        NOK(ncclGroupStart());
        NOK(ncclSend(mine, bytes, ncclUint8, other, r->comm, r->stream));
        NOK(ncclRecv(theirs, bytes, ncclUint8, other, r->comm, r->stream));
        NOK(ncclGroupEnd());
        read_back(r, &last, (char *)theirs + bytes - 1, 1);
        CHECK(last == other + 1);
    }
    memory_free(mine);
    memory_free(theirs);
}

/* What is behind a group in any of its streams waits for it, and so does what is before it. */
static void several_streams(struct rank *r)
{
    CUstream other;
    void *a = numbers(r->rank), *b = memory(COUNT * sizeof(int)), *c = memory(COUNT * sizeof(int));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyDtoDAsync((uintptr_t)b, (uintptr_t)a, COUNT * sizeof(int), other));
    NOK(ncclGroupStart());
    NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, r->comm, r->stream));
    NOK(ncclAllReduce(b, b, COUNT, ncclInt32, ncclMax, r->comm, other));
    NOK(ncclGroupEnd());
    OK(cuMemcpyDtoDAsync((uintptr_t)c, (uintptr_t)b, COUNT * sizeof(int), other));
    check_numbers(r, a, 3, 3);
    OK(cuStreamSynchronize(other));
    check_numbers(r, c, 2, 1);
    /* Without a group they follow each other all the same. */
    NOK(ncclAllReduce(c, c, COUNT, ncclInt32, ncclSum, r->comm, other));
    NOK(ncclAllReduce(c, c, COUNT, ncclInt32, ncclSum, r->comm, r->stream));
    check_numbers(r, c, 18, 9);
    OK(cuStreamDestroy(other));
    memory_free(a);
    memory_free(b);
    memory_free(c);
}

static void simulated(struct rank *r)
{
    ncclSimInfo_t info = {sizeof info, NCCL_SIM_INFO_MAGIC, NCCL_VERSION_CODE, -1};
    void *a = numbers(7);
    NOK(ncclGroupStart());
    NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, r->comm, r->stream));
    NOK(ncclGroupSimulateEnd(&info));
    CHECK(info.estimatedTime > 0);
    check_numbers(r, a, 7, 1); /* nothing has been done */
    memory_free(a);
}

/* ---- captures ---- */
static void captured(struct rank *r)
{
    CUgraph graph;
    CUgraphExec exec;
    void *a = numbers(0);
    OK(cuStreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, r->comm, r->stream));
    NOK(ncclBroadcast(a, a, COUNT, ncclInt32, 1, r->comm, r->stream));
    OK(cuStreamEndCapture(r->stream, &graph));
    check_numbers(r, a, 0, 1); /* nothing has been done */
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(exec, r->stream));
    OK(cuGraphLaunch(exec, r->stream));
    check_numbers(r, a, 0, 9);
    OK(cuGraphExecDestroy(exec));
    memory_free(a);
}

/* ---- communicators from others ---- */
static void reduce_and_end(struct rank *r, ncclComm_t comm, int ranks, int sum)
{
    int count;
    void *a = numbers(r->rank);
    NOK(ncclCommCount(comm, &count));
    CHECK(count == ranks);
    NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, comm, r->stream));
    check_numbers(r, a, sum, ranks);
    NOK(ncclCommDestroy(comm));
    memory_free(a);
}

static void split(struct rank *r)
{
    ncclComm_t some, none;
    int rank, excluded[] = {1};
    NOK(ncclCommSplit(r->comm, r->rank != 1, -r->rank, &some, NULL));
    NOK(ncclCommUserRank(some, &rank));
    CHECK(rank == (r->rank == 0)); /* by its key, the last is the first */
    reduce_and_end(r, some, r->rank == 1 ? 1 : 2, r->rank == 1 ? 1 : 2);
    NOK(ncclCommSplit(r->comm, r->rank ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, NULL));
    CHECK((none == NULL) == (r->rank == 0));
    if (none)
        reduce_and_end(r, none, 2, 3);
    if (r->rank != 1) {
        NOK(ncclCommShrink(r->comm, excluded, 1, &some, NULL, NCCL_SHRINK_DEFAULT));
        NOK(ncclCommUserRank(some, &rank));
        CHECK(rank == r->rank / 2);
        reduce_and_end(r, some, 2, 2);
    }
}

static void not_blocking(struct rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t half, of_half;
    config.blocking = 0;
    NEXPECT(ncclInProgress, ncclCommSplit(r->comm, r->rank == 1, 0, &half, &config));
    NEXPECT(ncclSuccess, state_after(half, ncclInProgress));
    /* It inherits that. */
    NEXPECT(ncclInProgress, ncclCommSplit(half, 0, 0, &of_half, NULL));
    NEXPECT(ncclSuccess, state_after(of_half, ncclInProgress));
    NEXPECT(ncclInProgress, ncclCommFinalize(half));
    NEXPECT(ncclSuccess, state_after(half, ncclInProgress));
    NEXPECT(ncclInvalidUsage, ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, half, r->stream));
    NOK(ncclCommDestroy(half));
    reduce_and_end(r, of_half, r->rank == 1 ? 1 : 2, r->rank == 1 ? 1 : 2);
}

/* ---- reductions of a program's own ---- */
static void scaled(struct rank *r)
{
    ncclRedOp_t by_host, by_device;
    double factor = r->rank + 1, data[2] = {1, 2}, sum;
    float small = 0.5f;
    void *scalar = memory_with(&small, sizeof small);
    float floats[2] = {4, 8};
    void *a = memory_with(data, sizeof data), *b = memory_with(floats, sizeof floats);
    NOK(ncclRedOpCreatePreMulSum(&by_host, &factor, ncclFloat64, ncclScalarHostImmediate, r->comm));
    factor = 0;
    NOK(ncclRedOpCreatePreMulSum(&by_device, scalar, ncclFloat32, ncclScalarDevice, r->comm));
    CHECK(by_host != by_device && by_host >= ncclNumOps);
    NOK(ncclAllReduce(a, a, 2, ncclFloat64, by_host, r->comm, r->stream));
    NOK(ncclReduce(b, b, 2, ncclFloat32, by_device, 0, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument,
            ncclAllReduce(a, a, 2, ncclFloat64, by_device, r->comm, r->stream));
    NOK(ncclRedOpDestroy(by_host, r->comm));
    NEXPECT(ncclInvalidArgument, ncclRedOpDestroy(by_host, r->comm));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, 2, ncclFloat64, by_host, r->comm, r->stream));
    NOK(ncclRedOpDestroy(by_device, r->comm));
    read_back(r, &sum, (double *)a + 1, sizeof sum);
    CHECK((int)sum == 2 * (1 + 2 + 3));
    read_back(r, floats, b, sizeof floats);
    CHECK(r->rank != 0 || ((int)floats[0] == 6 && (int)floats[1] == 12));
    memory_free(a);
    memory_free(b);
    memory_free(scalar);
}

static void registered(struct rank *r)
{
    void *at, *handle, *other;
    ncclWindow_t window = (ncclWindow_t)&at;
    NOK(ncclMemAlloc(&at, 4096));
    NOK(ncclCommRegister(r->comm, at, 4096, &handle));
    NOK(ncclCommRegister(r->comm, at, 4096, &other)); /* it ends with the communicator */
    NOK(ncclCommDeregister(r->comm, handle));
    NEXPECT(ncclInvalidArgument, ncclCommDeregister(r->comm, handle));
    NOK(ncclCommWindowRegister(r->comm, at, 4096, &window, 0));
    CHECK(window == NULL);
    NOK(ncclCommWindowDeregister(r->comm, window));
    NOK(ncclMemFree(at));
}

/* Who computes for long takes nothing meanwhile, and is there: no connection of a rank's ends for it,
 * as the kernel would end one that has this option. */
static void busy_ranks_have_time(struct rank *r)
{
    int connections = 0, state, limit, one = 1;
    void *a = memory_with(&one, sizeof one);
    NOK(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, r->comm, r->stream));
    read_back(r, &one, a, sizeof one); /* all of them are connected */
    memory_free(a);
    for (int fd = 3; fd < 1024; fd++) {
        struct tcp_info info;
        socklen_t size = sizeof info, four = sizeof limit;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
            continue;
        state = info.tcpi_state;
        if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &four) != 0)
            continue; /* another rank's thread has closed it */
        CHECK(limit == 0 || state != TCP_ESTABLISHED);
        connections += state == TCP_ESTABLISHED;
    }
    CHECK(connections >= RANKS - 1);
}

static void whole(struct rank *r)
{
    busy_ranks_have_time(r);
    ring(r);
    large_both_ways(r);
    several_streams(r);
    simulated(r);
    captured(r);
    split(r);
    not_blocking(r);
    scaled(r);
    registered(r);
}

int main(void)
{
    setenv("GPUPOOL_SOFT_GPUS", "3", 1);
    one_thread();
    ranks_run(RANKS, whole);
    return 0;
}
