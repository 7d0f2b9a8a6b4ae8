/* What the ends of a copy are. */
#include "plan.h"
#include "remote_host.h"
#include "session.h"

/* Whether all of it lies in the range that it begins in. */
static bool is_whole(const struct gpc_end *e)
{
    return e->known && e->span.bytes <= e->range.size - (e->at - e->range.begin);
}

static enum gpc_end_kind host_kind(const struct gpc_end *e, const struct gpc_route *on)
{
    if (!is_whole(e))
        return GPC_END_PAGEABLE; /* CUDA takes any part of what the host has */
    bool shared = e->range.kind == GPC_RANGE_SHARED && gpc_range_session(&e->range) == on->session;
    return shared ? GPC_END_SHARED : GPC_END_PINNED;
}

enum gpc_end_kind gpc_end_seen_from(const struct gpc_end *e, const struct gpc_route *on)
{
    if (e->said == GPC_SAID_ARRAY)
        return gpc_session_of_handle((uint64_t)e->array) == on->session ? GPC_END_ARRAY
                                                                        : GPC_END_FAR;
    if (e->known && gpc_range_is_host(&e->range))
        return host_kind(e, on);
    /* Addresses that drivers have chosen, of pools and variables, may be this process's own
     * as well. */
    if (e->said == GPC_SAID_HOST)
        return GPC_END_PAGEABLE;
    if (e->known)
        return gpc_range_is_remote(&e->range, on) ? GPC_END_REMOTE : GPC_END_DEVICE;
    return e->said == GPC_SAID_DEVICE ? GPC_END_DEVICE : GPC_END_PAGEABLE;
}

/* What CUDA sees at once. Mappings may lie side by side. Where nothing is allocated any more, or
 * not yet, a device's window has nothing of this process's. */
static bool is_wrong(const struct gpc_end *e)
{
    if (!e->known)
        return e->said == GPC_SAID_ANY && gpc_session_of_address(e->at);
    if (e->said == GPC_SAID_HOST) /* the two ends mixed up */
        return e->range.kind == GPC_RANGE_DEVICE || e->range.kind == GPC_RANGE_IPC;
    bool bounded = e->said == GPC_SAID_DEVICE || !gpc_range_is_host(&e->range);
    return bounded && e->range.kind != GPC_RANGE_MAPPED && !is_whole(e);
}

CUresult gpc_copy_classify(struct gpc_copy *c)
{
    const uint64_t at[2] = {c->dst.at, c->src.at};
    struct gpc_range *const to[2] = {&c->dst.range, &c->src.range};
    bool found[2];
    gpc_range_find_two(c->on->session->index, at, to, found);
    c->dst.known = found[0];
    c->src.known = found[1];
    if (is_wrong(&c->dst) || is_wrong(&c->src))
        return CUDA_ERROR_INVALID_VALUE;
    c->dst.kind = gpc_end_seen_from(&c->dst, c->on);
    c->src.kind = gpc_end_seen_from(&c->src, c->on);
    return CUDA_SUCCESS;
}
