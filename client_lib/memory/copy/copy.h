/* Copies between any two ends (plan.h), as the exported functions ask for them. */
#ifndef GPC_COPY_H
#define GPC_COPY_H

#include "copy_batch.h"
#include "plan.h"

/* One end as a call names it: what it is said to be, and where its first byte is. */
struct gpc_end_named {
    enum gpc_end_said said;
    uint64_t at;
    CUarray array; /* `at` counts from its first byte */
};

static inline struct gpc_end_named gpc_said_host(const void *p)
{
    return (struct gpc_end_named){GPC_SAID_HOST, (uint64_t)(uintptr_t)p, NULL};
}

static inline struct gpc_end_named gpc_said_device(CUdeviceptr p)
{
    return (struct gpc_end_named){GPC_SAID_DEVICE, p, NULL};
}

static inline struct gpc_end_named gpc_said_any(CUdeviceptr p)
{
    return (struct gpc_end_named){GPC_SAID_ANY, p, NULL};
}

static inline struct gpc_end_named gpc_said_array(CUarray array, size_t at)
{
    return (struct gpc_end_named){GPC_SAID_ARRAY, at, array};
}

/* Of a copy whose route and stream are set: the rest of its plan. */
CUresult gpc_copy_plan_linear(struct gpc_copy *c, struct gpc_end_named dst,
                              struct gpc_end_named src, size_t bytes);
/* In stream order. A blocking one returns when the caller may use both ends again. */
CUresult gpc_copy_linear(uint16_t op, struct gpc_route *on, struct gpc_end_named dst,
                         struct gpc_end_named src, size_t bytes, CUstream stream, bool blocking);
CUresult gpc_copy_pitched(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D *p,
                          CUstream stream, bool blocking);
/* As a node of a graph: what is sent of it, and what the graph has to run before it and behind it,
 * where an end is memory that the GPU host has not (captured_copy.h; NULL: nothing). It must be
 * the ends `own` that are, or (-1) any. */
struct gpc_node_copy {
    CUDA_MEMCPY3D sent;
    CUDA_HOST_NODE_PARAMS before, behind;
    unsigned own;
};
CUresult gpc_copy_node(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D *p, int own,
                       struct gpc_node_copy *out);
CUresult gpc_copy_2d(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY2D *c, CUstream stream,
                     bool blocking);
/* Batches (batch.c). `*fail_index`, where there is one, is the copy that an error is of, or
 * SIZE_MAX. */
CUresult gpc_copy_lines(uint16_t op, struct gpc_route *on, const struct gp_copy_lines *lines,
                        size_t *fail_index, CUstream stream);
CUresult gpc_copy_boxes(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D_BATCH_OP *boxes,
                        size_t count, unsigned long long flags, size_t *fail_index,
                        CUstream stream);
/* The contexts are checked and not needed: addresses and arrays say where they are. */
CUresult gpc_copy_3d_peer(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D_PEER *c,
                          CUstream stream, bool blocking);

/* This library's own, on a stream of its own: to a device's memory from host memory that nobody else
 * has (`there`), not waited for, or back, and then it is here. */
CUresult gpc_copy_own(struct gpc_route *on, CUdeviceptr device, void *host, size_t bytes,
                      CUstream stream, bool there);

#endif
