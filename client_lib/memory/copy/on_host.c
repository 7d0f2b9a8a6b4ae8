/* Both ends are host memory: copied here, once the stream has come here. */
#include <string.h>

#include "gpc_wire.h"
#include "memory.h"
#include "plan.h"

static CUresult row(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    (void)c;
    memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
    return CUDA_SUCCESS;
}

CUresult gpc_copy_on_host(struct gpc_copy *c)
{
    CUresult r = gpc_wire_cuStreamSynchronize_on(c->on, c->stream);
    if (r == CUDA_SUCCESS)
        r = gpc_pinned_settle(NULL, 0);
    return r ? r : gpc_copy_rows(c, row);
}
