/*
 * A small NCCL on the soft GPU: what its files share.
 *
 * A communicator has a TCP connection from each rank to each other, threads of one process included.
 * A collective is a function of the host in its stream (cuLaunchHostFunc): the soft GPU's memory is
 * memory of this process, so that function sends, receives and reduces where the buffers are, and
 * the stream's order, events and captures are the driver's. Clarity before speed.
 *
 * A function of the host may not call CUDA, and waits for ranks on sockets alone; each such wait
 * looks at the communicator's `wake` as well, which ncclCommAbort makes readable.
 *
 * Locks: a communicator's `run` (held by the operation that has its connections), then `lock`.
 */
#ifndef SN_SOFTNCCL_H
#define SN_SOFTNCCL_H

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl_api.h"
#include "transport/silence.h"
#include "wire.h"

#define SN_TRY(call)                                                                               \
    do {                                                                                           \
        ncclResult_t sn_try = (call);                                                              \
        if (sn_try != ncclSuccess)                                                                 \
            return sn_try;                                                                         \
    } while (0)

/* ---- the driver (driver.c) ---- */
#define SN_DRIVER_CALLS(X)                                                                         \
    X(cuInit)                                                                                      \
    X(cuCtxGetCurrent)                                                                             \
    X(cuCtxGetDevice)                                                                              \
    X(cuCtxPushCurrent_v2)                                                                         \
    X(cuCtxPopCurrent_v2)                                                                          \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGetUuid_v2)                                                                          \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuEventCreate)                                                                               \
    X(cuEventRecord)                                                                               \
    X(cuEventDestroy_v2)                                                                           \
    X(cuEventQuery)                                                                                \
    X(cuGetErrorName)                                                                              \
    X(cuGraphRetainUserObject)                                                                     \
    X(cuLaunchHostFunc)                                                                            \
    X(cuMemAlloc_v2)                                                                               \
    X(cuMemFree_v2)                                                                                \
    X(cuPointerGetAttribute)                                                                       \
    X(cuStreamGetCaptureInfo_v3)                                                                   \
    X(cuStreamWaitEvent)                                                                           \
    X(cuUserObjectCreate)                                                                          \
    X(cuUserObjectRelease)

struct sn_driver {
#define SN_CALL(name) __typeof__(&name) name;
    SN_DRIVER_CALLS(SN_CALL)
#undef SN_CALL
};
/* Found in the soft GPU that this process has loaded; NULL: it has none, which is said. */
const struct sn_driver *sn_driver(void);
/* ncclUnhandledCudaError, and what failed is the last error. */
ncclResult_t sn_cuda(CUresult result, const char *what);
#define SN_CUDA(name, ...) SN_TRY(sn_cuda(sn_driver()->name(__VA_ARGS__), #name))
/* All of it is memory that the driver knows. */
ncclResult_t sn_memory_check(const void *address, uint64_t bytes, const char *what);

/* ---- errors (error.c) ---- */
/* Notes one line as the last error, writes it where NCCL_DEBUG asks to, and returns `result`. */
ncclResult_t sn_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- waiting on sockets (net.c) ---- */
/* How long the other end's host may say nothing: as long as that of a worker's client. */
const struct gp_silence *sn_silence(void);
/* `wake` is a descriptor that becomes readable when waiting must end; -1: none. Results are a
 * descriptor or 0, or a negative errno; -ECANCELED: woken; -ECONNRESET: the other end is gone;
 * -ETIMEDOUT: its host is silent. */
/* Until one of them is ready. What is silent has POLLERR. */
int sn_poll(struct pollfd *polled, nfds_t count);
int sn_wait(int fd, short events, int wake);
int sn_send(int fd, const void *data, size_t size, int wake);
int sn_receive(int fd, void *data, size_t size, int wake);
int sn_connect(const struct sn_address *address, int wake);
/* Listens on the interface that NCCL_SOCKET_IFNAME names; `address` says where. */
int sn_listen(struct sn_address *address);
/* address.c: of that interface, without a port. False: there is none. */
bool sn_address_own(struct sn_address *out);

/* ---- who may come in (door.c) ---- */
#define SN_DOOR_PENDING 64u
#define SN_GREETING_MAX 128u
/* Connections that have not said all of their greeting. */
struct sn_door {
    int listener, wake;
    const uint8_t *secret; /* with which each greeting begins */
    size_t size;           /* of a greeting */
    uint64_t until;        /* of gp_now_ns: who is late does not come; 0: there is time */
    unsigned count;
    struct sn_guest {
        int fd;
        size_t got;
        unsigned char greeting[SN_GREETING_MAX];
    } guests[SN_DOOR_PENDING];
};
/* Waits for the next greeting with the secret; its connection, or a negative errno (-ETIMEDOUT: it is
 * late). Others are dropped, and so is the oldest that keeps silent where there are too many. */
int sn_door_next(struct sn_door *door, void *greeting);
void sn_door_close(struct sn_door *door);

/* ---- communicators (comm.c) ---- */
struct sn_redop {
    bool used;
    ncclDataType_t type;
    ncclScalarResidence_t residence;
    union {
        unsigned char value[8];
        const void *device;
    };
};
#define SN_REDOPS_MAX 256

/* ncclCommRegister: nothing is faster for it, and the handle is checked. */
struct sn_registration {
    struct sn_registration *next;
};

struct ncclComm {
    uint64_t magic;
    int refs; /* the handle, the work that is queued, graphs that hold some */
    pthread_mutex_t run, lock;
    uint32_t ranks, rank;
    CUdevice device;
    CUcontext context;
    CUevent done; /* behind the latest operation */
    CUevent join; /* of several streams of a group */
    bool blocking;
    int wake;
    int aborted; /* or ended otherwise: nothing of it runs any more */
    /* under the lock */
    ncclResult_t state;
    bool finalized;
    struct sn_redop redops[SN_REDOPS_MAX];
    struct sn_registration *registrations;
    /* under `run`, and constant from when it is ready */
    struct sn_place place; /* this rank's */
    int listener;
    int *sockets; /* to each rank; -1: this one */
    uint32_t *sent, *received;
    struct sn_place *places;
};

/* It is a communicator; and one that is ready for a call. Else the error that the call returns. */
ncclResult_t sn_comm_check(const struct ncclComm *comm);
ncclResult_t sn_comm_ready(ncclComm_t comm);
/* In the current context, without ranks yet. */
ncclResult_t sn_comm_new(bool blocking, ncclComm_t *out);
ncclResult_t sn_comm_size(ncclComm_t comm, uint32_t ranks, uint32_t rank);
void sn_comm_ref(ncclComm_t comm);
void sn_comm_unref(ncclComm_t comm);
/* Its error from now on, unless it has one. The connections end, so that others learn of it. */
void sn_comm_fail(ncclComm_t comm, ncclResult_t result);
bool sn_comm_aborted(const struct ncclComm *comm);
/* It has an error. */
bool sn_comm_failed(ncclComm_t comm);
/* ncclInProgress, or what came of it. */
void sn_comm_state_set(ncclComm_t comm, ncclResult_t state);
ncclResult_t sn_comm_state(ncclComm_t comm);
/* Until its operations are over, or it has failed. */
void sn_comm_drain(ncclComm_t comm);
/* The handle ends: nothing of it runs any more. */
void sn_comm_end(ncclComm_t comm);
/* The error for a negative errno of one of its sockets. */
ncclResult_t sn_comm_network(const struct ncclComm *comm, int error, const char *doing,
                             uint32_t peer);
/* NULL is allowed, and leaves `blocking` as it is. */
ncclResult_t sn_config_read(const ncclConfig_t *config, bool *blocking);

/* ---- meeting (mesh.c, root.c) ---- */
/* Waits for all ranks and connects to them. */
ncclResult_t sn_mesh_meet(ncclComm_t comm, const struct sn_id *id);
/* The same with places that are known. */
ncclResult_t sn_mesh_join(ncclComm_t comm, const uint8_t *secret);
/* Listens, and says where this rank is. */
ncclResult_t sn_mesh_listen(ncclComm_t comm);
void sn_mesh_close(ncclComm_t comm);
ncclResult_t sn_random(void *out, size_t size);

/* ---- calls that take time (job.c) ---- */
/* What a thread does for a communicator, and its result is the communicator's state meanwhile and
 * behind it. */
struct sn_job {
    struct sn_job *next;
    ncclResult_t (*run)(struct sn_job *job);
    ncclComm_t comm;     /* whose state it is; referenced */
    ncclComm_t made;     /* what comes of it; NULL: nothing, or what is there already */
    ncclComm_t *out;     /* where that is put; NULL where it fails */
    ncclComm_t parent;   /* of a split: referenced */
    uint32_t ranks;      /* of an initialisation */
    struct sn_id id;     /* to meet by */
    int color, key;      /* of a split */
    bool *stays;         /* of a split: a flag for each rank; owned */
    ncclResult_t result; /* behind the thread */
    pthread_t thread;
    bool started;
};
struct sn_job *sn_job_new(ncclComm_t comm, ncclResult_t (*run)(struct sn_job *job));
void sn_job_free(struct sn_job *job);
/* Takes it over. Inside a group it is the group's; otherwise it runs, and where the communicator
 * does not block the answer is ncclInProgress. */
ncclResult_t sn_job_submit(struct sn_job *job);
/* All of a list, side by side. */
ncclResult_t sn_jobs_run(struct sn_job *list);

/* ---- what is to be moved (exchange.c) ---- */
struct sn_transfer;
/* Transfers with several ranks that go on side by side; those with one rank keep their order. */
struct sn_exchange {
    ncclComm_t comm;
    struct sn_queue {
        struct sn_transfer *first, *last;
    } *out, *in; /* for each rank */
    bool failed; /* there was no memory */
};
bool sn_exchange_begin(struct sn_exchange *x, ncclComm_t comm);
void sn_exchange_send(struct sn_exchange *x, uint32_t to, struct sn_header header, const void *data,
                      uint64_t bytes);
void sn_exchange_receive(struct sn_exchange *x, uint32_t from, struct sn_header header, void *data,
                         uint64_t bytes);
/* Until all are over. Its own `run` is held. */
ncclResult_t sn_exchange_run(struct sn_exchange *x);
void sn_exchange_end(struct sn_exchange *x);

/* ---- collectives (collective.c, reduce.c, type.c) ---- */
struct sn_work {
    enum sn_kind kind;
    bool is_send; /* of SN_POINT_TO_POINT */
    const void *send;
    void *recv;
    uint64_t count;
    ncclDataType_t type;
    ncclRedOp_t op;         /* one of NCCL's own */
    bool scaled;            /* each element is multiplied first: a PreMulSum */
    struct sn_redop factor; /* by this */
    uint32_t root;          /* or the peer */
};
size_t sn_type_size(ncclDataType_t type);
/* to = to op from, for each element. */
void sn_type_reduce(ncclDataType_t type, ncclRedOp_t op, void *to, const void *from,
                    uint64_t count);
/* out = in * factor; out may be in. */
void sn_type_scale(ncclDataType_t type, void *out, const void *in, const void *factor,
                   uint64_t count);
void sn_type_divide(ncclDataType_t type, void *data, uint32_t by, uint64_t count);
/* In a function of the host, with `run` held. */
ncclResult_t sn_collective_run(ncclComm_t comm, const struct sn_work *work);
ncclResult_t sn_reduction_run(ncclComm_t comm, const struct sn_work *work);
/* Those of `works` that are point to point, side by side. */
ncclResult_t sn_point_to_point_run(ncclComm_t comm, const struct sn_work *works, size_t count);

/* ---- groups and launches (group.c, plan.c) ---- */
bool sn_group_open(void);
/* The group's work, or a group of one. */
ncclResult_t sn_group_work(ncclComm_t comm, CUstream stream, const struct sn_work *work);
void sn_group_job(struct sn_job *job);
/* The group ends with it. */
ncclResult_t sn_group_fail(ncclResult_t result);

/* What one launch does for one communicator. */
struct sn_plan {
    struct sn_plan *next;
    ncclComm_t comm;   /* referenced */
    CUstream *streams; /* it is in the first, and in the order of all */
    size_t stream_count;
    struct sn_work *works;
    size_t work_count;
};
struct sn_plan *sn_plan_new(ncclComm_t comm);
ncclResult_t sn_plan_add(struct sn_plan *plan, CUstream stream, const struct sn_work *work);
/* Queues it and takes it over. */
ncclResult_t sn_plan_launch(struct sn_plan *plan);
void sn_plan_free(struct sn_plan *plan);

#endif
