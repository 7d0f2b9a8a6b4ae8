/*
 * Host memory of graphs that cannot be shared with the client: buffers of the
 * worker's own, which the graph copies from and to, and whose bytes host functions
 * of the client's exchange while they block the graph (client_lib/memory/copy/captured_copy.c).
 */
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "memory_internal.h"

struct gpw_captured {
    struct gpw_captured *next;
    uint64_t address; /* the client's name for it */
    uint64_t bytes;
    char *memory;
    CUcontext context; /* which has it pinned */
};

/* What one session may hold of the host's memory in this way. */
#define CAPTURED_BYTES_MAX (UINT64_C(4) << 30)

void *gpw_captured_find(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    for (struct gpw_captured *c = s->memory->captured; c; c = c->next)
        if (address >= c->address && address - c->address <= c->bytes &&
            bytes <= c->bytes - (address - c->address))
            return c->memory + (address - c->address);
    return NULL;
}

/* A copy in a capture needs it, so the capture must not mind. */
static CUresult pin(struct gpw_session *s, void **memory, uint64_t bytes)
{
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuMemHostAlloc(memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
    gpw_strict(s, before);
    return r;
}

CUresult gpw_gp_captured_open(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    if (bytes == 0 || address + bytes < address || gpw_captured_find(s, address, 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > CAPTURED_BYTES_MAX - s->memory->captured_bytes ||
        !gpw_budget_take(s, GPW_USE_HOST, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpw_captured *c = malloc(sizeof *c);
    void *memory = NULL;
    CUresult r = c ? pin(s, &memory, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        gpw_budget_give(s, GPW_USE_HOST, bytes);
        free(c);
        return r;
    }
    *c = (struct gpw_captured){s->memory->captured, address, bytes, memory, NULL};
    s->driver->cuCtxGetCurrent(&c->context);
    s->memory->captured = c;
    s->memory->captured_bytes += bytes;
    return CUDA_SUCCESS;
}

CUresult gpw_bytes_copy(struct gpw_session *s, void *to, const void *from, uint32_t bytes)
{
    (void)s;
    memcpy(to, from, bytes);
    return CUDA_SUCCESS;
}

/* The driver frees the memory; the graphs that use it go as well. */
void gpw_captured_context_ended(struct gpw_session *s, CUcontext context)
{
    for (struct gpw_captured **at = &s->memory->captured; *at;) {
        struct gpw_captured *c = *at;
        if (c->context != context) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        s->memory->captured_bytes -= c->bytes;
        gpw_budget_give(s, GPW_USE_HOST, c->bytes);
        free(c);
    }
}

void gpw_captured_close(struct gpw_session *s, bool unpin)
{
    while (s->memory->captured) {
        struct gpw_captured *c = s->memory->captured;
        s->memory->captured = c->next;
        if (unpin)
            s->driver->cuMemFreeHost(c->memory);
        free(c);
    }
    gpw_budget_give(s, GPW_USE_HOST, s->memory->captured_bytes);
    s->memory->captured_bytes = 0;
}
