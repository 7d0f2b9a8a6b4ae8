/* What goes wrong: arguments, ranks that do not agree, strangers, ranks that die. None of it hangs. */
#include "softnccl_check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define COUNT 1000

/* ---- arguments ---- */
static void arguments(struct rank *r)
{
    void *a = memory(COUNT * 4);
    ncclComm_t none;
    ncclConfig_t config = {0};
    int excluded[] = {0, 0};
    float here = 1;
    ncclRedOp_t op;
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, COUNT, 12, ncclSum, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, COUNT, 7, 5, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, COUNT, 7, -1, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(NULL, a, COUNT, 7, 0, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(&here, a, 1, 7, 0, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, COUNT + 1, 7, 0, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, SIZE_MAX / 4, 7, 0, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, SIZE_MAX, 7, 0, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclBroadcast(a, a, COUNT, 7, r->ranks, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclBroadcast(a, a, COUNT, 7, -1, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclSend(a, COUNT, 7, r->ranks, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclAllReduce(a, a, COUNT, 7, 0, NULL, r->stream));
    NEXPECT(ncclInvalidArgument, ncclCommCount(NULL, excluded));
    NEXPECT(ncclInvalidArgument, ncclCommSplit(r->comm, -2, 0, &none, NULL));
    NEXPECT(ncclInvalidArgument, ncclCommSplit(r->comm, 0, 0, &none, &config));
    NEXPECT(ncclInvalidArgument, ncclCommShrink(r->comm, excluded, 2, &none, NULL, 0));
    NEXPECT(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&op, &here, 7, 0, r->comm));
    NEXPECT(ncclInvalidUsage, ncclGroupEnd());
    NOK(ncclGroupStart()); /* a call that failed makes the group fail */
    NEXPECT(ncclInvalidArgument, ncclSend(a, COUNT, 12, 0, r->comm, r->stream));
    NOK(ncclAllReduce(a, a, COUNT, 7, 0, r->comm, r->stream));
    NEXPECT(ncclInvalidArgument, ncclGroupEnd());
    memory_free(a);
}

static void init_arguments(void)
{
    ncclUniqueId id = {{0}}, of_root;
    ncclComm_t comm;
    const int twice[] = {1, 1};
    NEXPECT(ncclInvalidArgument, ncclGetUniqueId(NULL));
    NEXPECT(ncclInvalidArgument, ncclCommInitRank(&comm, 1, id, 0));
    NOK(ncclGetUniqueId(&of_root));
    NEXPECT(ncclInvalidArgument, ncclCommInitRank(&comm, 2, of_root, 2));
    NEXPECT(ncclInvalidArgument, ncclCommInitRank(&comm, 2, of_root, -1));
    NEXPECT(ncclInvalidArgument, ncclCommInitRank(&comm, 100000, of_root, 0));
    NEXPECT(ncclInvalidArgument, ncclCommInitAll(&comm, 100, NULL));
    NEXPECT(ncclInvalidUsage, ncclCommInitAll(&comm, 2, twice));
    of_root.internal[NCCL_UNIQUE_ID_BYTES - 1] = 1;
    NEXPECT(ncclInvalidArgument, ncclCommInitRank(&comm, 1, of_root, 0));
}

/* ---- ranks that do not agree ---- */
static struct {
    pthread_barrier_t both;
} met;

/* Its stream is held until it aborts; then it is free. */
static void abort_and_go_on(struct rank *r, ncclResult_t state)
{
    NEXPECT(state, state_after(r->comm, ncclSuccess));
    NEXPECT(state, ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, r->comm, r->stream));
    CHECK(cuStreamQuery(r->stream) == CUDA_ERROR_NOT_READY);
    NOK(ncclCommAbort(r->comm));
    r->comm = NULL;
    OK(cuStreamSynchronize(r->stream));
}

/* One of them finds out, and the other learns that it is gone, or finds out as well. */
static void do_not_agree(struct rank *r)
{
    void *a = memory(COUNT * 4);
    NOK(ncclBroadcast(a, a, r->rank ? COUNT : COUNT - 1, ncclInt32, 0, r->comm, r->stream));
    if (r->rank) {
        abort_and_go_on(r, ncclInvalidUsage);
    } else {
        OK(cuStreamSynchronize(r->stream)); /* the root has only sent */
        NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, r->comm, r->stream));
        abort_and_go_on(r, ncclRemoteError);
    }
    memory_free(a);
}

static void duplicate_main(struct rank *r)
{
    rank_enter(r);
    NEXPECT(ncclInvalidUsage, ncclCommInitRank(&r->comm, r->ranks, r->id, r->rank));
    CHECK(strstr(ncclGetLastError(NULL), "Duplicate GPU detected"));
    CHECK(r->comm == NULL);
}

static void *duplicate_thread(void *rank)
{
    duplicate_main(rank);
    return NULL;
}

static void one_device_twice(void)
{
    struct rank two[2];
    ncclUniqueId id;
    NOK(ncclGetUniqueId(&id));
    for (int i = 0; i < 2; i++) {
        two[i] = (struct rank){.rank = i, .ranks = 2, .device = 0, .id = id};
        CHECK(pthread_create(&two[i].thread, NULL, duplicate_thread, &two[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(two[i].thread, NULL);
}

/* ---- abort ---- */
/* It wakes what waits: a collective that nobody else comes to, and an initialisation. */
static void alone(struct rank *r)
{
    void *a = memory(COUNT * 4);
    if (r->rank == 0) {
        NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, r->comm, r->stream));
        NOK(ncclCommAbort(r->comm));
        OK(cuStreamSynchronize(r->stream));
        r->comm = NULL;
    }
    pthread_barrier_wait(&met.both);
    memory_free(a);
}

static void abort_init(void)
{
    struct rank r = {.ranks = 2};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    rank_enter(&r);
    NOK(ncclGetUniqueId(&r.id));
    NOK(ncclGroupStart());
    NOK(ncclCommInitRankConfig(&r.comm, 2, r.id, 1, &config));
    CHECK(r.comm != NULL);
    NEXPECT(ncclInProgress, ncclGroupEnd());
    NEXPECT(ncclInvalidArgument, ncclAllReduce(NULL, NULL, 0, 0, 0, r.comm, r.stream));
    NEXPECT(ncclInvalidArgument, ncclCommDestroy(r.comm));
    NOK(ncclCommAbort(r.comm));
    OK(cuStreamDestroy(r.stream));
}

/* ---- strangers ---- */
static void is_dropped(int fd, const void *said, size_t size)
{
    char byte;
    CHECK(send(fd, said, size, MSG_NOSIGNAL) == (ssize_t)size);
    CHECK(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

/* Those that say nothing, nonsense or the right secret with nonsense behind it keep nobody out. */
static void strangers(void)
{
    struct rank r = {.ranks = 1};
    struct sn_id id;
    struct sn_hello hello;
    int silent[80];
    NOK(ncclGetUniqueId(&r.id));
    CHECK(sn_id_decode(r.id.internal, &id));
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) /* more than may wait */
        silent[i] = dial(&id.root);
    memset(&hello, 0, sizeof hello);
    is_dropped(dial(&id.root), &hello, SN_SECRET_BYTES);
    memcpy(hello.secret, id.secret, sizeof hello.secret);
    is_dropped(dial(&id.root), &hello, sizeof hello);
    rank_enter(&r);
    NOK(ncclCommInitRank(&r.comm, 1, r.id, 0));
    NOK(ncclCommDestroy(r.comm));
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
        close(silent[i]);
    OK(cuStreamDestroy(r.stream));
}

/* Two that say that they are the same rank, or that there is another number of ranks. */
static void the_same_rank(void)
{
    struct rank r = {.ranks = 2};
    struct sn_id id;
    struct sn_table table;
    NOK(ncclGetUniqueId(&r.id));
    CHECK(sn_id_decode(r.id.internal, &id));
    struct sn_place place = {.address = id.root};
    struct sn_hello hello = sn_hello_make(id.secret, 2, 0, &place);
    int first = dial(&id.root);
    CHECK(send(first, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
    int second = dial(&id.root); /* of a queue, so it is behind the first */
    CHECK(send(second, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
    /* One of the two is there, whichever is heard first. */
    char bytes[sizeof table];
    rank_enter(&r);
    NEXPECT(ncclInvalidUsage, ncclCommInitRank(&r.comm, 2, r.id, 0));
    NEXPECT(ncclInvalidUsage, ncclCommInitRank(&r.comm, 3, r.id, 1));
    CHECK(recv(second, bytes, sizeof bytes, MSG_DONTWAIT) > 0 ||
          recv(first, bytes, sizeof bytes, MSG_DONTWAIT) > 0);
    CHECK(sn_table_decode(bytes, &table) && table.refused == SN_RANK_TWICE);
    close(first);
    close(second);
    OK(cuStreamDestroy(r.stream));
}

/* ---- processes ---- */
/* Rank 2 dies in the middle of a run; the others say so, and their streams go on behind an abort. */
static void process(struct rank *r)
{
    rank_enter(r);
    NOK(ncclCommInitRank(&r->comm, r->ranks, r->id, r->rank));
    int one = r->rank + 1, sum;
    void *a = memory_with(&one, sizeof one);
    NOK(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, r->comm, r->stream));
    read_back(r, &sum, a, sizeof sum);
    CHECK(sum == 6);
    if (r->rank == 2)
        raise(SIGKILL);
    NOK(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, r->comm, r->stream));
    abort_and_go_on(r, ncclRemoteError);
    exit(0);
}

/* Before this process has anything to do with CUDA. */
static void processes(void)
{
    ncclUniqueId *id = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[3];
    int tube[2], status;
    char byte = 0;
    CHECK(pipe(tube) == 0);
    for (int i = 0; i < 3; i++)
        if ((children[i] = fork()) == 0) {
            struct rank r = {.rank = i, .ranks = 3, .device = i};
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            CHECK(i == 0 || read(tube[0], &byte, 1) == 1);
            if (i == 0) {
                NOK(ncclGetUniqueId(id));
                CHECK(write(tube[1], "go", 2) == 2);
            }
            r.id = *id;
            process(&r);
        }
    for (int i = 0; i < 3; i++) {
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK(i == 2 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    munmap(id, 4096);
}

int main(void)
{
    setenv("GPUPOOL_SOFT_GPUS", "3", 1);
    processes();
    pthread_barrier_init(&met.both, NULL, 2);
    init_arguments();
    ranks_run(2, arguments);
    ranks_run(2, do_not_agree);
    one_device_twice();
    ranks_run(2, alone);
    abort_init();
    strangers();
    the_same_rank();
    return 0;
}
