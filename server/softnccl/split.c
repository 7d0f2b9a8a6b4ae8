/* Communicators from others: their ranks tell each other what each wants, over the connections that
 * they have, and those that belong together connect anew. */
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

/* `all` has one of each rank that takes part. The parent's `run` is held. */
static ncclResult_t tell(const struct sn_job *job, struct sn_exchange *x, struct sn_split *all,
                         unsigned char (*bytes)[sizeof(struct sn_split)])
{
    const struct ncclComm *parent = job->parent;
    uint32_t count = 0;
    for (uint32_t i = 0; i < parent->ranks; i++)
        count += job->stays[i];
    for (uint32_t i = 0; i < parent->ranks; i++) {
        struct sn_header header = sn_header_make(SN_SPLIT, 0, 0, 0, count);
        if (i == parent->rank || !job->stays[i])
            continue;
        sn_exchange_send(x, i, header, &all[parent->rank], sizeof *all);
        sn_exchange_receive(x, i, header, bytes[i], sizeof *all);
    }
    SN_TRY(sn_exchange_run(x));
    for (uint32_t i = 0; i < parent->ranks; i++)
        if (i != parent->rank && job->stays[i] && !sn_split_decode(bytes[i], &all[i]))
            return sn_fail(ncclRemoteError, "rank %u sent what is no split", i);
    return ncclSuccess;
}

static ncclResult_t tell_each_other(const struct sn_job *job, struct sn_split *all)
{
    ncclComm_t parent = job->parent;
    unsigned char (*bytes)[sizeof *all] = calloc(parent->ranks, sizeof *bytes);
    struct sn_exchange x;
    bool ready = sn_exchange_begin(&x, parent) && bytes;
    pthread_mutex_lock(&parent->run);
    ncclResult_t result = ready ? tell(job, &x, all, bytes) : sn_fail(ncclSystemError, "no memory");
    pthread_mutex_unlock(&parent->run);
    sn_exchange_end(&x);
    free(bytes);
    if (result != ncclSuccess) /* nobody knows what is still in the connections */
        sn_comm_fail(parent, result);
    return result;
}

static bool comes_before(const struct sn_split *all, uint32_t a, uint32_t b)
{
    return all[a].key != all[b].key ? all[a].key < all[b].key : a < b;
}

/* How many ranks of this color come before one; SN_RANKS_MAX: all of them are counted. */
static uint32_t before(const struct sn_job *job, const struct sn_split *all, uint32_t one)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->parent->ranks; i++)
        if (job->stays[i] && all[i].color == job->color)
            count += one == SN_RANKS_MAX || comes_before(all, i, one);
    return count;
}

static ncclResult_t join(const struct sn_job *job, struct sn_split *all)
{
    ncclComm_t made = job->made;
    const uint8_t *secret = NULL;
    SN_TRY(sn_comm_size(made, before(job, all, SN_RANKS_MAX), before(job, all, job->parent->rank)));
    for (uint32_t i = 0; i < job->parent->ranks; i++) {
        if (!job->stays[i] || all[i].color != job->color)
            continue;
        uint32_t rank = before(job, all, i);
        made->places[rank] = all[i].place;
        secret = rank == 0 ? all[i].secret : secret;
    }
    return sn_mesh_join(made, secret);
}

static ncclResult_t say(const struct sn_job *job, struct sn_split *all)
{
    struct sn_split *mine = &all[job->parent->rank];
    mine->color = job->color;
    mine->key = job->key;
    mine->place = job->parent->place;
    if (!job->made)
        return ncclSuccess;
    SN_TRY(sn_random(mine->secret, sizeof mine->secret));
    SN_TRY(sn_mesh_listen(job->made));
    mine->place = job->made->place;
    return ncclSuccess;
}

/* With the new communicator's `run`, but not while others are waited for on the parent's
 * connections: ncclCommAbort of the new one must not wait for those. */
static ncclResult_t with_made(const struct sn_job *job,
                              ncclResult_t (*step)(const struct sn_job *, struct sn_split *),
                              struct sn_split *all)
{
    ncclComm_t made = job->made;
    if (!made)
        return step(job, all);
    pthread_mutex_lock(&made->run);
    ncclResult_t result = step(job, all);
    pthread_mutex_unlock(&made->run);
    return result;
}

static ncclResult_t split(struct sn_job *job)
{
    struct sn_split *all = calloc(job->parent->ranks, sizeof *all);
    if (!all)
        return sn_fail(ncclSystemError, "no memory");
    sn_comm_drain(job->parent);
    ncclResult_t result = with_made(job, say, all);
    if (result == ncclSuccess)
        result = tell_each_other(job, all);
    if (result == ncclSuccess && job->made)
        result = with_made(job, join, all);
    free(all);
    return result;
}

/* The new communicator is of the parent's device. Takes `stays` over. */
static ncclResult_t begin(ncclComm_t parent, bool *stays, int color, int key, ncclComm_t *out,
                          bool blocking)
{
    const struct sn_driver *d = sn_driver();
    CUcontext context = parent->context;
    ncclComm_t made = NULL;
    ncclResult_t result = sn_cuda(d->cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    if (result == ncclSuccess && color != NCCL_SPLIT_NOCOLOR) {
        result = sn_comm_new(blocking, &made);
        d->cuCtxPopCurrent_v2(&context);
    } else if (result == ncclSuccess) {
        d->cuCtxPopCurrent_v2(&context);
    }
    struct sn_job *job = result == ncclSuccess ? sn_job_new(made ? made : parent, split) : NULL;
    if (!job) {
        free(stays);
        if (made)
            sn_comm_end(made);
        return result != ncclSuccess ? result : sn_fail(ncclSystemError, "no memory");
    }
    job->parent = parent;
    sn_comm_ref(parent);
    job->made = made;
    job->out = out;
    job->stays = stays;
    job->color = color;
    job->key = key;
    return sn_job_submit(job);
}

static ncclResult_t check(ncclComm_t comm, ncclComm_t *newcomm, const ncclConfig_t *config,
                          bool *blocking)
{
    if (!newcomm)
        return sn_fail(ncclInvalidArgument, "newcomm is NULL");
    *newcomm = NULL;
    SN_TRY(sn_comm_ready(comm));
    *blocking = comm->blocking;
    return sn_config_read(config, blocking);
}

static ncclResult_t check_and_split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                                    const ncclConfig_t *config)
{
    bool blocking;
    SN_TRY(check(comm, newcomm, config, &blocking));
    if (color < NCCL_SPLIT_NOCOLOR)
        return sn_fail(ncclInvalidArgument,
                       "ncclCommSplit: color is %d: give one from 0, or NCCL_SPLIT_NOCOLOR", color);
    bool *stays = malloc(comm->ranks);
    if (!stays)
        return sn_fail(ncclSystemError, "no memory");
    memset(stays, true, comm->ranks);
    return begin(comm, stays, color, key, newcomm, blocking);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    return sn_group_fail(check_and_split(comm, color, key, newcomm, config));
}

/* ---- shrinking ---- */
static ncclResult_t exclude(const struct ncclComm *comm, const int *list, int count, bool *stays)
{
    memset(stays, true, comm->ranks);
    for (int i = 0; i < count; i++) {
        if (list[i] < 0 || list[i] >= (int)comm->ranks || !stays[list[i]])
            return sn_fail(ncclInvalidArgument,
                           "ncclCommShrink: %d is no rank of %u, or twice in the list", list[i],
                           comm->ranks);
        stays[list[i]] = false;
    }
    if (!stays[comm->rank])
        return sn_fail(ncclInvalidUsage, "ncclCommShrink: rank %u excludes itself", comm->rank);
    return ncclSuccess;
}

static ncclResult_t check_and_shrink(ncclComm_t comm, const int *list, int count,
                                     ncclComm_t *newcomm, const ncclConfig_t *config, int flags)
{
    bool blocking;
    SN_TRY(check(comm, newcomm, config, &blocking));
    if (!list || count < 1 || count >= (int)comm->ranks)
        return sn_fail(ncclInvalidArgument, "ncclCommShrink: %d of %u ranks to exclude", count,
                       comm->ranks);
    if (flags != NCCL_SHRINK_DEFAULT)
        return sn_fail(ncclInvalidUsage,
                       "ncclCommShrink: this NCCL cannot shrink with NCCL_SHRINK_ABORT: abort, and "
                       "begin a new communicator");
    bool *stays = malloc(comm->ranks);
    if (!stays)
        return sn_fail(ncclSystemError, "no memory");
    ncclResult_t result = exclude(comm, list, count, stays);
    if (result != ncclSuccess) {
        free(stays);
        return result;
    }
    return begin(comm, stays, 0, 0, newcomm, blocking);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                            ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
{
    return sn_group_fail(
        check_and_shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags));
}
