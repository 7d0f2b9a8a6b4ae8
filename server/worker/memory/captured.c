/*
 * Host memory of graphs that cannot be shared with the client: buffers of the
 * worker's own, which the graph copies from and to, and whose bytes host functions
 * of the client's exchange while they block the graph (client_lib/memory/copy/captured_copy.c).
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "later.h"
#include "memory_internal.h"

struct gpw_captured {
    struct gpw_captured *next;
    uint64_t address; /* the client's name for it */
    uint64_t bytes;   /* 0: it is spare */
    uint64_t room;    /* bytes that it has */
    char *memory;
    CUcontext context; /* which has it pinned */
};

/* What one session may hold of the host's memory in this way. */
#define CAPTURED_BYTES_MAX (UINT64_C(4) << 30)

void *gpw_captured_find(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    for (struct gpw_captured *c = s->memory->captured; c; c = c->next)
        if (c->bytes && address >= c->address && address - c->address <= c->bytes &&
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

/* Eight sizes for each power of two, so that buffers fit again. */
static uint64_t room_for(uint64_t bytes)
{
    uint64_t step = 4096;
    while (bytes / step >= 8 && step < CAPTURED_BYTES_MAX)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

/* The smallest spare one of the current context that is large enough, if it is not much too
 * large. */
static struct gpw_captured *spare_for(struct gpw_session *s, uint64_t bytes)
{
    struct gpw_captured *best = NULL;
    CUcontext current = NULL;
    s->driver->cuCtxGetCurrent(&current);
    for (struct gpw_captured *c = s->memory->captured; c; c = c->next)
        if (!c->bytes && c->context == current && c->room >= bytes && c->room / 2 <= bytes &&
            (!best || c->room < best->room))
            best = c;
    return best;
}

static void forget(struct gpw_session *s, struct gpw_captured **at)
{
    struct gpw_captured *c = *at;
    *at = c->next;
    s->memory->captured_bytes -= c->room;
    gpw_budget_give(s, GPW_USE_HOST, c->room);
    free(c);
}

/* The driver waits for all work where it frees pinned memory, also for work that waits for us. */
static void free_spares(struct gpw_session *s)
{
    if (gpw_streams_blocked(s))
        return;
    bool before = gpw_strict(s, false);
    for (struct gpw_captured **at = &s->memory->captured; *at;) {
        if (!(*at)->bytes && s->driver->cuMemFreeHost((*at)->memory) == CUDA_SUCCESS)
            forget(s, at);
        else
            at = &(*at)->next;
    }
    gpw_strict(s, before);
}

/* For whoever of the session's own thread wants room. */
static bool spare(struct gpw_session *s)
{
    uint64_t before = s->memory->captured_bytes;
    if (!pthread_equal(pthread_self(), s->memory->captured_thread))
        return false;
    free_spares(s);
    return s->memory->captured_bytes < before;
}

static bool take(struct gpw_session *s, uint64_t room)
{
    return room <= CAPTURED_BYTES_MAX - s->memory->captured_bytes &&
           gpw_budget_take(s, GPW_USE_HOST, room);
}

/* A new one, which is spare still; NULL: there is no memory (`r`). */
static struct gpw_captured *captured_new(struct gpw_session *s, uint64_t room, CUresult *r)
{
    struct gpw_captured *c = malloc(sizeof *c);
    void *memory = NULL;
    *r = c ? pin(s, &memory, room) : CUDA_ERROR_OUT_OF_MEMORY;
    if (*r != CUDA_SUCCESS) {
        gpw_budget_give(s, GPW_USE_HOST, room);
        free(c);
        return NULL;
    }
    *c = (struct gpw_captured){.next = s->memory->captured, .room = room, .memory = memory};
    s->driver->cuCtxGetCurrent(&c->context);
    s->memory->captured = c;
    s->memory->captured_bytes += room;
    return c;
}

static CUresult have(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    if (address + bytes < address || gpw_captured_find(s, address, 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > CAPTURED_BYTES_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpw_captured *c = spare_for(s, bytes);
    if (!c) {
        uint64_t room = room_for(bytes);
        if (!take(s, room)) {
            free_spares(s);
            if (!take(s, room))
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        c = captured_new(s, room, &r);
    }
    if (c) {
        c->address = address;
        c->bytes = bytes;
    }
    return r;
}

/* Of one that went with its context, there is nothing to say. It is spare, and not freed: a graph
 * may use it all the same, if the client does not say the truth. */
static CUresult give_back(struct gpw_session *s, uint64_t address)
{
    for (struct gpw_captured *c = s->memory->captured; c; c = c->next)
        if (c->bytes && c->address == address)
            c->bytes = 0;
    s->memory->captured_thread = pthread_self();
    s->budget.spare_pinned = spare;
    return CUDA_SUCCESS;
}

CUresult gpw_captured_have(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    return bytes ? have(s, address, bytes) : give_back(s, address);
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
        if ((*at)->context == context)
            forget(s, at);
        else
            at = &(*at)->next;
    }
}

void gpw_captured_close(struct gpw_session *s)
{
    s->budget.spare_pinned = NULL;
    while (s->memory->captured) {
        struct gpw_captured *c = s->memory->captured;
        s->memory->captured = c->next;
        free(c);
    }
    gpw_budget_give(s, GPW_USE_HOST, s->memory->captured_bytes);
    s->memory->captured_bytes = 0;
}
