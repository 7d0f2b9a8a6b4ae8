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
#include "plan.h"
#include "session.h"

/* Names for the worker's buffers: addresses where no memory of a process is, so that
 * they are nobody's pinned memory. */
#define BUFFER_WINDOW (UINT64_C(1) << 56)

struct captured_copy {
    struct gpc_session *session;
    char *host;
    uint64_t buffer;
    size_t bytes;
};

CUresult gpc_stream_captures(const struct gpc_route *on, CUstream stream, bool *captures)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = gpc_capture_active() ? gpc_wire_cuStreamIsCapturing_on(on, stream, &status)
                                      : CUDA_SUCCESS;
    *captures = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return r;
}

/* Both run on the thread of host functions; a failure is the session's, which the
 * application hears of from the call that waits for the graph. */
static void CUDA_CB send_bytes(void *arg)
{
    const struct captured_copy *c = arg;
    const struct gpc_route on = gpc_route_to(c->session);
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; r == CUDA_SUCCESS && at < c->bytes; at += GP_CHUNK_MAX) {
        uint32_t n = gpc_copy_chunk(c->bytes - at);
        r = gpc_wire_gp_captured_write_on(&on, c->buffer + at, n, c->host + at);
    }
}

static void CUDA_CB fetch_bytes(void *arg)
{
    const struct captured_copy *c = arg;
    const struct gpc_route on = gpc_route_to(c->session);
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; r == CUDA_SUCCESS && at < c->bytes; at += GP_CHUNK_MAX) {
        uint32_t n = gpc_copy_chunk(c->bytes - at), got = n;
        r = gpc_wire_gp_captured_read_on(&on, c->buffer + at, n, c->host + at, &got);
        if (r == CUDA_SUCCESS && got != n)
            r = CUDA_ERROR_UNKNOWN;
    }
}

/* Each launch of the graph reads or writes the memory as it then is. */
static CUresult capture(struct gpc_copy *c, uint64_t device, uint64_t host, size_t bytes,
                        bool to_device)
{
    static uint64_t next = BUFFER_WINDOW;
    struct captured_copy *kept = malloc(sizeof *kept);
    if (!kept)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t buffer = __atomic_fetch_add(&next, (bytes + 4095) & ~(size_t)4095, __ATOMIC_RELAXED);
    *kept = (struct captured_copy){c->on->session, (char *)(uintptr_t)host, buffer, bytes};
    CUresult r = gpc_wire_gp_captured_open_on(c->on, buffer, bytes);
    if (r == CUDA_SUCCESS && to_device)
        r = gpc_host_function_capture(c->on, c->stream, send_bytes, kept);
    if (r != CUDA_SUCCESS) {
        free(kept);
        return r;
    }
    r = gpc_wire_gp_copy_on(c->on, to_device ? device : buffer, to_device ? buffer : device, bytes,
                            c->stream, to_device ? 1 : 2);
    if (r == CUDA_SUCCESS && !to_device)
        r = gpc_host_function_capture(c->on, c->stream, fetch_bytes, kept);
    return r; /* `kept` is the graph's, which may run for as long as the session */
}

static CUresult row(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    bool to_device = c->dst.kind == GPC_END_DEVICE;
    return capture(c, to_device ? dst : src, to_device ? src : dst, bytes, to_device);
}

/* A call that waits for its copy breaks the capture, as it does in CUDA. */
CUresult gpc_copy_captured(struct gpc_copy *c)
{
    if (c->blocking)
        return gpc_wire_cuStreamSynchronize_on(c->on, c->stream);
    return gpc_copy_rows(c, row);
}
