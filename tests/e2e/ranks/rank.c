/*
 * In a worker's place: one of two ranks, whose workers are of one lease on one host. They find
 * each other by files in /dev/shm, copy from each other's GPU (CUDA's IPC), and make one
 * all-reduce by a libnccl that lies among the plug-ins. Each says what came of it on stderr:
 *
 *   rank N STEP ok | absent WHY | failed WHY
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "aim.h"

#define COUNT (1 << 20)
#define BYTES (COUNT * sizeof(float))
#define PATIENCE_SECONDS 120
#define NCCL_FLOAT 7
#define NCCL_SUM 0
#define NOT_SUPPORTED 801

typedef void *handle;
struct ipc {
    char bytes[64];
};
struct unique {
    char bytes[128];
};

static int rank;
static const char *under_way = "driver"; /* the step */

static struct {
    int (*init)(unsigned flags);
    int (*retain)(handle *context, int device);
    int (*enter)(handle context);
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*up)(uint64_t to, const void *from, size_t bytes);
    int (*down)(void *to, uint64_t from, size_t bytes);
    int (*across)(uint64_t to, uint64_t from, size_t bytes);
    int (*wait)(void);
    int (*share)(struct ipc *out, uint64_t address);
    int (*open)(uint64_t *out, struct ipc shared, unsigned flags);
    int (*close)(uint64_t address);
} driver;

static struct {
    int (*version)(int *out);
    int (*identify)(struct unique *out);
    int (*begin)(handle *out, int ranks, struct unique id, int mine);
    int (*reduce)(const void *from, void *to, size_t count, int type, int operation, handle comm,
                  handle stream);
    int (*end)(handle comm);
    const char *(*explain)(int error);
} nccl;

static void tell(const char *step, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(const char *step, const char *format, ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dprintf(STDERR_FILENO, "info: rank %d %s %s\n", rank, step, text);
}

/* In the thread that made the call. */
static void refused(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    tell(under_way, "failed system call %d is refused", info->si_syscall);
    _exit(128 + SIGSYS);
}

static int find(handle library, const char *name, void *to)
{
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static int open_driver(const char *path)
{
    handle library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    return find(library, "cuIpcGetMemHandle", &driver.share) &&
           find(library, "cuIpcOpenMemHandle_v2", &driver.open) &&
           find(library, "cuIpcCloseMemHandle", &driver.close) &&
           find(library, "cuInit", &driver.init) &&
           find(library, "cuDevicePrimaryCtxRetain", &driver.retain) &&
           find(library, "cuCtxSetCurrent", &driver.enter) &&
           find(library, "cuMemAlloc_v2", &driver.allocate) &&
           find(library, "cuMemcpyHtoD_v2", &driver.up) &&
           find(library, "cuMemcpyDtoH_v2", &driver.down) &&
           find(library, "cuMemcpyDtoD_v2", &driver.across) &&
           find(library, "cuCtxSynchronize", &driver.wait);
}

static int open_nccl(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/libnccl.so", getenv("GPUPOOL_PLUGINS"));
    handle library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return find(library, "ncclGetVersion", &nccl.version) &&
           find(library, "ncclGetUniqueId", &nccl.identify) &&
           find(library, "ncclCommInitRank", &nccl.begin) &&
           find(library, "ncclAllReduce", &nccl.reduce) &&
           find(library, "ncclCommDestroy", &nccl.end) &&
           find(library, "ncclGetErrorString", &nccl.explain);
}

/* --- what the ranks say to each other ---------------------------------------------- */

static void name_of(char path[64], const char *what, int whose)
{
    snprintf(path, 64, "/dev/shm/rank-%s-%d", what, whose);
}

/* The file's owner may be another user; it is complete when it may be read. */
static void put(const char *what, const void *data, size_t size)
{
    char path[64];
    name_of(path, what, rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0200);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || fchmod(fd, 0444) != 0)
        tell(what, "failed it cannot be said: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
}

static int get(const char *what, int whose, void *data, size_t size)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    char path[64];
    name_of(path, what, whose);
    for (int i = 0; i < PATIENCE_SECONDS * 100; i++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            ssize_t got = read(fd, data, size);
            close(fd);
            return got == (ssize_t)size;
        }
        nanosleep(&moment, NULL);
    }
    tell(what, "failed the other rank did not say it");
    return 0;
}

static int both_have(const char *done)
{
    char byte = 1;
    put(done, &byte, 1);
    return get(done, 1 - rank, &byte, 1);
}

static void take_rank(void)
{
    int fd = open("/dev/shm/rank-first", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    rank = fd < 0;
    if (fd >= 0)
        close(fd);
}

/* --- the steps ----------------------------------------------------------------------- */

static float value(int whose, size_t i)
{
    return (float)(i % 97) + (float)(10 * whose);
}

/* A buffer on this rank's GPU with this rank's values. */
static int buffer_make(uint64_t *out)
{
    static float values[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        values[i] = value(rank, i);
    int r = driver.allocate(out, BYTES);
    return r ? r : driver.up(*out, values, BYTES);
}

/* How many are not what they ought to be; -1: they cannot be read. */
static long wrong_in(uint64_t buffer, float (*expected)(size_t i))
{
    static float values[COUNT];
    long wrong = 0;
    if (driver.wait() != 0 || driver.down(values, buffer, BYTES) != 0)
        return -1;
    for (size_t i = 0; i < COUNT; i++)
        wrong += values[i] < expected(i) || values[i] > expected(i);
    return wrong;
}

static float of_other(size_t i)
{
    return value(1 - rank, i);
}

static float of_both(size_t i)
{
    return value(0, i) + value(1, i);
}

static void peer_copy(void)
{
    uint64_t mine, copy, other;
    struct ipc shared;
    int r = buffer_make(&mine);
    if (r == 0)
        r = driver.allocate(&copy, BYTES);
    if (r == 0)
        r = driver.wait();
    if (r == 0)
        r = driver.share(&shared, mine);
    if (r == NOT_SUPPORTED)
        tell("peer-copy", "absent this driver has no IPC");
    else if (r != 0)
        tell("peer-copy", "failed nothing to share: CUDA error %d", r);
    put("ipc", &shared, sizeof shared);
    if (!get("ipc", 1 - rank, &shared, sizeof shared) || r != 0)
        return;
    r = driver.open(&other, shared, 1);
    if (r != 0)
        tell("peer-copy", "failed the other's memory cannot be opened: CUDA error %d", r);
    else if ((r = driver.across(copy, other, BYTES)) != 0 || wrong_in(copy, of_other) != 0)
        tell("peer-copy", "failed CUDA error %d, or wrong bytes", r);
    else
        tell("peer-copy", "ok");
    both_have("copied");
    if (r == 0)
        driver.close(other);
}

/* What NCCL says goes to a file: the log has a meter. */
static void nccl_log(void)
{
    char line[250];
    FILE *file = fopen("/tmp/nccl.log", "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strstr(line, "WARN") || strstr(line, " via "))
            tell("nccl", "said %s", line);
    }
    if (file)
        fclose(file);
}

static int reduce(handle comm)
{
    uint64_t from, to;
    int r = buffer_make(&from);
    if (r == 0)
        r = driver.allocate(&to, BYTES);
    if (r != 0) {
        tell("all-reduce", "failed no memory: CUDA error %d", r);
        return r;
    }
    r = nccl.reduce((void *)(uintptr_t)from, (void *)(uintptr_t)to, COUNT, NCCL_FLOAT, NCCL_SUM,
                    comm, NULL);
    long wrong = r == 0 ? wrong_in(to, of_both) : 0;
    if (r != 0)
        tell("all-reduce", "failed %s", nccl.explain(r));
    else if (wrong != 0)
        tell("all-reduce", "failed %ld of %d sums are wrong", wrong, COUNT);
    return r != 0 || wrong != 0;
}

static void all_reduce(void)
{
    struct unique id = {{0}};
    handle comm = NULL;
    int version = 0;
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_FILE", "/tmp/nccl.log", 1);
    if (!open_nccl()) {
        tell("all-reduce", "failed no libnccl: %s", dlerror());
        return;
    }
    int r = nccl.version(&version);
    if (r == 0 && rank == 0 && (r = nccl.identify(&id)) == 0)
        put("id", &id, sizeof id);
    if (r == 0 && !get("id", 0, &id, sizeof id))
        return;
    if (r == 0)
        r = nccl.begin(&comm, 2, id, rank);
    if (r != 0)
        tell("all-reduce", "failed it does not begin: %s", nccl.explain(r));
    else if (reduce(comm) == 0)
        tell("all-reduce", "ok by version %d", version);
    nccl_log();
    if (r == 0 && both_have("reduced"))
        nccl.end(comm);
}

int main(int argc, char **argv)
{
    const char *path = "", *devices = "0";
    handle context;
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts(VERSION);
        return 0;
    }
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* as the worker does */
    sigaction(SIGSYS, &(struct sigaction){.sa_sigaction = refused, .sa_flags = SA_SIGINFO}, NULL);
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--driver") == 0)
            path = argv[i + 1];
        if (strcmp(argv[i], "--devices") == 0)
            devices = argv[i + 1];
    }
    printf("ready {\"shm\": \"shm://handed\"}\njoined\n");
    fflush(stdout);
    take_rank();
    if (!open_driver(path)) {
        tell("driver", "failed %s", dlerror());
    } else {
        int r = driver.init(0);
        if (r == 0)
            r = driver.retain(&context, atoi(devices));
        if (r == 0)
            r = driver.enter(context);
        if (r != 0) {
            tell("driver", "failed CUDA error %d", r);
        } else {
            tell("driver", "ok");
            under_way = "peer-copy";
            peer_copy();
            under_way = "all-reduce";
            all_reduce();
        }
    }
    tell("over", "ok");
    both_have("over");
    return 0;
}
