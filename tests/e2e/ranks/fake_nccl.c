/* As much of NCCL as a rank of the tests calls, by files in /dev/shm: for a soft GPU, whose memory
 * NCCL's kernels cannot use. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct unique {
    char bytes[128];
};

struct comm {
    int ranks, rank;
    char name[32];
};

static const char *const errors[] = {"ok", "no driver", "the other rank does not come",
                                     "a wrong id", "the other rank's memory is another user's"};

const char *ncclGetErrorString(int error)
{
    return errors[error];
}

int ncclGetVersion(int *out)
{
    *out = 1;
    return 0;
}

int ncclGetUniqueId(struct unique *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, "fake", 5);
    return 0;
}

int ncclCommInitRank(struct comm **out, int ranks, struct unique id, int rank)
{
    struct comm *comm = malloc(sizeof *comm);
    if (memcmp(id.bytes, "fake", 5) != 0 || !comm) {
        free(comm);
        return 3;
    }
    comm->ranks = ranks;
    comm->rank = rank;
    *out = comm;
    return 0;
}

static int call(const char *name, int (**out)(uint64_t, uint64_t, size_t))
{
    void *found = dlsym(RTLD_DEFAULT, name);
    memcpy(out, &found, sizeof found);
    return found != NULL;
}

/* As mkstemp makes files: for one user. */
static int give(int rank, const float *values, size_t count)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/fake-nccl-%d", rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    size_t size = count * sizeof *values;
    int r = fd < 0 || write(fd, values, size) != (ssize_t)size;
    if (fd >= 0)
        close(fd);
    return r;
}

static int take(int rank, float *values, size_t count)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    const ssize_t size = (ssize_t)(count * sizeof *values);
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/fake-nccl-%d", rank);
    for (int i = 0; i < 12000; i++) {
        int fd = open(path, O_RDONLY);
        if (fd < 0 && errno == EACCES)
            return 4;
        struct stat info;
        bool whole = fd >= 0 && fstat(fd, &info) == 0 && info.st_size == size;
        ssize_t got = whole ? read(fd, values, (size_t)size) : 0;
        if (fd >= 0)
            close(fd);
        if (whole)
            return got == size ? 0 : 2;
        nanosleep(&moment, NULL);
    }
    return 2;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                  struct comm *comm, void *stream)
{
    int (*down)(uint64_t, uint64_t, size_t), (*up)(uint64_t, uint64_t, size_t);
    float *sum = malloc(count * sizeof *sum), *one = malloc(count * sizeof *one);
    (void)type, (void)operation, (void)stream;
    int r = !sum || !one || !call("cuMemcpyDtoH_v2", &down) || !call("cuMemcpyHtoD_v2", &up) ||
            down((uintptr_t)sum, (uintptr_t)from, count * sizeof *sum) != 0;
    if (r == 0 && give(comm->rank, sum, count) != 0)
        r = 2;
    for (int rank = 0; r == 0 && rank < comm->ranks; rank++) {
        if (rank == comm->rank)
            continue;
        r = take(rank, one, count);
        for (size_t i = 0; r == 0 && i < count; i++)
            sum[i] += one[i];
    }
    if (r == 0)
        r = up((uintptr_t)to, (uintptr_t)sum, count * sizeof *sum) != 0;
    free(sum);
    free(one);
    return r;
}

int ncclCommDestroy(struct comm *comm)
{
    free(comm);
    return 0;
}
