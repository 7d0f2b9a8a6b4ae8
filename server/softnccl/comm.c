/* Communicators: what they are, how they end, and what they say of themselves. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "softnccl.h"

#define MAGIC UINT64_C(0x6d6d6f636c63636e)

/* ---- life ---- */
/* NCCL_HOSTID, or the host's name with this boot's id: containers may share a name. */
static uint64_t host_id(void)
{
    char text[256] = "";
    const char *given = getenv("NCCL_HOSTID");
    uint64_t hash = 0xcbf29ce484222325u;
    if (!given || !*given) {
        gethostname(text, sizeof text - 64);
        FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
        size_t used = strlen(text);
        if (file) {
            used += fread(text + used, 1, 40, file);
            fclose(file);
        }
        text[used] = 0;
        given = text;
    }
    for (; *given; given++)
        hash = (hash ^ (unsigned char)*given) * 0x100000001b3u;
    return hash;
}

static ncclResult_t take_device(ncclComm_t comm)
{
    CUuuid uuid;
    SN_CUDA(cuCtxGetCurrent, &comm->context);
    SN_CUDA(cuCtxGetDevice, &comm->device);
    SN_CUDA(cuDeviceGetUuid_v2, &uuid, comm->device);
    memcpy(comm->place.uuid, uuid.bytes, sizeof comm->place.uuid);
    comm->place.device = (uint32_t)comm->device;
    comm->place.host = host_id();
    SN_CUDA(cuEventCreate, &comm->done, CU_EVENT_DISABLE_TIMING);
    SN_CUDA(cuEventCreate, &comm->join, CU_EVENT_DISABLE_TIMING);
    comm->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (comm->wake < 0)
        return sn_fail(ncclSystemError, "eventfd failed: %s", strerror(errno));
    return ncclSuccess;
}

/* A thread that finalizes may ask for one meanwhile. */
static void events_destroy(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->done)
        sn_driver()->cuEventDestroy_v2(comm->done);
    if (comm->join)
        sn_driver()->cuEventDestroy_v2(comm->join);
    comm->done = comm->join = NULL;
    pthread_mutex_unlock(&comm->lock);
}

ncclResult_t sn_comm_new(bool blocking, ncclComm_t *out)
{
    if (!sn_driver())
        return ncclSystemError;
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (!comm)
        return sn_fail(ncclSystemError, "no memory");
    comm->magic = MAGIC;
    comm->refs = 1;
    comm->blocking = blocking;
    comm->listener = comm->wake = -1;
    pthread_mutex_init(&comm->run, NULL);
    pthread_mutex_init(&comm->lock, NULL);
    ncclResult_t result = take_device(comm);
    if (result != ncclSuccess) {
        events_destroy(comm);
        sn_comm_unref(comm);
        return result;
    }
    *out = comm;
    return ncclSuccess;
}

ncclResult_t sn_comm_size(ncclComm_t comm, uint32_t ranks, uint32_t rank)
{
    comm->sockets = malloc(ranks * sizeof *comm->sockets);
    comm->sent = calloc(ranks, sizeof *comm->sent);
    comm->received = calloc(ranks, sizeof *comm->received);
    comm->places = calloc(ranks, sizeof *comm->places);
    if (!comm->sockets || !comm->sent || !comm->received || !comm->places)
        return sn_fail(ncclSystemError, "no memory");
    for (uint32_t i = 0; i < ranks; i++)
        comm->sockets[i] = -1;
    comm->ranks = ranks;
    comm->rank = rank;
    return ncclSuccess;
}

void sn_comm_ref(ncclComm_t comm)
{
    __atomic_add_fetch(&comm->refs, 1, __ATOMIC_RELAXED);
}

/* Also in functions of the host: nothing here calls CUDA. */
void sn_comm_unref(ncclComm_t comm)
{
    if (__atomic_sub_fetch(&comm->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    sn_mesh_close(comm);
    if (comm->wake >= 0)
        close(comm->wake);
    pthread_mutex_destroy(&comm->run);
    pthread_mutex_destroy(&comm->lock);
    free(comm->sockets);
    free(comm->sent);
    free(comm->received);
    free(comm->places);
    while (comm->registrations) {
        struct sn_registration *r = comm->registrations;
        comm->registrations = r->next;
        free(r);
    }
    comm->magic = 0;
    free(comm);
}

bool sn_comm_aborted(const struct ncclComm *comm)
{
    return __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE);
}

/* What waits for its ranks sees `wake` and gives `run` back. */
void sn_comm_end(ncclComm_t comm)
{
    __atomic_store_n(&comm->aborted, 1, __ATOMIC_RELEASE);
    eventfd_write(comm->wake, 1);
    pthread_mutex_lock(&comm->run);
    sn_mesh_close(comm);
    pthread_mutex_unlock(&comm->run);
    events_destroy(comm);
    sn_comm_unref(comm);
}

/* ---- state ---- */
ncclResult_t sn_comm_check(const struct ncclComm *comm)
{
    if (!comm || comm->magic != MAGIC)
        return sn_fail(ncclInvalidArgument, "comm is no communicator");
    return ncclSuccess;
}

void sn_comm_state_set(ncclComm_t comm, ncclResult_t state)
{
    pthread_mutex_lock(&comm->lock);
    comm->state = state;
    pthread_mutex_unlock(&comm->lock);
}

ncclResult_t sn_comm_state(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    ncclResult_t state = comm->state;
    pthread_mutex_unlock(&comm->lock);
    return state;
}

ncclResult_t sn_comm_ready(ncclComm_t comm)
{
    SN_TRY(sn_comm_check(comm));
    ncclResult_t state = sn_comm_state(comm);
    if (state == ncclInProgress)
        return sn_fail(ncclInvalidArgument,
                       "the communicator is used before the previous call has succeeded: ask "
                       "ncclCommGetAsyncError until it is no longer ncclInProgress");
    if (state == ncclSuccess && comm->finalized)
        return sn_fail(ncclInvalidUsage, "the communicator has been finalized");
    return state;
}

void sn_comm_fail(ncclComm_t comm, ncclResult_t result)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->state == ncclSuccess || comm->state == ncclInProgress)
        comm->state = result;
    for (uint32_t i = 0; i < comm->ranks; i++)
        if (comm->sockets[i] >= 0)
            shutdown(comm->sockets[i], SHUT_RDWR);
    pthread_mutex_unlock(&comm->lock);
}

bool sn_comm_failed(ncclComm_t comm)
{
    ncclResult_t state = sn_comm_state(comm);
    return state != ncclSuccess && state != ncclInProgress;
}

ncclResult_t sn_comm_network(const struct ncclComm *comm, int error, const char *doing,
                             uint32_t peer)
{
    if (error == -ECANCELED)
        return sn_fail(ncclInvalidUsage, "rank %u of %u was aborted", comm->rank, comm->ranks);
    bool own = error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENOBUFS;
    return sn_fail(own ? ncclSystemError : ncclRemoteError, "rank %u of %u cannot %s rank %u: %s",
                   comm->rank, comm->ranks, doing, peer, strerror(-error));
}

static bool is_busy(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    bool busy = comm->done && sn_driver()->cuEventQuery(comm->done) == CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&comm->lock);
    return busy;
}

void sn_comm_drain(ncclComm_t comm)
{
    const struct timespec moment = {.tv_nsec = 200000};
    while (!sn_comm_failed(comm) && is_busy(comm))
        nanosleep(&moment, NULL);
}

/* ---- calls ---- */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    SN_TRY(sn_comm_check(comm));
    if (sn_comm_state(comm) == ncclInProgress)
        return sn_comm_ready(comm);
    sn_comm_drain(comm);
    sn_comm_end(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    SN_TRY(sn_comm_check(comm));
    sn_comm_end(comm);
    return ncclSuccess;
}

static ncclResult_t finalize(struct sn_job *job)
{
    sn_comm_drain(job->comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    SN_TRY(sn_comm_ready(comm));
    struct sn_job *job = sn_job_new(comm, finalize);
    if (!job)
        return sn_fail(ncclSystemError, "no memory");
    comm->finalized = true;
    return sn_job_submit(job);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    SN_TRY(sn_comm_check(comm));
    if (!asyncError)
        return sn_fail(ncclInvalidArgument, "ncclCommGetAsyncError: asyncError is NULL");
    *asyncError = sn_comm_state(comm);
    return ncclSuccess;
}

static ncclResult_t number(const struct ncclComm *comm, int *out, int value)
{
    SN_TRY(sn_comm_check(comm));
    if (!out)
        return sn_fail(ncclInvalidArgument, "the pointer for the answer is NULL");
    *out = value;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    return number(comm, count, comm ? (int)comm->ranks : 0);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return number(comm, rank, comm ? (int)comm->rank : 0);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    return number(comm, device, comm ? comm->device : 0);
}

/* ---- configuration ---- */
/* Of all that can be set one member means something here. */
ncclResult_t sn_config_read(const ncclConfig_t *config, bool *blocking)
{
    if (!config)
        return ncclSuccess;
    if (config->magic != NCCL_API_MAGIC ||
        config->size < offsetof(ncclConfig_t, blocking) + sizeof config->blocking)
        return sn_fail(ncclInvalidArgument,
                       "config does not begin as NCCL_CONFIG_INITIALIZER makes it");
    if (config->blocking == NCCL_CONFIG_UNDEF_INT)
        return ncclSuccess;
    if (config->blocking != 0 && config->blocking != 1)
        return sn_fail(ncclInvalidArgument, "config: blocking is %d, and can be 0 or 1",
                       config->blocking);
    *blocking = config->blocking;
    return ncclSuccess;
}
