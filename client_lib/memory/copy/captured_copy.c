/*
 * A graph reads and writes host memory when it runs, and over a network the GPU's
 * host does not have that memory. So the worker keeps a buffer that the graph's copy
 * uses instead, and a host function of ours stands in the graph beside the copy: in
 * front of it, it sends what the memory holds; behind it, it fetches what was copied. Pageable
 * memory goes this way also where pinned memory is shared: as in CUDA, it is read when the graph
 * runs, and has what was copied when the launch is over.
 */
#include "captured_copy.h"

#include <stdint.h>
#include <stdlib.h>

#include "call.h"
#include "gpc_wire.h"
#include "host_function.h"
#include "operations_there.h"
#include "plan.h"
#include "session.h"

/* Names for the worker's buffers: addresses where no memory of a process is, so that
 * they are nobody's pinned memory. */
#define BUFFER_WINDOW (UINT64_C(1) << 56)

/* Rows of host memory, and where they lie in the buffer, without gaps. */
struct captured_copy {
    struct gpc_session *session;
    char *host;
    struct gp_span span;
    struct gpc_rows rows;
    uint64_t buffer;
};

CUresult gpc_stream_captures(const struct gpc_route *on, CUstream stream, bool *captures)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = gpc_capture_active() ? gpc_wire_cuStreamIsCapturing_on(on, stream, &status)
                                      : CUDA_SUCCESS;
    *captures = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return r;
}

static CUresult send_row(const struct gpc_route *on, uint64_t buffer, char *host, size_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; r == CUDA_SUCCESS && at < bytes; at += GP_CHUNK_MAX)
        r = gpc_wire_gp_captured_write_on(on, buffer + at, gpc_copy_chunk(bytes - at), host + at);
    return r;
}

static CUresult fetch_row(const struct gpc_route *on, uint64_t buffer, char *host, size_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; r == CUDA_SUCCESS && at < bytes; at += GP_CHUNK_MAX) {
        uint32_t n = gpc_copy_chunk(bytes - at), got = n;
        r = gpc_wire_gp_captured_read_on(on, buffer + at, n, host + at, &got);
        if (r == CUDA_SUCCESS && got != n)
            r = CUDA_ERROR_UNKNOWN;
    }
    return r;
}

static void each_row(const struct captured_copy *c,
                     CUresult (*move)(const struct gpc_route *, uint64_t, char *, size_t))
{
    const struct gpc_route on = gpc_route_to(c->session);
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; r == CUDA_SUCCESS && i < c->rows.count; i++)
        r = move(&on, c->buffer + i * c->rows.bytes,
                 c->host + gpc_copy_row_at(&c->span, &c->rows, i), c->rows.bytes);
}

/* Both run on the thread of host functions; a failure is the session's, which the
 * application hears of from the call that waits for the graph. */
static void CUDA_CB send_bytes(void *arg)
{
    each_row(arg, send_row);
}

static void CUDA_CB fetch_bytes(void *arg)
{
    each_row(arg, fetch_row);
}

/* No graph has it any more, or none has got it. */
void CUDA_CB gpc_copy_let_go(void *arg)
{
    struct captured_copy *c = arg;
    const struct gpc_route on = gpc_route_to(c->session);
    if (gpc_session_has(c->session, GP_OP_gp_captured_close))
        gpc_wire_gp_captured_close_on(&on, c->buffer);
    free(c);
}

/* A buffer of the worker's for rows of host memory; NULL without memory or room there (`r`). */
static struct captured_copy *open_buffer(const struct gpc_route *on, uint64_t host,
                                         const struct gp_span *span, const struct gpc_rows *rows,
                                         CUresult *r)
{
    static uint64_t next = BUFFER_WINDOW;
    struct captured_copy *kept = malloc(sizeof *kept);
    *r = CUDA_ERROR_OUT_OF_MEMORY;
    if (!kept)
        return NULL;
    size_t bytes = rows->count * rows->bytes;
    uint64_t buffer = __atomic_fetch_add(&next, (bytes + 4095) & ~(size_t)4095, __ATOMIC_RELAXED);
    *kept = (struct captured_copy){on->session, (char *)(uintptr_t)host, *span, *rows, buffer};
    *r = gpc_wire_gp_captured_open_on(on, buffer, bytes);
    if (*r == CUDA_SUCCESS)
        return kept;
    free(kept);
    return NULL;
}

/* Each launch of the graph reads or writes the memory as it then is. */
static CUresult capture(struct gpc_copy *c, uint64_t device, uint64_t host, size_t bytes,
                        bool to_device)
{
    const struct gp_span span = {.pitch = bytes, .rows = 1, .bytes = bytes};
    const struct gpc_rows rows = {1, 1, bytes};
    CUresult r;
    struct captured_copy *kept = open_buffer(c->on, host, &span, &rows, &r);
    if (!kept)
        return r;
    if (to_device)
        r = gpc_host_function_capture(c->on, c->stream, send_bytes, gpc_copy_let_go, kept);
    if (r != CUDA_SUCCESS) {
        gpc_copy_let_go(kept);
        return r;
    }
    uint64_t buffer = kept->buffer;
    r = gpc_copy_has_array(c)
            ? gpc_array_move(c, device, buffer, bytes)
            : gpc_wire_gp_copy_on(c->on, to_device ? device : buffer, to_device ? buffer : device,
                                  bytes, c->stream, to_device ? 1 : 2);
    if (r == CUDA_SUCCESS && !to_device)
        r = gpc_host_function_capture(c->on, c->stream, fetch_bytes, gpc_copy_let_go, kept);
    if (r != CUDA_SUCCESS && !to_device)
        gpc_copy_let_go(kept);
    return r; /* else `kept` is the graph's */
}

static CUresult row(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    bool to_device = c->dst.kind == GPC_END_DEVICE || c->dst.kind == GPC_END_ARRAY;
    return capture(c, to_device ? dst : src, to_device ? src : dst, bytes, to_device);
}

/* A call that waits for its copy breaks the capture, as it does in CUDA. */
CUresult gpc_copy_captured(struct gpc_copy *c)
{
    if (c->blocking)
        return gpc_wire_cuStreamSynchronize_on(c->on, c->stream);
    return gpc_copy_rows(c, row);
}

/* --- nodes made by hand ------------------------------------------------------------------ */

static bool is_own(const struct gpc_end *e)
{
    return e->kind == GPC_END_PAGEABLE || e->kind == GPC_END_PINNED;
}

unsigned gpc_copy_own_ends(const struct gpc_copy *c)
{
    return (is_own(&c->src) ? GPC_COPY_FROM_OWN : 0) | (is_own(&c->dst) ? GPC_COPY_TO_OWN : 0);
}

/* The end lies in a buffer of the worker's, which the function fills or empties. */
static CUresult end_moved(struct gpc_copy *c, struct gpc_end *e, CUhostFn function,
                          CUDA_HOST_NODE_PARAMS *beside)
{
    const struct gpc_rows rows = gpc_copy_rows_of(c);
    CUresult r;
    struct captured_copy *kept = open_buffer(c->on, e->at, &e->span, &rows, &r);
    if (!kept)
        return r;
    *beside = (CUDA_HOST_NODE_PARAMS){function, kept};
    e->at = kept->buffer;
    return CUDA_SUCCESS;
}

CUresult gpc_copy_moved(struct gpc_copy *c, CUDA_HOST_NODE_PARAMS *before,
                        CUDA_HOST_NODE_PARAMS *behind)
{
    unsigned own = gpc_copy_own_ends(c);
    const struct gp_span dense = {.pitch = c->box.width,
                                  .rows = c->box.height,
                                  .slice = c->box.width * c->box.height,
                                  .bytes = c->box.width * c->box.height * c->box.depth};
    CUresult r = CUDA_SUCCESS;
    if (own & GPC_COPY_FROM_OWN)
        r = end_moved(c, &c->src, send_bytes, before);
    if (r == CUDA_SUCCESS && own & GPC_COPY_TO_OWN)
        r = end_moved(c, &c->dst, fetch_bytes, behind);
    if (r != CUDA_SUCCESS && own & GPC_COPY_FROM_OWN && before->fn)
        gpc_copy_let_go(before->userData);
    if (own & GPC_COPY_FROM_OWN)
        c->src.span = dense;
    if (own & GPC_COPY_TO_OWN)
        c->dst.span = dense;
    return r; /* the buffers are the graph's */
}
