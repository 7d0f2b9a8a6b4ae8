/* Communicators: made, asked and ended by messages, on the session of their device. */
#include "communicator.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "group.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is below, and of `known` */
static struct ncclComm *live;

ncclResult_t gpc_nccl_check(const char *name, const struct ncclComm *comm)
{
    if (comm && comm->magic == GPC_NCCL_MAGIC)
        return ncclSuccess;
    return gpc_nccl_fail(ncclInvalidArgument, "%s: the communicator is %s", name,
                         comm ? "none, or has ended" : "NULL");
}

/* --- groups that have been ------------------------------------------------------------------ */

#define KNOWN_MAX 4096

bool gpc_nccl_knows(const struct ncclComm *comm, uint64_t shape)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < comm->known_count && !found; i++)
        found = comm->known[i] == shape;
    pthread_mutex_unlock(&lock);
    return found;
}

void gpc_nccl_learn(struct ncclComm *comm, uint64_t shape)
{
    pthread_mutex_lock(&lock);
    if (comm->known_count == comm->known_room && comm->known_room < KNOWN_MAX) {
        uint32_t room = comm->known_room ? 2 * comm->known_room : 16;
        uint64_t *grown = realloc(comm->known, room * sizeof *grown);
        comm->known_room = grown ? room : comm->known_room;
        comm->known = grown ? grown : comm->known;
    }
    if (comm->known_count < comm->known_room)
        comm->known[comm->known_count++] = shape;
    pthread_mutex_unlock(&lock);
}

/* --- beginnings ------------------------------------------------------------------------------ */

/* Which of an ncclConfig_t's members are told: what is of this host, or a name, is not. */
static ncclResult_t config_take(const ncclConfig_t *config, struct gp_nccl_config *told,
                                bool *blocking)
{
    static const size_t members[] = {
        offsetof(ncclConfig_t, cgaClusterSize),
        offsetof(ncclConfig_t, minCTAs),
        offsetof(ncclConfig_t, maxCTAs),
        offsetof(ncclConfig_t, splitShare),
        offsetof(ncclConfig_t, trafficClass),
        offsetof(ncclConfig_t, collnetEnable),
        offsetof(ncclConfig_t, CTAPolicy),
        offsetof(ncclConfig_t, shrinkShare),
        offsetof(ncclConfig_t, nvlsCTAs),
        offsetof(ncclConfig_t, nChannelsPerNetPeer),
        offsetof(ncclConfig_t, nvlinkCentricSched),
    };
    int value;
    for (size_t i = 0; i < sizeof told->values / sizeof told->values[0]; i++)
        told->values[i] = NCCL_CONFIG_UNDEF_INT;
    if (!config)
        return ncclSuccess;
    if (config->magic != NCCL_API_MAGIC || config->size < offsetof(ncclConfig_t, cgaClusterSize))
        return gpc_nccl_fail(ncclInvalidArgument,
                             "the configuration was not begun with NCCL_CONFIG_INITIALIZER");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (members[i] + sizeof value <= config->size)
            memcpy(&told->values[i], (const char *)config + members[i], sizeof value);
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)
        return gpc_nccl_fail(ncclInvalidArgument, "blocking = %d", config->blocking);
    if (config->blocking != NCCL_CONFIG_UNDEF_INT)
        *blocking = config->blocking;
    return ncclSuccess;
}

static struct ncclComm *comm_new(CUdevice device, bool blocking)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->magic = GPC_NCCL_MAGIC;
    comm->device = device;
    comm->blocking = blocking;
    return comm;
}

static void comm_free(struct ncclComm *comm)
{
    gpc_nccl_group_forget(comm);
    pthread_mutex_lock(&lock);
    for (struct ncclComm **at = &live; *at; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    comm->magic = 0;
    free(comm->known);
    free(comm);
}

/* Several ranks of one clique in a process must not wait for each other in one message. */
static void comm_list(struct ncclComm *comm, uint64_t clique)
{
    comm->clique = clique;
    pthread_mutex_lock(&lock);
    for (struct ncclComm *other = live; other; other = other->next)
        if (other->clique == clique)
            other->crowded = comm->crowded = true;
    comm->next = live;
    live = comm;
    pthread_mutex_unlock(&lock);
}

/* The worker's record of it goes as well. */
static void comm_undo(struct ncclComm *comm)
{
    int32_t result;
    gpc_nccl_table()->end(comm->id, 1, &result);
    comm_free(comm);
}

/* The worker has made a record, and says `result` of it. */
static ncclResult_t comm_begun(struct ncclComm *comm, CUresult r, int32_t result, uint64_t clique,
                               ncclComm_t *out)
{
    ncclResult_t said = gpc_nccl_said(r, &result);
    if (said != ncclSuccess) {
        if (r == CUDA_SUCCESS)
            comm_undo(comm);
        else
            comm_free(comm);
        return said;
    }
    comm_list(comm, clique);
    *out = comm;
    said = gpc_nccl_group_begun(comm);
    if (said == ncclSuccess || said == ncclInProgress)
        return said;
    comm_undo(comm);
    *out = NULL;
    return said;
}

/* Of no colour nothing comes. But the others' parts are made with this rank's help, so the call is
 * over, in a group as well, when nothing of the parent is in progress. */
static ncclResult_t comm_begun_without(struct ncclComm *parent, struct ncclComm *made, CUresult r,
                                       int32_t result)
{
    ncclResult_t said = gpc_nccl_said(r, &result);
    if (r == CUDA_SUCCESS)
        comm_undo(made);
    else
        comm_free(made);
    return said == ncclSuccess ? gpc_nccl_group_begun(parent) : said;
}

static uint64_t clique_of(const ncclUniqueId *id)
{
    uint64_t clique;
    memcpy(&clique, id->internal + NCCL_UNIQUE_ID_BYTES - sizeof clique, sizeof clique);
    return clique;
}

static ncclResult_t init(const char *name, ncclComm_t *out, int ranks, int rank, int id_count,
                         const ncclUniqueId *ids, const ncclConfig_t *config)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    struct gp_nccl_config told;
    bool blocking = true;
    CUdevice device;
    CUcontext left;
    int32_t result = ncclSuccess;
    if (!out || !ids)
        return gpc_nccl_fail(ncclInvalidArgument, "%s: a pointer is NULL", name);
    *out = NULL;
    if (ranks < 1 || rank < 0 || rank >= ranks || id_count < 1 || id_count > ranks)
        return gpc_nccl_fail(ncclInvalidArgument, "%s: rank %d of %d ranks, %d ids", name, rank,
                             ranks, id_count);
    ncclResult_t r = config_take(config, &told, &blocking);
    if (r != ncclSuccess || !t)
        return r != ncclSuccess ? r : ncclSystemError;
    if ((r = gpc_nccl_result(t->device(&device))) != ncclSuccess ||
        (r = gpc_nccl_result(t->enter(device, &left))) != ncclSuccess)
        return r;
    struct ncclComm *comm = comm_new(device, blocking);
    CUresult begun = comm ? t->init(&comm->id, ranks, rank, (uint32_t)id_count,
                                    (const uint8_t *)ids, &told, &result)
                          : CUDA_ERROR_OUT_OF_MEMORY;
    t->leave(device, left);
    if (!comm)
        return gpc_nccl_fail(ncclSystemError, "%s: no memory", name);
    comm->ranks = ranks;
    comm->rank = rank;
    return comm_begun(comm, begun, result, clique_of(ids), out);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    return init("ncclCommInitRank", comm, nranks, rank, 1, &commId, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config)
{
    return init("ncclCommInitRankConfig", comm, nranks, rank, 1, &commId, config);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config)
{
    return init("ncclCommInitRankScalable", newcomm, nranks, myrank, nId, commIds, config);
}

/* Each rank in its device's context, all in one group. */
static ncclResult_t init_all(ncclComm_t *comm, int count, const int *list, ncclUniqueId *id)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    ncclResult_t r = ncclSuccess;
    CUcontext left;
    ncclGroupStart();
    for (int i = 0; i < count && r == ncclSuccess; i++) {
        CUdevice device = list ? list[i] : i;
        r = gpc_nccl_result(t->enter(device, &left));
        if (r != ncclSuccess)
            break;
        r = init("ncclCommInitAll", &comm[i], count, i, 1, id, NULL);
        t->leave(device, left);
    }
    ncclResult_t ended = ncclGroupEnd();
    return r != ncclSuccess ? r : ended;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    ncclUniqueId id;
    int devices = 0;
    if (!comm || ndev < 1)
        return gpc_nccl_fail(ncclInvalidArgument, "ncclCommInitAll: %d devices", ndev);
    memset(comm, 0, (size_t)ndev * sizeof *comm);
    ncclResult_t r = t ? gpc_nccl_result(t->devices(&devices)) : ncclSystemError;
    if (r != ncclSuccess)
        return r;
    for (int i = 0; i < ndev; i++) {
        int device = devlist ? devlist[i] : i;
        bool twice = false;
        for (int j = 0; devlist && j < i; j++)
            twice = twice || devlist[j] == device;
        if (device < 0 || device >= devices || twice)
            return gpc_nccl_fail(ncclInvalidUsage, "ncclCommInitAll: device %d of %d%s", device,
                                 devices, twice ? ", twice" : "");
    }
    r = ncclGetUniqueId(&id);
    return r == ncclSuccess ? init_all(comm, ndev, devlist, &id) : r;
}

/* What its ranks make as their part of this number; two parts of one colour are two cliques. */
static uint64_t clique_below(const struct ncclComm *parent, uint32_t part, int32_t color)
{
    const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
    return (parent->clique * factor + part) * factor + (uint32_t)color + 1;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    struct gp_nccl_config told;
    int32_t result = ncclSuccess;
    ncclResult_t r = gpc_nccl_check("ncclCommSplit", comm);
    if (r == ncclSuccess && (!newcomm || !t || (color < 0 && color != NCCL_SPLIT_NOCOLOR)))
        r = gpc_nccl_fail(ncclInvalidArgument, "ncclCommSplit: colour %d, or NULL", color);
    bool blocking = r == ncclSuccess ? comm->blocking : true;
    if (r != ncclSuccess || (r = config_take(config, &told, &blocking)) != ncclSuccess)
        return r;
    *newcomm = NULL;
    struct ncclComm *made = comm_new(comm->device, blocking);
    if (!made)
        return gpc_nccl_fail(ncclSystemError, "ncclCommSplit: no memory");
    uint64_t clique = clique_below(comm, ++comm->parts, color);
    CUresult begun = t->split(comm->id, &made->id, color, key, &told, &result);
    return color == NCCL_SPLIT_NOCOLOR ? comm_begun_without(comm, made, begun, result)
                                       : comm_begun(made, begun, result, clique, newcomm);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                            ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    struct gp_nccl_config told;
    int32_t result = ncclSuccess;
    ncclResult_t r = gpc_nccl_check("ncclCommShrink", comm);
    if (r == ncclSuccess && (!newcomm || !t || !excludeRanksList || excludeRanksCount < 1))
        r = gpc_nccl_fail(ncclInvalidArgument, "ncclCommShrink: %d ranks, or NULL",
                          excludeRanksCount);
    bool blocking = r == ncclSuccess ? comm->blocking : true;
    if (r != ncclSuccess || (r = config_take(config, &told, &blocking)) != ncclSuccess)
        return r;
    *newcomm = NULL;
    struct ncclComm *made = comm_new(comm->device, blocking);
    if (!made)
        return gpc_nccl_fail(ncclSystemError, "ncclCommShrink: no memory");
    CUresult begun = t->shrink(comm->id, &made->id, shrinkFlags, (uint32_t)excludeRanksCount,
                               excludeRanksList, &told, &result);
    return comm_begun(made, begun, result, clique_below(comm, 0, -2), newcomm);
}

/* --- how it is ----------------------------------------------------------------------------------- */

/* What a communicator is, once it is made. */
static void learn(struct ncclComm *comm)
{
    int32_t result, ranks, rank;
    if (comm->settled ||
        gpc_nccl_table()->state(comm->id, &result, &ranks, &rank) != CUDA_SUCCESS || !ranks)
        return;
    comm->ranks = ranks;
    comm->rank = rank;
    comm->settled = true;
}

ncclResult_t gpc_nccl_settle(struct ncclComm *comm)
{
    int32_t results[2] = {ncclSuccess, ncclSuccess};
    CUresult r = gpc_nccl_table()->settled(comm->id, results);
    ncclResult_t said = gpc_nccl_said(r, results[0] ? &results[0] : &results[1]);
    if (said == ncclSuccess)
        learn(comm);
    return said;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    int32_t result = ncclSuccess, ranks = 0, rank = 0;
    ncclResult_t r = gpc_nccl_check("ncclCommGetAsyncError", comm);
    if (r != ncclSuccess || !asyncError)
        return r != ncclSuccess ? r : ncclInvalidArgument;
    r = gpc_nccl_said(gpc_nccl_table()->state(comm->id, &result, &ranks, &rank), &result);
    *asyncError = r;
    if (result == ncclSuccess && ranks) {
        comm->ranks = ranks;
        comm->rank = rank;
        comm->settled = true;
    }
    return ncclSuccess;
}

/* A fact that is known once the communicator is made. */
static ncclResult_t fact(const char *name, struct ncclComm *comm, const int32_t *from, int *to)
{
    ncclResult_t r = gpc_nccl_check(name, comm);
    if (r != ncclSuccess || !to)
        return r != ncclSuccess ? r : gpc_nccl_fail(ncclInvalidArgument, "%s: NULL", name);
    if (comm->ranks == 0)
        learn(comm);
    *to = *from;
    return comm->ranks ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    return fact("ncclCommCount", comm, comm ? &comm->ranks : NULL, count);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return fact("ncclCommUserRank", comm, comm ? &comm->rank : NULL, rank);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    ncclResult_t r = gpc_nccl_check("ncclCommCuDevice", comm);
    if (r != ncclSuccess || !device)
        return r != ncclSuccess ? r : ncclInvalidArgument;
    *device = comm->device;
    return ncclSuccess;
}

/* --- ends --------------------------------------------------------------------------------------- */

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    int32_t result = ncclSuccess;
    ncclResult_t r = gpc_nccl_check("ncclCommFinalize", comm);
    if (r == ncclSuccess)
        r = gpc_nccl_said(gpc_nccl_table()->finalize(comm->id, &result), &result);
    if (r != ncclSuccess)
        return r;
    return comm->blocking ? gpc_nccl_settle(comm) : ncclInProgress;
}

static ncclResult_t end(const char *name, struct ncclComm *comm, bool aborts)
{
    int32_t result = ncclSuccess;
    if (!comm)
        return ncclSuccess; /* as NCCL has it */
    ncclResult_t r = gpc_nccl_check(name, comm);
    if (r != ncclSuccess)
        return r;
    comm->magic = 0; /* its second end is one of none */
    r = gpc_nccl_said(gpc_nccl_table()->end(comm->id, aborts, &result), &result);
    comm_free(comm);
    return r;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    return end("ncclCommDestroy", comm, false);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return end("ncclCommAbort", comm, true);
}
