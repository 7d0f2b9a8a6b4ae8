/* Ranks and roots that know the secret and lie: the honest rank gets an error, and neither crashes nor
 * hangs. */
#include "softnccl_check.h"

#define COUNT 1000

/* ---- a rank that lies ---- */
struct liar {
    struct rank rank; /* the honest one's */
    int fd;           /* the connection to it */
    struct sn_id id;
};

static void hear(int fd, void *data, size_t size)
{
    CHECK(recv(fd, data, size, MSG_WAITALL) == (ssize_t)size);
}

static void say(int fd, const void *data, size_t size)
{
    CHECK(send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size);
}

static void *honest_main(void *argument)
{
    struct rank *rank = argument;
    rank_enter(rank);
    NOK(ncclCommInitRank(&rank->comm, 2, rank->id, 0));
    return NULL;
}

/* As rank 1 of 2 would; before it joins it does what nobody does. */
static void meet(struct liar *liar)
{
    struct sn_place place = {.device = 1}, places[2];
    struct sn_table table;
    NOK(ncclGetUniqueId(&liar->rank.id));
    CHECK(sn_id_decode(liar->rank.id.internal, &liar->id));
    CHECK(pthread_create(&liar->rank.thread, NULL, honest_main, &liar->rank) == 0);
    place.address = liar->id.root;
    struct sn_hello hello = sn_hello_make(liar->id.secret, 2, 1, &place);
    int root = dial(&liar->id.root);
    say(root, &hello, sizeof hello);
    hear(root, &table, sizeof table);
    hear(root, places, sizeof places);
    CHECK(sn_table_decode(&table, &table) && !table.refused && table.ranks == 2);
    close(root);
    struct sn_join join = sn_join_make(liar->id.secret, 5, 0); /* of no such rank */
    int dropped = dial(&places[0].address);
    say(dropped, &join, sizeof join);
    CHECK(recv(dropped, &join, 1, 0) <= 0);
    close(dropped);
    join = sn_join_make(liar->id.secret, 1, 0);
    liar->fd = dial(&places[0].address);
    say(liar->fd, &join, sizeof join);
    pthread_join(liar->rank.thread, NULL);
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

static void part(struct liar *liar)
{
    NOK(ncclCommAbort(liar->rank.comm));
    OK(cuStreamSynchronize(liar->rank.stream));
    OK(cuStreamDestroy(liar->rank.stream));
    close(liar->fd);
}

/* What the honest rank expects of an all-reduce: half of the elements. */
static struct sn_header expected(void)
{
    struct sn_header header = sn_header_make(SN_ALL_REDUCE, ncclInt32, ncclSum, 0, COUNT);
    header.bytes = COUNT / 2 * sizeof(int32_t);
    return header;
}

/* The result of an all-reduce with who says this, and then nothing more. */
static void reduce_with(const void *said, size_t size, ncclResult_t state)
{
    struct liar liar = {.rank = {.ranks = 2}};
    meet(&liar);
    void *a = memory(COUNT * sizeof(int32_t));
    NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, liar.rank.comm, liar.rank.stream));
    say(liar.fd, said, size);
    shutdown(liar.fd, SHUT_WR);
    NEXPECT(state, state_after(liar.rank.comm, ncclSuccess));
    part(&liar);
    memory_free(a);
}

static void transfers(void)
{
    struct sn_header header = expected();
    unsigned char nonsense[sizeof header], cut[sizeof header + 100] = {0};
    memset(nonsense, 0xff, sizeof nonsense);
    reduce_with(nonsense, sizeof nonsense, ncclRemoteError);
    header.bytes = UINT64_MAX;
    reduce_with(&header, sizeof header, ncclInvalidUsage);
    header = expected();
    header.sequence = 1;
    reduce_with(&header, sizeof header, ncclInvalidUsage);
    header = expected();
    reduce_with(&header, sizeof header - 1, ncclRemoteError);
    memcpy(cut, &header, sizeof header);
    reduce_with(cut, sizeof cut, ncclRemoteError); /* it ends within the data */
}

static void splits(void)
{
    struct liar liar = {.rank = {.ranks = 2}};
    struct sn_header header = sn_header_make(SN_SPLIT, 0, 0, 0, 2);
    struct sn_split split = {.color = -7};
    ncclComm_t made;
    header.bytes = sizeof split;
    meet(&liar);
    say(liar.fd, &header, sizeof header);
    say(liar.fd, &split, sizeof split);
    NEXPECT(ncclRemoteError, ncclCommSplit(liar.rank.comm, 0, 0, &made, NULL));
    CHECK(made == NULL);
    NEXPECT(ncclRemoteError, state_after(liar.rank.comm, ncclSuccess));
    part(&liar);
}

/* ---- a root that lies ---- */
static int root_listen(ncclUniqueId *out)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    struct sn_id id = {.root.family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, size) == 0 && listen(fd, 1) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    memcpy(id.root.ip, &at.sin_addr, 4);
    id.root.port = ntohs(at.sin_port);
    sn_id_encode(&id, out->internal);
    return fd;
}

static void init_with(const void *said, size_t size, ncclResult_t result)
{
    struct rank rank = {.ranks = 2};
    struct sn_hello hello;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int listener = root_listen(&rank.id);
    rank_enter(&rank);
    NEXPECT(ncclInProgress, ncclCommInitRankConfig(&rank.comm, 2, rank.id, 0, &config));
    int fd = accept(listener, NULL, NULL);
    hear(fd, &hello, sizeof hello);
    say(fd, said, size);
    shutdown(fd, SHUT_WR);
    NEXPECT(result, state_after(rank.comm, ncclInProgress));
    NOK(ncclCommAbort(rank.comm));
    OK(cuStreamDestroy(rank.stream));
    close(fd);
    close(listener);
}

static void roots(void)
{
    struct {
        struct sn_table table;
        struct sn_place places[2];
    } answer;
    memset(&answer, 0xff, sizeof answer);
    init_with(&answer, sizeof answer, ncclRemoteError);
    answer.table = sn_table_make(2, SN_TAKEN);
    init_with(&answer, sizeof answer, ncclRemoteError); /* the places are none */
    init_with(&answer, sizeof answer.table, ncclRemoteError);
    answer.table = sn_table_make(200, SN_TAKEN);
    init_with(&answer, sizeof answer, ncclInvalidUsage);
    init_with(&answer, 0, ncclRemoteError);
}

/* It was there, as the root has said, and never comes. */
static void who_does_not_join(void)
{
    struct {
        struct sn_table table;
        struct sn_place places[2];
    } answer = {.table = sn_table_make(2, SN_TAKEN)};
    for (int i = 0; i < 2; i++)
        answer.places[i] = (struct sn_place){
            .address = {.family = AF_INET, .ip = {127, 0, 0, 1}, .port = 1}, .host = (uint64_t)i};
    init_with(&answer, sizeof answer, ncclRemoteError);
}

/* In a process of its own, where nobody is waited for as long as usual. */
static pid_t fork_patience(void)
{
    pid_t child = fork();
    if (child == 0) {
        setenv("GPUPOOL_SILENCE", "2", 1);
        who_does_not_join();
        exit(0);
    }
    return child;
}

int main(void)
{
    int status;
    pid_t patience = fork_patience();
    transfers();
    splits();
    roots();
    CHECK(waitpid(patience, &status, 0) == patience && WIFEXITED(status) && !WEXITSTATUS(status));
    return 0;
}
