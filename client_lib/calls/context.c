#include "activity_table.h"
#include "observe.h"
#include "context.h"

#include <pthread.h>
#include <stdlib.h>

#include "array.h"
#include "call.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "handle.h"
#include "host_function.h"
#include "its.h"
#include "memory.h"
#include "module.h"
#include "peer.h"
#include "private_tables.h"
#include "session.h"
#include "stream.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct primary {
    CUcontext handle;
    unsigned flags; /* as set before it is retained */
} primaries[GP_DEVICES_MAX];
static uint64_t last_unique_id;
/* Guards what a walk over all contexts reads. A record that is given back is used again and
 * never freed: a thread that looks for any context may still hold one that another destroys. */
static pthread_mutex_t records_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpc_context *unused;

struct gpc_context *gpc_context_of(CUcontext ctx)
{
    return gpc_handle_shadow(GP_HANDLE_CONTEXT, (uint64_t)ctx);
}

CUcontext gpc_context_owner(CUcontext ctx)
{
    const struct gpc_context *c = gpc_context_of(ctx);
    CUcontext primary;
    return c && c->green && gpc_context_primary(c->device, &primary) == CUDA_SUCCESS ? primary
                                                                                     : ctx;
}

CUcontext gpc_current_context(void)
{
    return gpc_current();
}

bool gpc_context_live(CUcontext ctx)
{
    return gpc_context_of(ctx) != NULL;
}

CUdevice gpc_context_device(CUcontext ctx)
{
    const struct gpc_context *c = gpc_context_of(ctx);
    return c ? c->device : -1;
}

struct search {
    uint32_t session;
    CUdevice device;
    CUcontext any, there; /* of the session; of the device */
};

static void find_any(uint64_t id, void *shadow, void *arg)
{
    struct search *search = arg;
    const struct gpc_context *c = shadow;
    if (!c || gp_handle_session(id) != search->session || c->ending ||
        (c->primary && !__atomic_load_n(&c->retained, __ATOMIC_RELAXED)))
        return;
    search->any = (CUcontext)id;
    if (c->device == search->device)
        search->there = (CUcontext)id;
}

CUcontext gpc_context_any(const struct gpc_session *s, CUdevice device)
{
    struct search search = {.session = s->index, .device = device};
    pthread_mutex_lock(&records_lock);
    gpc_handle_each(GP_HANDLE_CONTEXT, find_any, &search);
    pthread_mutex_unlock(&records_lock);
    return search.there ? search.there : search.any;
}

static void record_set_ending(struct gpc_context *c, bool ending)
{
    pthread_mutex_lock(&records_lock);
    c->ending = ending;
    pthread_mutex_unlock(&records_lock);
}

static struct gpc_context *record_take(void)
{
    pthread_mutex_lock(&records_lock);
    struct gpc_context *c = unused;
    if (c)
        unused = c->next_unused;
    pthread_mutex_unlock(&records_lock);
    return c ? c : malloc(sizeof *c);
}

static void record_give(struct gpc_context *c)
{
    pthread_mutex_lock(&records_lock);
    c->next_unused = unused;
    unused = c;
    pthread_mutex_unlock(&records_lock);
}

uint32_t gpc_context_life(CUcontext ctx)
{
    const struct gpc_context *c = gpc_context_of(ctx);
    return c ? __atomic_load_n(&c->life, __ATOMIC_RELAXED) : 0;
}

uint64_t gpc_context_unique_id(CUcontext ctx)
{
    const struct gpc_context *c = gpc_context_of(ctx);
    return c ? c->unique_id : 0;
}

static struct gpc_context *context_make(CUcontext ctx, const struct gpc_context *like)
{
    struct gpc_context *c = record_take();
    if (!c)
        return NULL;
    *c = *like;
    c->unique_id = __atomic_add_fetch(&last_unique_id, 1, __ATOMIC_RELAXED);
    gpc_handle_attach((uint64_t)ctx, c);
    return c;
}

struct gpc_context *gpc_context_note(CUcontext ctx, CUdevice device, unsigned flags, bool green)
{
    return context_make(ctx,
                        &(struct gpc_context){.device = device, .flags = flags, .green = green});
}

/* Everything that the client keeps for a context that is no more. */
static void context_ended(CUcontext ctx)
{
    if (GPC_OBSERVED(GPC_OBSERVER_CONTEXTS))
        gpc_activity_context(ctx, false);
    struct gpc_context *c = gpc_context_of(ctx);
    if (c)
        __atomic_fetch_add(&c->life, 1, __ATOMIC_RELAXED);
    gpc_storage_context_ended(ctx);
    gpc_module_context_ended(ctx);
    gpc_memory_context_ended(ctx);
    gpc_array_context_ended(ctx);
    gpc_stream_context_ended(ctx);
    gpc_peer_context_ended(ctx);
}

CUresult gpc_context_primary(CUdevice device, CUcontext *ctx)
{
    if (device < 0 || (uint32_t)device >= gpc_device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    struct primary *p = &primaries[device];
    if (!p->handle) {
        uint64_t id = gpc_handle_new(GP_HANDLE_CONTEXT, gpc_session_of_device(device)->index);
        const struct gpc_context like = {.device = device, .primary = true, .flags = p->flags};
        if (id && context_make((CUcontext)id, &like))
            p->handle = (CUcontext)id;
        else
            gpc_handle_drop(id);
    }
    *ctx = p->handle;
    pthread_mutex_unlock(&lock);
    return *ctx ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- primary contexts ----------------------------------------------------- */

CUresult gpc_context_retain(CUdevice dev, CUcontext *pctx)
{
    CUcontext ctx;
    CUresult r = gpc_context_primary(dev, &ctx);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    struct gpc_context *c = gpc_context_of(ctx);
    bool made = c->retained == 0;
    if (made)
        r = gpc_wire_gp_primary_retain((uint64_t)ctx, dev, primaries[dev].flags);
    if (r == CUDA_SUCCESS)
        __atomic_store_n(&c->retained, c->retained + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    if (r == CUDA_SUCCESS)
        *pctx = ctx;
    if (r == CUDA_SUCCESS && made && GPC_OBSERVED(GPC_OBSERVER_CONTEXTS))
        gpc_activity_context(ctx, true);
    return r;
}

GPC_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CUresult r = gpc_enter(GP_OP_cuDevicePrimaryCtxRetain, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    return pctx ? gpc_context_retain(dev, pctx) : CUDA_ERROR_INVALID_VALUE;
}

/* It is over; `reset`: and begins anew for those who have retained it. */
static CUresult primary_end(CUcontext ctx, CUdevice dev, bool reset)
{
    unsigned greens = gpc_greens_end(dev);
    struct gpc_context *c = gpc_context_of(ctx);
    pthread_mutex_lock(&lock);
    __atomic_store_n(&c->retained, c->retained < greens ? 0 : c->retained - greens,
                     __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    /* As the driver does, which must not wait there for a function that is run here. */
    if (gpc_host_functions_used(ctx))
        gpc_wire_cuCtxSynchronize_v2(ctx);
    context_ended(ctx);
    CUresult r = gpc_wire_gp_primary_release((uint64_t)ctx, dev, reset);
    gpc_session_context_gone(ctx);
    if (reset && r == CUDA_SUCCESS && c->retained)
        r = gpc_wire_gp_primary_retain((uint64_t)ctx, dev, primaries[dev].flags);
    return r;
}

CUresult gpc_context_release(CUdevice dev, bool reset)
{
    CUcontext ctx;
    CUresult r = gpc_context_primary(dev, &ctx);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    struct gpc_context *c = gpc_context_of(ctx);
    bool active = c->retained > 0, ends = active && (reset || c->retained == 1);
    if (ends && gpc_thread()->host_function) /* for which its end would wait */
        r = CUDA_ERROR_NOT_PERMITTED;
    else if (!active && !reset)
        r = CUDA_ERROR_INVALID_CONTEXT;
    else if (active && !reset)
        __atomic_store_n(&c->retained, c->retained - 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return ends && r == CUDA_SUCCESS ? primary_end(ctx, dev, reset) : r;
}

/* Give back one use, or all of them (`reset`). */
static CUresult primary_release(uint16_t op, CUdevice dev, bool reset)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    return r ? r : gpc_context_release(dev, reset);
}

CUresult gpc_as_cuDevicePrimaryCtxRelease_v2(uint16_t op, CUdevice dev)
{
    return primary_release(op, dev, false);
}

CUresult gpc_as_cuDevicePrimaryCtxReset_v2(uint16_t op, CUdevice dev)
{
    return primary_release(op, dev, true);
}

CUresult gpc_as_cuDevicePrimaryCtxSetFlags_v2(uint16_t op, CUdevice dev, unsigned int flags)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext ctx;
    if ((r = gpc_context_primary(dev, &ctx)) != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    primaries[dev].flags = flags;
    gpc_context_of(ctx)->flags = flags;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    CUresult r = gpc_enter(GP_OP_cuDevicePrimaryCtxGetState, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext ctx;
    if ((r = gpc_context_primary(dev, &ctx)) != CUDA_SUCCESS)
        return r;
    const struct gpc_context *c = gpc_context_of(ctx);
    *flags = c->flags;
    *active = c->retained > 0;
    return CUDA_SUCCESS;
}

/* --- contexts of the application's own ------------------------------------ */

static CUresult stack_push(CUcontext ctx);

CUresult gpc_as_cuCtxCreate_v4(uint16_t op, CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                               unsigned int flags, CUdevice dev)
{
    const CUctxCreateParams *p = ctxCreateParams;
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (p && p->numExecAffinityParams < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (p && (p->numExecAffinityParams || p->execAffinityParams)) /* a driver's with MPS alone */
        return p->cigParams ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (p && p->cigParams)
        return gpc_refuse_because(op, "sharing with graphics");
    if (!pctx || (flags & ~(unsigned)CU_CTX_FLAGS_MASK))
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext ctx;
    if ((r = gpc_wire_gp_context_create(&ctx, dev, flags)) != CUDA_SUCCESS)
        return r;
    if (!gpc_context_note(ctx, dev, flags, false) || stack_push(ctx) != CUDA_SUCCESS) {
        gpc_wire_cuCtxDestroy_v2(ctx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pctx = ctx;
    if (GPC_OBSERVED(GPC_OBSERVER_CONTEXTS))
        gpc_activity_context(ctx, true);
    return CUDA_SUCCESS;
}

CUresult gpc_context_destroy(CUcontext ctx)
{
    struct gpc_context *c = gpc_context_of(ctx);
    record_set_ending(c, true);
    context_ended(ctx);
    struct gpc_thread *t = gpc_thread();
    if (t->current == ctx && t->depth)
        t->current = --t->depth ? t->stack[t->depth - 1] : NULL;
    CUresult r = gpc_wire_cuCtxDestroy_v2(ctx);
    gpc_session_context_gone(ctx);
    if (r == CUDA_SUCCESS)
        record_give(c);
    else
        record_set_ending(c, false);
    return r;
}

CUresult gpc_as_cuCtxDestroy_v2(uint16_t op, CUcontext ctx)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    const struct gpc_context *c = gpc_context_of(ctx);
    return c && !c->primary && !c->green ? gpc_context_destroy(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

/* --- uses, as before CUDA 4 ----------------------------------------------------- */

GPC_EXPORT CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    CUresult r = gpc_enter(GP_OP_cuCtxAttach, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!pctx || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_context *c = gpc_context_of(gpc_current());
    pthread_mutex_lock(&records_lock);
    c->attached++;
    pthread_mutex_unlock(&records_lock);
    *pctx = gpc_current();
    return CUDA_SUCCESS;
}

/* Whether there was another use than its first. */
static bool use_ended(struct gpc_context *c)
{
    pthread_mutex_lock(&records_lock);
    bool attached = c->attached > 0;
    c->attached -= attached;
    pthread_mutex_unlock(&records_lock);
    return attached;
}

GPC_EXPORT CUresult cuCtxDetach(CUcontext ctx)
{
    CUresult r = gpc_enter(GP_OP_cuCtxDetach, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_context *c = gpc_context_of(ctx);
    if (!c || c->green || ctx != gpc_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    return use_ended(c) || c->primary ? CUDA_SUCCESS : gpc_context_destroy(ctx);
}

/* --- the thread's stack ---------------------------------------------------- */

static CUresult stack_push(CUcontext ctx)
{
    struct gpc_thread *t = gpc_thread();
    if (t->depth == t->room) {
        unsigned room = t->room ? 2 * t->room : 8;
        CUcontext *stack = realloc(t->stack, room * sizeof *stack);
        if (!stack)
            return CUDA_ERROR_OUT_OF_MEMORY;
        t->stack = stack;
        t->room = room;
    }
    t->stack[t->depth++] = ctx;
    t->current = ctx;
    return CUDA_SUCCESS;
}

CUresult gpc_as_cuCtxPushCurrent_v2(uint16_t op, CUcontext ctx)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_context_live(ctx) ? stack_push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult gpc_as_cuCtxPopCurrent_v2(uint16_t op, CUcontext *pctx)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_thread *t = gpc_thread();
    if (!t->depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx)
        *pctx = t->current;
    t->current = --t->depth ? t->stack[t->depth - 1] : NULL;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
    CUresult r = gpc_enter(GP_OP_cuCtxSetCurrent, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_thread *t = gpc_thread();
    if (!ctx) {
        t->current = t->depth && --t->depth ? t->stack[t->depth - 1] : NULL;
        return CUDA_SUCCESS;
    }
    if (!gpc_context_live(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!t->depth)
        return stack_push(ctx);
    t->stack[t->depth - 1] = t->current = ctx;
    return CUDA_SUCCESS;
}

/* --- what is asked of a context, and set on it ------------------------------ */

const struct gpc_context *gpc_context_its(CUcontext ctx, CUresult *r)
{
    const struct gpc_context *c = gpc_context_of(ctx ? ctx : gpc_current());
    if (!c)
        *r = CUDA_ERROR_INVALID_CONTEXT;
    return c;
}

GPC_EXPORT CUresult cuCtxSetFlags(unsigned int flags)
{
    CUresult r = gpc_enter(GP_OP_cuCtxSetFlags, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_context *c = gpc_context_of(gpc_current());
    if (!c)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    c->flags = flags;
    return CUDA_SUCCESS;
}
