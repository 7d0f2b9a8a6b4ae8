/* Copies with an end on another host than their stream's. */
#include "peer.h"
#include "plan.h"
#include "remote_host.h"

/* The other end is in this process: the copy is made over there, as one of that host's, and
 * waited for. */
CUresult gpc_copy_remote(struct gpc_copy *c)
{
    struct gpc_route there;
    const struct gpc_end *end = c->src.kind == GPC_END_REMOTE ? &c->src : &c->dst;
    CUresult r = gpc_remote_begin(&there, &end->range, c->on, c->stream);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_copy copy = *c;
    copy.on = &there;
    copy.stream = CU_STREAM_LEGACY;
    copy.blocking = true;
    copy.src.kind = gpc_end_seen_from(&c->src, &there);
    copy.dst.kind = gpc_end_seen_from(&c->dst, &there);
    return gpc_remote_end(&there, gpc_copy_run(&copy));
}

static struct gpc_peer_end end_at(const struct gpc_copy *c, const struct gpc_end *e, uint64_t at)
{
    struct gpc_session *s = e->known ? gpc_range_session(&e->range) : NULL;
    return (struct gpc_peer_end){.session = s ? s : c->on->session,
                                 .device = e->known ? e->range.device : -1,
                                 .context = e->known ? e->range.context : NULL,
                                 .at = at};
}

static CUresult row(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    const struct gpc_peer_end to = end_at(c, &c->dst, dst), from = end_at(c, &c->src, src);
    return gpc_peer_copy(c->op, c->on, &to, &from, bytes, c->stream);
}

/* Both ends are devices', of two hosts; or of one, but another one. */
CUresult gpc_copy_peer(struct gpc_copy *c)
{
    if (end_at(c, &c->src, 0).session == end_at(c, &c->dst, 0).session)
        return gpc_copy_remote(c);
    return gpc_copy_rows(c, row);
}
