/* The entry points of collectives and of point to point: what is refused at once. */
#include <string.h>

#include "softnccl.h"

/* ---- reductions of a communicator's own ---- */
static ncclResult_t check_scalar(ncclRedOp_t *op, const void *scalar, ncclDataType_t type,
                                 ncclScalarResidence_t residence)
{
    if (!op || !scalar)
        return sn_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: a pointer is NULL");
    if ((unsigned)type >= ncclNumTypes || (unsigned)residence > ncclScalarHostImmediate)
        return sn_fail(ncclInvalidArgument,
                       "ncclRedOpCreatePreMulSum: data type %d or residence %d is none", (int)type,
                       (int)residence);
    return residence == ncclScalarDevice
               ? sn_memory_check(scalar, sn_type_size(type), "ncclRedOpCreatePreMulSum: scalar")
               : ncclSuccess;
}

static int take_redop(ncclComm_t comm, const struct sn_redop *made)
{
    int at = 0;
    pthread_mutex_lock(&comm->lock);
    while (at < SN_REDOPS_MAX && comm->redops[at].used)
        at++;
    if (at < SN_REDOPS_MAX)
        comm->redops[at] = *made;
    pthread_mutex_unlock(&comm->lock);
    return at < SN_REDOPS_MAX ? at : -1;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    struct sn_redop made = {.used = true, .type = datatype, .residence = residence};
    SN_TRY(sn_comm_ready(comm));
    SN_TRY(check_scalar(op, scalar, datatype, residence));
    if (residence == ncclScalarDevice)
        made.device = scalar;
    else
        memcpy(made.value, scalar, sn_type_size(datatype));
    int at = take_redop(comm, &made);
    if (at < 0)
        return sn_fail(ncclInvalidUsage, "a communicator has at most %d reductions of its own",
                       SN_REDOPS_MAX);
    *op = (ncclRedOp_t)(ncclNumOps + at);
    return ncclSuccess;
}

/* Of NCCL's own, or one that lives: copied to *out. */
static ncclResult_t find_redop(ncclComm_t comm, ncclRedOp_t op, struct sn_redop *out)
{
    int64_t at = (int64_t)op - ncclNumOps;
    bool found = false;
    if (at >= 0 && at < SN_REDOPS_MAX) {
        pthread_mutex_lock(&comm->lock);
        *out = comm->redops[at];
        pthread_mutex_unlock(&comm->lock);
        found = out->used;
    }
    return found ? ncclSuccess
                 : sn_fail(ncclInvalidArgument, "%lld is no reduction of this communicator",
                           (long long)op);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    struct sn_redop found;
    SN_TRY(sn_comm_check(comm));
    SN_TRY(find_redop(comm, op, &found));
    pthread_mutex_lock(&comm->lock);
    comm->redops[op - ncclNumOps].used = false;
    pthread_mutex_unlock(&comm->lock);
    return ncclSuccess;
}

static ncclResult_t read_op(ncclComm_t comm, struct sn_work *work)
{
    if ((unsigned)work->op < ncclNumOps)
        return ncclSuccess;
    SN_TRY(find_redop(comm, work->op, &work->factor));
    if (work->factor.type != work->type)
        return sn_fail(ncclInvalidArgument, "a reduction for data type %d is used with %d",
                       (int)work->factor.type, (int)work->type);
    work->scaled = true;
    work->op = ncclSum;
    return ncclSuccess;
}

/* ---- buffers ---- */
/* How many times `count` elements each buffer has on this rank; 0: it is not used. */
static void blocks_of(const struct ncclComm *comm, const struct sn_work *w, uint32_t *send,
                      uint32_t *recv)
{
    const uint32_t all = comm->ranks, root = comm->rank == w->root;
    *send = *recv = 1;
    switch (w->kind) {
    case SN_REDUCE:
        *recv = root;
        break;
    case SN_BROADCAST:
        *send = root;
        break;
    case SN_ALL_GATHER:
        *recv = all;
        break;
    case SN_REDUCE_SCATTER:
        *send = all;
        break;
    case SN_ALL_TO_ALL:
        *send = *recv = all;
        break;
    case SN_GATHER:
        *recv = root * all;
        break;
    case SN_SCATTER:
        *send = root * all;
        break;
    case SN_POINT_TO_POINT:
        *send = w->is_send;
        *recv = !w->is_send;
        break;
    default:
        break;
    }
}

static ncclResult_t check_buffers(const struct ncclComm *comm, const struct sn_work *w)
{
    uint32_t send, recv;
    uint64_t bytes;
    if (__builtin_mul_overflow(w->count, sn_type_size(w->type) * comm->ranks, &bytes))
        return sn_fail(ncclInvalidArgument, "count is %llu, which is more than there is memory",
                       (unsigned long long)w->count);
    blocks_of(comm, w, &send, &recv);
    bytes /= comm->ranks;
    if (send && bytes)
        SN_TRY(sn_memory_check(w->send, bytes * send, "sendbuff"));
    if (recv && bytes)
        SN_TRY(sn_memory_check(w->recv, bytes * recv, "recvbuff"));
    return ncclSuccess;
}

/* ---- submitting ---- */
static ncclResult_t check(ncclComm_t comm, struct sn_work *w)
{
    SN_TRY(sn_comm_ready(comm));
    if ((unsigned)w->type >= ncclNumTypes)
        return sn_fail(ncclInvalidArgument, "%d is no data type", (int)w->type);
    if (w->root >= comm->ranks)
        return sn_fail(ncclInvalidArgument, "%d is no rank of %u", (int)w->root, comm->ranks);
    SN_TRY(read_op(comm, w));
    return check_buffers(comm, w);
}

static ncclResult_t submit(ncclComm_t comm, CUstream stream, struct sn_work w)
{
    ncclResult_t result = check(comm, &w);
    if (result != ncclSuccess)
        return sn_group_fail(result);
    if (w.count == 0 && w.kind != SN_POINT_TO_POINT)
        return ncclSuccess;
    SN_TRY(ncclGroupStart());
    result = sn_group_fail(sn_group_work(comm, stream, &w));
    ncclResult_t end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           CUstream stream)
{
    return submit(comm, stream,
                  (struct sn_work){.kind = SN_ALL_REDUCE,
                                   .send = sendbuff,
                                   .recv = recvbuff,
                                   .count = count,
                                   .type = datatype,
                                   .op = op});
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream)
{
    return submit(comm, stream,
                  (struct sn_work){.kind = SN_REDUCE,
                                   .send = sendbuff,
                                   .recv = recvbuff,
                                   .count = count,
                                   .type = datatype,
                                   .op = op,
                                   .root = (uint32_t)root});
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               CUstream stream)
{
    return submit(comm, stream,
                  (struct sn_work){.kind = SN_REDUCE_SCATTER,
                                   .send = sendbuff,
                                   .recv = recvbuff,
                                   .count = recvcount,
                                   .type = datatype,
                                   .op = op});
}

/* What moves and reduces nothing. */
static ncclResult_t move(enum sn_kind kind, const void *send, void *recv, size_t count,
                         ncclDataType_t type, int root, ncclComm_t comm, CUstream stream)
{
    return submit(comm, stream,
                  (struct sn_work){.kind = kind,
                                   .send = send,
                                   .recv = recv,
                                   .count = count,
                                   .type = type,
                                   .root = (uint32_t)root});
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, CUstream stream)
{
    return move(SN_BROADCAST, sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       CUstream stream)
{
    return move(SN_BROADCAST, buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, CUstream stream)
{
    return move(SN_ALL_GATHER, sendbuff, recvbuff, sendcount, datatype, 0, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, CUstream stream)
{
    return move(SN_ALL_TO_ALL, sendbuff, recvbuff, count, datatype, 0, comm, stream);
}

ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, CUstream stream)
{
    return move(SN_GATHER, sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, CUstream stream)
{
    return move(SN_SCATTER, sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, CUstream stream)
{
    return submit(comm, stream,
                  (struct sn_work){.kind = SN_POINT_TO_POINT,
                                   .is_send = true,
                                   .send = sendbuff,
                                   .count = count,
                                   .type = datatype,
                                   .root = (uint32_t)peer});
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, CUstream stream)
{
    return move(SN_POINT_TO_POINT, NULL, recvbuff, count, datatype, peer, comm, stream);
}
