#include "landing.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "green.h"
#include "memory_internal.h"

/* Less is not worth an event. */
#define LEAST (64u << 10)

/* Pinned with the first copy from it, and in the context that is current then. */
static bool pinned(struct gpw_session *s, const void *begin)
{
    struct gpw_landings *all = &s->memory->landings;
    for (unsigned i = 0; i < all->count; i++)
        if (all->at[i].begin == begin)
            return true;
    if (all->count == GPW_LANDINGS_MOST || !gpw_budget_take(s, GPW_USE_STAGING, GP_MESSAGE_MAX))
        return false;
    /* it is our need, not the client's call: no capture minds it */
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuMemHostRegister_v2((void *)(uintptr_t)begin, GP_MESSAGE_MAX,
                                                 CU_MEMHOSTREGISTER_PORTABLE);
    gpw_strict(s, before);
    /* already: by a context that outlived the client's last use of it, as primary ones may */
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
        gpw_budget_give(s, GPW_USE_STAGING, GP_MESSAGE_MAX);
        return false;
    }
    all->ever = true;
    struct gpw_landing *new = &all->at[all->count++];
    new->begin = begin;
    s->driver->cuCtxGetCurrent(&new->context);
    new->context = gpw_context_root(s, new->context);
    return true;
}

/* The end of a context undoes its pinning. */
void gpw_landings_context_ended(struct gpw_session *s, CUcontext context)
{
    struct gpw_landings *all = &s->memory->landings;
    for (unsigned i = 0; i < all->count;) {
        if (all->at[i].context != context) {
            i++;
            continue;
        }
        gpw_budget_give(s, GPW_USE_STAGING, GP_MESSAGE_MAX);
        all->at[i] = all->at[--all->count];
    }
}

static void read_by_gpu(struct gpw_session *s, void *message, CUresult result)
{
    (void)result;
    s->transport->let_go(s->channel, message);
}

const void *gpw_landing_bytes(struct gpw_session *s, const void *data, uint32_t bytes)
{
    struct gpw_landings *all = &s->memory->landings;
    if (!all->ever || bytes < LEAST) /* so few come with the session's own connection */
        return data;
    if (!all->own && !(all->own = malloc(GP_MESSAGE_MAX)))
        return NULL;
    return memcpy(all->own, data, bytes);
}

CUresult gpw_landing_upload(struct gpw_session *s, CUdeviceptr dst, CUstream stream, uint32_t bytes,
                            const void *data)
{
    void *begin = (void *)((uintptr_t)data & ~(uintptr_t)(GPW_LANDING_PAGE - 1));
    struct gpw_after *after = NULL;
    bool kept = bytes >= LEAST && s->transport->keep && s->transport->keep(s->channel, data) == 0;
    CUresult r = CUDA_SUCCESS;
    if (kept && pinned(s, begin))
        r = gpw_after_prepare_unasked(s, read_by_gpu, begin, &after);
    const void *from = after ? data : gpw_landing_bytes(s, data, bytes);
    if (r == CUDA_SUCCESS)
        r = from ? s->driver->cuMemcpyHtoDAsync_v2(dst, from, bytes, stream)
                 : CUDA_ERROR_OUT_OF_MEMORY;
    if (after)
        r = gpw_after_submitted(s, after, stream, r);
    if (kept && (!after || r != CUDA_SUCCESS))
        s->transport->let_go(s->channel, begin);
    return r;
}
