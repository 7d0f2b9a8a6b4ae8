/* What the programs with NCCL share: the library, found as a program finds it, and checks. */
#ifndef E2E_NCCL_RANKS_H
#define E2E_NCCL_RANKS_H

#include "driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "../../../proto/wire/nccl_api.h"

#define NCCL_CALLS(X)                                                                              \
    X(GetVersion)                                                                                  \
    X(GetErrorString)                                                                              \
    X(GetLastError)                                                                                \
    X(GetUniqueId)                                                                                 \
    X(CommInitRank)                                                                                \
    X(CommInitRankConfig)                                                                          \
    X(CommInitRankScalable)                                                                        \
    X(CommInitAll)                                                                                 \
    X(CommSplit)                                                                                   \
    X(CommShrink)                                                                                  \
    X(CommFinalize)                                                                                \
    X(CommDestroy)                                                                                 \
    X(CommAbort)                                                                                   \
    X(CommGetAsyncError)                                                                           \
    X(CommCount)                                                                                   \
    X(CommCuDevice)                                                                                \
    X(CommUserRank)                                                                                \
    X(CommRegister)                                                                                \
    X(CommDeregister)                                                                              \
    X(CommWindowRegister)                                                                          \
    X(MemAlloc)                                                                                    \
    X(MemFree)                                                                                     \
    X(RedOpCreatePreMulSum)                                                                        \
    X(RedOpDestroy)                                                                                \
    X(Reduce)                                                                                      \
    X(Bcast)                                                                                       \
    X(Broadcast)                                                                                   \
    X(AllReduce)                                                                                   \
    X(ReduceScatter)                                                                               \
    X(AllGather)                                                                                   \
    X(AlltoAll)                                                                                    \
    X(Gather)                                                                                      \
    X(Scatter)                                                                                     \
    X(Send)                                                                                        \
    X(Recv)                                                                                        \
    X(GroupStart)                                                                                  \
    X(GroupEnd)                                                                                    \
    X(GroupSimulateEnd)

static struct {
#define X(name) __typeof__(&nccl##name) name;
    NCCL_CALLS(X)
#undef X
} nccl;

static inline void nccl_open(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    REQUIRE(library != NULL, "%s", dlerror());
#define X(name)                                                                                    \
    nccl.name = (__typeof__(nccl.name))dlsym(library, "nccl" #name);                               \
    REQUIRE(nccl.name != NULL && dlsym(library, "pnccl" #name), "no nccl" #name);
    NCCL_CALLS(X)
#undef X
}

#define NCCL(call)                                                                                 \
    do {                                                                                           \
        ncclResult_t nccl_result = (call);                                                         \
        REQUIRE(nccl_result == ncclSuccess, "%s: %s: %s", #call, nccl.GetErrorString(nccl_result), \
                nccl.GetLastError(NULL));                                                          \
    } while (0)
#define NCCL_GIVES(expected, call)                                                                 \
    do {                                                                                           \
        ncclResult_t nccl_result = (call);                                                         \
        EXPECT(nccl_result == (expected), "%s gave %s (%d), expected %s", #call,                   \
               nccl.GetErrorString(nccl_result), (int)nccl_result, #expected);                     \
    } while (0)

/* The first rank writes it to a file of a name that only comes when it is whole. */
static inline ncclUniqueId nccl_meet(const char *path, int rank)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    ncclUniqueId id;
    char partly[512];
    int fd;
    if (rank == 0) {
        NCCL(nccl.GetUniqueId(&id));
        snprintf(partly, sizeof partly, "%s.part", path);
        fd = open(partly, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        REQUIRE(fd >= 0 && write(fd, &id, sizeof id) == sizeof id && rename(partly, path) == 0,
                "cannot write %s", path);
    } else {
        while ((fd = open(path, O_RDONLY)) < 0)
            nanosleep(&moment, NULL);
        REQUIRE(read(fd, &id, sizeof id) == sizeof id, "cannot read %s", path);
    }
    close(fd);
    return id;
}

/* What 1, 2, 3 and 1.5 are in each type; the average of integers is cut off. */
static const struct {
    const char *name;
    unsigned size;
    uint64_t one, two, three, half; /* `half` is 1.5, or 1 */
} nccl_types[ncclNumTypes] = {
    {"int8", 1, 1, 2, 3, 1},
    {"uint8", 1, 1, 2, 3, 1},
    {"int32", 4, 1, 2, 3, 1},
    {"uint32", 4, 1, 2, 3, 1},
    {"int64", 8, 1, 2, 3, 1},
    {"uint64", 8, 1, 2, 3, 1},
    {"float16", 2, 0x3c00, 0x4000, 0x4200, 0x3e00},
    {"float32", 4, 0x3f800000, 0x40000000, 0x40400000, 0x3fc00000},
    {"float64", 8, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000, 0x3ff8000000000000},
    {"bfloat16", 2, 0x3f80, 0x4000, 0x4040, 0x3fc0},
    {"float8e4m3", 1, 0x38, 0x40, 0x44, 0x3c},
    {"float8e5m2", 1, 0x3c, 0x40, 0x42, 0x3e},
};

static inline void nccl_fill(CUdeviceptr at, int type, uint64_t value, size_t count)
{
    unsigned size = nccl_types[type].size;
    unsigned char *bytes = check_alloc(count * size);
    for (size_t i = 0; i < count; i++)
        memcpy(bytes + i * size, &value, size);
    CU(cuMemcpyHtoD(at, bytes, count * size));
    CU(cuCtxSynchronize()); /* pageable memory: it may still be on its way, on another stream */
    free(bytes);
}

static inline void nccl_expect(const char *what, CUdeviceptr at, int type, uint64_t value,
                               size_t count)
{
    unsigned size = nccl_types[type].size;
    unsigned char *bytes = check_alloc(count * size);
    size_t wrong = 0;
    CU(cuMemcpyDtoH(bytes, at, count * size));
    for (size_t i = 0; i < count; i++)
        wrong += memcmp(bytes + i * size, &value, size) != 0;
    EXPECT(wrong == 0, "%s of %s: %zu of %zu are wrong", what, nccl_types[type].name, wrong, count);
    free(bytes);
}

#endif
