/* How communicators begin. */
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

/* As CUDA's runtime does: a thread that has no context gets that of the first GPU. */
static ncclResult_t need_context(void)
{
    CUcontext context;
    CUdevice device;
    if (!sn_driver())
        return ncclSystemError;
    SN_CUDA(cuInit, 0);
    SN_CUDA(cuCtxGetCurrent, &context);
    if (context)
        return ncclSuccess;
    SN_CUDA(cuDeviceGet, &device, 0);
    SN_CUDA(cuDevicePrimaryCtxRetain, &context, device);
    SN_CUDA(cuCtxPushCurrent_v2, context);
    return ncclSuccess;
}

static ncclResult_t meet(struct sn_job *job)
{
    ncclComm_t comm = job->comm;
    pthread_mutex_lock(&comm->run);
    ncclResult_t result = sn_mesh_meet(comm, &job->id);
    pthread_mutex_unlock(&comm->run);
    return result;
}

static ncclResult_t begin(ncclComm_t *out, uint32_t ranks, const struct sn_id *id, uint32_t rank,
                          bool blocking)
{
    ncclComm_t comm;
    SN_TRY(need_context());
    SN_TRY(sn_comm_new(blocking, &comm));
    ncclResult_t result = sn_comm_size(comm, ranks, rank);
    struct sn_job *job = result == ncclSuccess ? sn_job_new(comm, meet) : NULL;
    if (!job) {
        sn_comm_end(comm);
        return sn_fail(ncclSystemError, "no memory");
    }
    job->id = *id;
    job->made = comm;
    job->out = out;
    return sn_job_submit(job);
}

static ncclResult_t check_and_begin(ncclComm_t *comm, int nranks, const ncclUniqueId *given,
                                    int rank, const ncclConfig_t *config)
{
    bool blocking = true;
    struct sn_id id;
    if (!comm)
        return sn_fail(ncclInvalidArgument, "comm is NULL");
    *comm = NULL;
    if (nranks < 1 || nranks > (int)SN_RANKS_MAX || rank < 0 || rank >= nranks)
        return sn_fail(ncclInvalidArgument,
                       "rank %d of %d: this NCCL has 1 to %u ranks, numbered from 0", rank, nranks,
                       SN_RANKS_MAX);
    if (!sn_id_decode(given->internal, &id))
        return sn_fail(ncclInvalidArgument, "commId is none that ncclGetUniqueId gave");
    SN_TRY(sn_config_read(config, &blocking));
    return begin(comm, (uint32_t)nranks, &id, (uint32_t)rank, blocking);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    return sn_group_fail(check_and_begin(comm, nranks, &commId, rank, config));
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    return ncclCommInitRankConfig(comm, nranks, commId, rank, NULL);
}

/* One root is enough for as many ranks as there can be. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config)
{
    if (nId < 1 || nId > nranks || !commIds)
        return sn_group_fail(sn_fail(ncclInvalidArgument,
                                     "ncclCommInitRankScalable: %d ids for %d ranks: give one or "
                                     "more, and not more than ranks",
                                     nId, nranks));
    return ncclCommInitRankConfig(newcomm, nranks, commIds[0], myrank, config);
}

/* ---- one process with several GPUs ---- */
static ncclResult_t init_on(ncclComm_t *comm, int ndev, ncclUniqueId id, int rank, int ordinal)
{
    CUdevice device;
    CUcontext context;
    SN_CUDA(cuDeviceGet, &device, ordinal);
    SN_CUDA(cuDevicePrimaryCtxRetain, &context, device);
    SN_CUDA(cuCtxPushCurrent_v2, context);
    ncclResult_t result = ncclCommInitRank(comm, ndev, id, rank);
    SN_CUDA(cuCtxPopCurrent_v2, &context);
    return result;
}

static ncclResult_t check_devices(const ncclComm_t *comm, int ndev, const int *devlist)
{
    int count = 0;
    if (!sn_driver())
        return ncclSystemError;
    SN_CUDA(cuInit, 0);
    SN_CUDA(cuDeviceGetCount, &count);
    if (!comm || ndev < 1 || ndev > (int)SN_RANKS_MAX)
        return sn_fail(ncclInvalidArgument, "ncclCommInitAll: %d devices", ndev);
    for (int i = 0; i < ndev; i++) {
        int device = devlist ? devlist[i] : i;
        if (device < 0 || device >= count)
            return sn_fail(ncclInvalidArgument, "there is no device %d: there are %d", device,
                           count);
        for (int j = 0; devlist && j < i; j++)
            if (devlist[j] == device)
                return sn_fail(ncclInvalidUsage, "device %d is twice in the list", device);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    ncclUniqueId id;
    SN_TRY(check_devices(comm, ndev, devlist));
    SN_TRY(ncclGetUniqueId(&id));
    SN_TRY(ncclGroupStart());
    for (int i = 0; i < ndev; i++)
        sn_group_fail(init_on(&comm[i], ndev, id, i, devlist ? devlist[i] : i));
    return ncclGroupEnd();
}
