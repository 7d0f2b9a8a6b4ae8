/* What the tests of the soft NCCL share: ranks as threads or processes, each with a soft GPU. */
#ifndef SOFTNCCL_CHECK_H
#define SOFTNCCL_CHECK_H

#include <arpa/inet.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_api.h"
#include "softgpu_check.h"
#include "wire.h"

#define NEXPECT(wanted, call)                                                                      \
    do {                                                                                           \
        ncclResult_t nexpect_got = (call);                                                         \
        if (nexpect_got != (wanted)) {                                                             \
            fprintf(stderr, "%s:%d: %s gave %d, not %s: %s\n", __FILE__, __LINE__, #call,          \
                    (int)nexpect_got, #wanted, ncclGetLastError(NULL));                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define NOK(call) NEXPECT(ncclSuccess, call)

struct rank {
    int rank, ranks, device;
    ncclUniqueId id;
    ncclComm_t comm;
    CUstream stream;
    void (*body)(struct rank *rank);
    pthread_t thread;
};

/* This thread's context is that of the rank's device. */
static inline void rank_enter(struct rank *rank)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, rank->device));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING));
}

static inline void *rank_main(void *argument)
{
    struct rank *rank = argument;
    rank_enter(rank);
    NOK(ncclCommInitRank(&rank->comm, rank->ranks, rank->id, rank->rank));
    rank->body(rank);
    NOK(ncclCommDestroy(rank->comm));
    OK(cuStreamDestroy(rank->stream));
    return NULL;
}

/* The body runs as each rank, on a thread. */
static inline void ranks_run(int ranks, void (*body)(struct rank *rank))
{
    struct rank all[16];
    ncclUniqueId id;
    NOK(ncclGetUniqueId(&id));
    for (int i = 0; i < ranks; i++) {
        all[i] = (struct rank){.rank = i, .ranks = ranks, .device = i, .id = id, .body = body};
        CHECK(pthread_create(&all[i].thread, NULL, rank_main, &all[i]) == 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(all[i].thread, NULL);
}

static inline void *memory(size_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    return (void *)(uintptr_t)address;
}

static inline void *memory_with(const void *data, size_t bytes)
{
    void *at = memory(bytes);
    OK(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)at, data, bytes));
    return at;
}

static inline void memory_free(void *at)
{
    OK(cuMemFree((CUdeviceptr)(uintptr_t)at));
}

static inline void read_back(struct rank *rank, void *data, const void *from, size_t bytes)
{
    OK(cuStreamSynchronize(rank->stream));
    OK(cuMemcpyDtoH(data, (CUdeviceptr)(uintptr_t)from, bytes));
}

/* A connection from somebody who is no rank, or says that it is one. */
static inline int dial(const struct sn_address *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(address->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&to.sin_addr, address->ip, 4);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static inline void moment(void)
{
    const struct timespec time = {.tv_nsec = 1000000};
    nanosleep(&time, NULL);
}

/* What its state comes to: it is waited for. */
static inline ncclResult_t state_after(ncclComm_t comm, ncclResult_t before)
{
    ncclResult_t state = before;
    for (int i = 0; i < 60000 && state == before; i++) {
        NOK(ncclCommGetAsyncError(comm, &state));
        moment();
    }
    return state;
}

#endif
