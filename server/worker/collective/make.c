/* Communicators are begun. */
#include <stdlib.h>

#include "nccl.h"
#include "peer.h"
#include "ranks.h"
#include "unique_id.h"

static ncclResult_t ids_open(struct gpw_session *s, const uint8_t *sealed, uint32_t count,
                             ncclUniqueId *ids)
{
    const uint8_t *key = gpw_peers_key(s);
    for (uint32_t i = 0; i < count; i++)
        if (!key || !gpw_unique_id_open(key, sealed + (size_t)i * GP_NCCL_ID_BYTES, &ids[i]))
            return gpw_nccl_refuse(s, ncclInvalidArgument,
                                   "a unique id is not of this lease, or of servers without a key "
                                   "in common");
    return ncclSuccess;
}

static ncclResult_t init(struct gpw_session *s, struct gp_communicator *c, int32_t ranks,
                         int32_t rank, ncclUniqueId *ids, uint32_t id_count, ncclConfig_t *config)
{
    const struct gpw_nccl_library *n = &s->nccl->library;
    if (id_count == 1)
        return n->ncclCommInitRankConfig(&c->real, ranks, ids[0], rank, config);
    if (!n->ncclCommInitRankScalable)
        return gpw_nccl_refuse(s, ncclInvalidUsage, "NCCL %d takes one unique id alone",
                               s->nccl->version);
    return n->ncclCommInitRankScalable(&c->real, ranks, rank, (int)id_count, ids, config);
}

static ncclResult_t init_begin(struct gpw_session *s, struct gp_communicator *c,
                               const struct gpw_making *m, ncclConfig_t *config)
{
    if (m->a < 1 || m->b < 0 || m->b >= m->a || m->count < 1 || m->count > (uint32_t)m->a)
        return ncclInvalidArgument;
    if (m->a > GPW_RANKS_MAX)
        return gpw_nccl_refuse(s, ncclInvalidArgument, "a communicator has at most %d ranks",
                               GPW_RANKS_MAX);
    ncclUniqueId *ids = calloc(m->count, sizeof *ids);
    ncclResult_t r = ids ? ids_open(s, m->list, m->count, ids) : ncclSystemError;
    if (r == ncclSuccess)
        gpw_ranks_key(c, m->list);
    if (r == ncclSuccess)
        r = init(s, c, m->a, m->b, ids, m->count, config);
    free(ids);
    return r;
}

static ncclResult_t split(struct gpw_session *s, struct gp_communicator *c,
                          const struct gpw_making *m, ncclConfig_t *config)
{
    ncclResult_t r = gpw_communicator_usable(s, m->parent);
    if (r != ncclSuccess || !s->nccl->library.ncclCommSplit)
        return r != ncclSuccess ? r : ncclInvalidUsage;
    m->parent->settling = true;
    gpw_ranks_key_of_part(c, m->parent, m->a);
    return s->nccl->library.ncclCommSplit(m->parent->real, m->a, m->b, &c->real, config);
}

static ncclResult_t shrink(struct gpw_session *s, struct gp_communicator *c,
                           const struct gpw_making *m, ncclConfig_t *config)
{
    bool aborts = (m->a & NCCL_SHRINK_ABORT) && m->parent->real;
    ncclResult_t r = aborts ? ncclSuccess : gpw_communicator_usable(s, m->parent);
    if (r != ncclSuccess)
        return r;
    if (!s->nccl->library.ncclCommShrink)
        return gpw_nccl_refuse(s, ncclInvalidUsage, "NCCL %d cannot shrink a communicator",
                               s->nccl->version);
    const int32_t *excluded = m->list;
    gpw_ranks_key_of_rest(c, m->parent, excluded, m->count);
    int *list = calloc((size_t)m->count + 1, sizeof *list);
    if (!list)
        return ncclSystemError;
    for (uint32_t i = 0; i < m->count; i++)
        list[i] = excluded[i];
    r = s->nccl->library.ncclCommShrink(m->parent->real, list, (int)m->count, &c->real, config,
                                        m->a);
    free(list);
    return r;
}

CUresult gpw_communicator_make(struct gpw_session *s, gp_communicator *comm,
                               struct gpw_making making, const struct gp_nccl_config *wanted,
                               int32_t *result)
{
    ncclConfig_t config;
    CUcontext before = NULL;
    if (!gpw_nccl(s))
        return CUDA_ERROR_SYSTEM_NOT_READY;
    struct gp_communicator *c = gpw_communicator_new(s, making.parent);
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    gpw_nccl_config(s->nccl, wanted, &config);
    s->driver->cuCtxGetCurrent(&before);
    ncclResult_t r = making.how == GPW_INIT    ? init_begin(s, c, &making, &config)
                     : making.how == GPW_SPLIT ? split(s, c, &making, &config)
                                               : shrink(s, c, &making, &config);
    s->driver->cuCtxSetCurrent(before); /* NCCL makes that of a device current */
    *result = (int32_t)gpw_communicator_begun(c, r);
    gpw_ranks_crowd(s, c);
    gpw_ranks_tell(s, c);
    *comm = c;
    return CUDA_SUCCESS;
}
