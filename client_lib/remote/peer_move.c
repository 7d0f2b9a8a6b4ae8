/*
 * What moves between hosts: bytes, and the news that a stream has come somewhere.
 *
 * Both go from worker to worker, in the order of a stream at each end. The one that the
 * application named is at one end. At the other end it is a stream of our own, which
 * waits for nothing else, or, where the application named the default stream, the
 * default stream there: then the copy comes behind everything that was submitted to
 * either device, and before what follows. A default stream is of one device, so that of
 * another one on the same host is another end.
 *
 * Nothing is waited for here. Every transfer's two ends are submitted before the call
 * returns, so streams depend on earlier calls only and cannot wait for each other in a
 * circle.
 */
#include "peer.h"

#include <stdlib.h>

#include "call.h"
#include "captured_copy.h"
#include "context.h"
#include "gpc_wire.h"
#include "handle.h"
#include "peer_behind.h"
#include "peer_link.h"
#include "session.h"
#include "stream.h"

/* Streams of our own in a context. Work that comes from one stream of the application's
 * always takes the same one; that of others rarely does, so they seldom hold it up. */
#define LANES 8u
/* What a copy takes where it is read: the bytes go, and the news that they are there comes. */
#define READER_MESSAGES 2u

struct lanes {
    struct lanes *next;
    CUcontext context;
    CUstream stream[LANES + 1]; /* the last is for no transfers */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lanes *all_lanes;

/* --- streams of our own -------------------------------------------------------- */

static struct lanes *lanes_of(CUcontext context)
{
    struct lanes *l = all_lanes;
    while (l && l->context != context)
        l = l->next;
    if (!l && (l = calloc(1, sizeof *l)) != NULL) {
        l->context = context;
        l->next = all_lanes;
        all_lanes = l;
    }
    return l;
}

/* Turn a context's route to one of our streams there. */
static CUresult lane_take(struct gpc_route *e, unsigned lane)
{
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct lanes *l = lanes_of(e->context);
    CUstream *at = l ? &l->stream[lane] : NULL;
    if (!at)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (at && !*at)
        r = gpc_wire_cuStreamCreate_on(e, at, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS) {
        e->named = *at;
        e->stream = (uint64_t)*at;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* And to the one for what comes from this stream. */
static CUresult lane_for(struct gpc_route *e, uint64_t stream)
{
    return lane_take(e, gp_handle_index(stream) % LANES);
}

CUresult gpc_lane_own(struct gpc_route *e, CUstream *stream)
{
    CUresult r = lane_take(e, LANES);
    if (r == CUDA_SUCCESS)
        *stream = e->named;
    return r;
}

void gpc_peer_context_ended(CUcontext context)
{
    pthread_mutex_lock(&lock);
    struct lanes **at = &all_lanes;
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    struct lanes *l = *at;
    if (l) {
        *at = l->next;
        for (unsigned i = 0; i <= LANES; i++)
            gpc_handle_drop((uint64_t)l->stream[i]); /* the streams go with the context */
        free(l);
    }
    pthread_mutex_unlock(&lock);
}

/* --- ends ------------------------------------------------------------------------ */

/* The application's own end. */
static CUresult named_end(uint16_t op, const struct gpc_route *on, CUstream stream,
                          struct gpc_route *e)
{
    uint64_t wire;
    bool captures;
    CUresult r = gpc_stream_captures(on, stream, &captures);
    if (r == CUDA_SUCCESS && captures)
        return gpc_refuse_because(op, "what goes between hosts, in a graph");
    *e = *on;
    return r ? r : gpc_route_stream(e, stream, &wire);
}

/* Whether the application's own stream orders what is at this end. */
static bool is_at(const struct gpc_route *named, const struct gpc_peer_end *end)
{
    bool every_device = named->stream != GP_STREAM_LEGACY || end->device < 0;
    return named->session == end->session &&
           (every_device || gpc_context_device(named->context) == end->device);
}

/* The other one: the default stream's counterpart, or one of ours. */
static CUresult other_end(const struct gpc_route *named, const struct gpc_peer_end *end,
                          struct gpc_route *e)
{
    CUcontext context = end->context;
    if (!context || !gpc_context_live(context) || gpc_context_device(context) != end->device)
        context = gpc_context_any(end->session, end->device);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *e = gpc_route_in(context);
    return named->stream == GP_STREAM_LEGACY ? CUDA_SUCCESS : lane_for(e, named->stream);
}

/* `bytes` from one host's end to another's; none: the second stream waits for the first. */
static CUresult transfer(const struct gpc_route *from, CUdeviceptr src, const struct gpc_route *to,
                         CUdeviceptr dst, size_t bytes)
{
    uint64_t tag = gpc_peer_tag();
    CUresult r = gpc_peer_link(from->session, to->session);
    if (r == CUDA_SUCCESS)
        r = gpc_wire_gp_peer_send_on(from, from->named, to->session->index, tag, src, bytes);
    if (r == CUDA_SUCCESS)
        r = gpc_wire_gp_peer_recv_on(to, to->named, from->session->index, tag, dst, bytes);
    return r;
}

/* On one host. */
static CUresult follow_event(const struct gpc_route *later, const struct gpc_route *earlier)
{
    CUevent passed;
    CUresult r = gpc_wire_cuEventCreate_on(earlier, &passed, CU_EVENT_DISABLE_TIMING);
    if (r != CUDA_SUCCESS)
        return r;
    r = gpc_wire_cuEventRecord_on(earlier, passed, earlier->named);
    if (r == CUDA_SUCCESS)
        r = gpc_wire_cuStreamWaitEvent_on(later, later->named, passed, 0);
    CUresult ended = gpc_wire_cuEventDestroy_v2_on(earlier, passed);
    return r ? r : ended;
}

/* Two devices' default streams. */
static CUresult follow_here(const struct gpc_route *later, const struct gpc_route *earlier)
{
    return later->context == earlier->context ? CUDA_SUCCESS : follow_event(later, earlier);
}

static CUresult follow(const struct gpc_route *later, const struct gpc_route *earlier)
{
    return later->session == earlier->session ? follow_here(later, earlier)
                                              : transfer(earlier, 0, later, 0, 0);
}

/* The same stream has the end before what follows in it. */
static CUresult follow_end(const struct gpc_route *later, const struct gpc_route *end)
{
    bool same = later->context == end->context && later->stream == end->stream;
    return same ? CUDA_SUCCESS : follow_event(later, end);
}

/* --- what is asked for -------------------------------------------------------------- */

CUresult gpc_peer_copy(uint16_t op, const struct gpc_route *on, const struct gpc_peer_end *to,
                       const struct gpc_peer_end *from, size_t bytes, CUstream stream)
{
    struct gpc_route named, reads, writes;
    CUresult r = named_end(op, on, stream, &named);
    if (r != CUDA_SUCCESS)
        return r;
    uint64_t work = gpc_behind_work(named.session);
    reads = writes = named;
    bool reads_here = is_at(&named, from), writes_here = is_at(&named, to);
    if (!reads_here)
        r = other_end(&named, from, &reads);
    if (r == CUDA_SUCCESS && !writes_here)
        r = other_end(&named, to, &writes);
    /* the writer's stream takes the bytes only once it has come there, and the reader's
     * gives them only once it has: an end that is not named must still wait for it */
    if (r == CUDA_SUCCESS && !reads_here && !writes_here)
        r = follow(&writes, &named);
    if (r == CUDA_SUCCESS)
        r = transfer(&reads, from->at, &writes, to->at, bytes);
    /* and what follows in the named stream finds the bytes there */
    if (r == CUDA_SUCCESS && !writes_here)
        r = follow(&named, &writes);
    if (r == CUDA_SUCCESS && reads_here && !writes_here)
        gpc_behind_copy(&named, &writes, work, READER_MESSAGES);
    return r;
}

CUresult gpc_peer_wait(uint16_t op, const struct gpc_route *on, CUstream stream, CUevent event,
                       unsigned flags)
{
    struct gpc_route named, other;
    CUresult r = named_end(op, on, stream, &named);
    if (r != CUDA_SUCCESS)
        return r;
    if (gpc_behind_end(&named, event, &other))
        return follow_end(&named, &other);
    CUcontext context = gpc_context_any(gpc_session_of_handle((uint64_t)event), -1);
    if (!context)
        return CUDA_ERROR_INVALID_HANDLE;
    other = gpc_route_in(context);
    if ((r = lane_for(&other, named.stream)) != CUDA_SUCCESS)
        return r;
    r = gpc_wire_cuStreamWaitEvent_on(&other, other.named, event, flags);
    return r == CUDA_SUCCESS ? transfer(&other, 0, &named, 0, 0) : r;
}
