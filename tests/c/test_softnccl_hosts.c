/* Three ranks on two hosts, network namespaces with a wire between them: two processes on one, one on
 * the other, whose GPU is its first as well. The wire speaks IPv6, as the network of a lease does. */
#include "softnccl_check.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define SKIPPED 77
#define RANKS 3
#define COUNT 200000

/* What all processes see. */
struct shared {
    pthread_barrier_t hosts, wired, named;
    ncclUniqueId id;
};

static int command(const char *format, int a, int b)
{
    char text[200];
    snprintf(text, sizeof text, format, a, b);
    return system(text);
}

static void rank_process(struct shared *shared, int rank)
{
    struct rank r = {.rank = rank, .ranks = RANKS, .device = rank == 1};
    int32_t *data = malloc(COUNT * sizeof *data);
    if (rank == 0)
        NOK(ncclGetUniqueId(&shared->id));
    pthread_barrier_wait(&shared->named);
    r.id = shared->id;
    rank_enter(&r);
    NOK(ncclCommInitRank(&r.comm, RANKS, r.id, rank));
    for (int i = 0; i < COUNT; i++)
        data[i] = i + rank;
    void *a = memory_with(data, COUNT * sizeof *data);
    NOK(ncclAllReduce(a, a, COUNT, ncclInt32, ncclSum, r.comm, r.stream));
    read_back(&r, data, a, COUNT * sizeof *data);
    for (int i = 0; i < COUNT; i++)
        CHECK(data[i] == 3 * i + 3);
    NOK(ncclCommDestroy(r.comm));
    exit(0);
}

static pid_t fork_rank(struct shared *shared, int rank)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rank_process(shared, rank);
    }
    return child;
}

static bool ended_well(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The kernel makes an address's own host its way a while after the wire is up. Who connects before
 * looks for it at the other end of the wire, and has no route in the end. */
static void wait_for_way(int number)
{
    static const unsigned char prefix[] = {0xfd, 0, 0, 0x67, 0, 0x70};
    struct sockaddr_in6 own = {.sin6_family = AF_INET6};
    socklen_t size = sizeof own;
    memcpy(&own.sin6_addr, prefix, sizeof prefix);
    own.sin6_addr.s6_addr[15] = (unsigned char)(number + 1);
    int listens = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), joined = -1;
    for (int tries = 0; joined != 0; tries++, usleep(10000)) {
        CHECK(tries < 1000);
        if (own.sin6_port == 0 &&
            (bind(listens, (const void *)&own, size) != 0 || listen(listens, 8) != 0 ||
             getsockname(listens, (void *)&own, &size) != 0))
            continue;
        int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd there = {.fd = fd, .events = POLLOUT};
        joined = connect(fd, (const void *)&own, size);
        if (joined != 0 && errno == EINPROGRESS && poll(&there, 1, 100) == 1)
            joined = connect(fd, (const void *)&own, size);
        close(fd);
    }
    close(listens);
}

/* Its ranks are processes below it. */
static void host(struct shared *shared, int number)
{
    pid_t ranks[2];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("NCCL_HOSTID", number ? "second" : "first", 1);
    CHECK(unshare(CLONE_NEWNET) == 0);
    pthread_barrier_wait(&shared->hosts);
    pthread_barrier_wait(&shared->wired);
    CHECK(command("ip addr add fd00:67:70::%d/64 dev wire%d nodad", number + 1, number) == 0);
    CHECK(command("ip link set wire%d up && ip link set lo up", number, 0) == 0);
    wait_for_way(number);
    ranks[0] = fork_rank(shared, number ? 2 : 0);
    ranks[1] = number ? 0 : fork_rank(shared, 1);
    CHECK(ended_well(ranks[0]) && (!ranks[1] || ended_well(ranks[1])));
    exit(0);
}

static void barriers(struct shared *shared)
{
    pthread_barrierattr_t both;
    pthread_barrierattr_init(&both);
    pthread_barrierattr_setpshared(&both, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->hosts, &both, 3);
    pthread_barrier_init(&shared->wired, &both, 3);
    pthread_barrier_init(&shared->named, &both, RANKS);
    pthread_barrierattr_destroy(&both);
}

int main(void)
{
    pid_t hosts[2];
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    if (system("unshare -n ip link add one type veth peer name two >/dev/null 2>&1") != 0) {
        printf("skipped: no interfaces can be made here\n");
        return SKIPPED;
    }
    setenv("GPUPOOL_SOFT_GPUS", "2", 1);
    setenv("NCCL_SOCKET_IFNAME", "wire", 1);
    barriers(shared);
    for (int i = 0; i < 2; i++)
        if ((hosts[i] = fork()) == 0)
            host(shared, i);
    pthread_barrier_wait(&shared->hosts);
    CHECK(command("unshare -n ip link add wire0 netns %d type veth peer name wire1 netns %d",
                  hosts[0], hosts[1]) == 0);
    pthread_barrier_wait(&shared->wired);
    CHECK(ended_well(hosts[0]) && ended_well(hosts[1]));
    munmap(shared, sizeof *shared);
    return 0;
}
