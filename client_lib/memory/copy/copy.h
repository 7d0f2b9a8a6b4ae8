/* Copies between any two ends (plan.h), as the exported functions ask for them. */
#ifndef GPC_COPY_H
#define GPC_COPY_H

#include "plan.h"

/* One end as a call names it: what it is said to be, and where its first byte is. */
struct gpc_end_named {
    enum gpc_end_said said;
    uint64_t at;
};

/* In stream order. A blocking one returns when the caller may use both ends again. */
CUresult gpc_copy_linear(uint16_t op, struct gpc_route *on, struct gpc_end_named dst,
                         struct gpc_end_named src, size_t bytes, CUstream stream, bool blocking);
CUresult gpc_copy_pitched(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D *p,
                          CUstream stream, bool blocking);

#endif
