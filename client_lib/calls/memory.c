/* Device memory: the worker's, or what was freed here (spare.h); known by its address. */
#include "memory.h"

#include <string.h>

#include "call.h"
#include "captured_copy.h"
#include "context.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "ipc.h"
#include "its.h"
#include "managed.h"
#include "module.h"
#include "ranges.h"
#include "remote_host.h"
#include "session.h"
#include "shared.h"
#include "spare.h"

/* No driver gives addresses beyond (57 bits, five levels of tables). */
#define ADDRESS_END (UINT64_C(1) << 57)

unsigned gpc_range_place(void)
{
    const struct gpc_session *s = gpc_session();
    return s ? s->index : 0;
}

/* Of the session that gave it, where that has said where its memory lies; and possible. */
static bool address_right(CUdeviceptr at, size_t bytes, enum gpc_range_kind kind, CUdevice device)
{
    const struct gp_device_info *d = gpc_device_info(device);
    if (at == 0 || at >= ADDRESS_END || bytes > ADDRESS_END - at)
        return false;
    return (kind != GPC_RANGE_DEVICE && kind != GPC_RANGE_MANAGED) || !d ||
           d->window_begin == d->window_end ||
           (at >= d->window_begin && at < d->window_end && bytes <= d->window_end - at);
}

/* A handle's shadow is its memory's device and 1: 0 is no shadow. */
CUresult gpc_memory_made(uint64_t handle, CUdevice device)
{
    gpc_handle_attach(handle, (void *)(intptr_t)(device + 1));
    return CUDA_SUCCESS;
}

/* Where memory of this handle lies: whatever context is current when it is used. */
static CUdevice device_of(uint64_t from, CUcontext context)
{
    void *shadow = from ? gpc_handle_shadow(gp_handle_kind(from), from) : NULL;
    CUdevice device = (CUdevice)(intptr_t)shadow - 1;
    return device >= 0 ? device : gpc_context_device(context);
}

CUdevice gpc_location_device(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : -1;
}

CUdevice gpc_memory_device(uint64_t address)
{
    struct gpc_range range;
    return gpc_range_find(address, &range) ? range.device : -1;
}

static CUresult keep_on(CUdevice device, CUcontext context, uint64_t from, CUdeviceptr at,
                        size_t bytes, enum gpc_range_kind kind)
{
    if (!address_right(at, bytes, kind, device))
        return CUDA_ERROR_UNKNOWN;
    unsigned here = context ? gpc_session_of_handle((uint64_t)context)->index : gpc_range_place();
    struct gpc_range range = {.begin = at,
                              .place = gpc_session_of_address(at) ? 0 : here,
                              .size = bytes,
                              .kind = kind,
                              .context = kind == GPC_RANGE_MAPPED ? NULL
                                                                  : gpc_context_owner(context),
                              .from = from,
                              .device = device};
    return gpc_range_add(&range) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult keep_in(CUcontext context, uint64_t from, CUdeviceptr at, size_t bytes,
                        enum gpc_range_kind kind)
{
    return keep_on(device_of(from, context), context, from, at, bytes, kind);
}

CUresult gpc_memory_keep(uint64_t from, CUdeviceptr at, size_t bytes, enum gpc_range_kind kind)
{
    return keep_in(gpc_current(), from, at, bytes, kind);
}

/* What a capture allocates is its graph's. */
CUresult gpc_memory_keep_ordered(const struct gpc_route *on, CUmemoryPool pool, CUdeviceptr at,
                                 size_t bytes, CUstream stream)
{
    if (at == 0) /* nothing was asked for */
        return CUDA_SUCCESS;
    bool captures;
    CUresult r = gpc_stream_captures(on, stream, &captures);
    return r ? r
             : keep_in(on->context, (uint64_t)(pool ? pool : gpc_pool_current(on->device)), at,
                       bytes, captures ? GPC_RANGE_GRAPH : GPC_RANGE_POOL);
}

/* Whether a range is the variable's, or managed memory that it lies in; a variable that lay there before
 * is not. */
static bool has_variable(const struct gpc_range *range, uint64_t image, CUdeviceptr address,
                         size_t bytes)
{
    if (range->kind == GPC_RANGE_GLOBAL)
        return range->from == image && range->begin == address && range->size == bytes;
    return gpc_range_session(range) == gpc_session();
}

/* The driver over there chose its address, and this process has memory at the same one: nobody could tell
 * which of the two a copy means. */
static CUresult is_taken_here(CUdeviceptr address)
{
    gpc_log(GPC_LOG_ERROR,
            "a variable lies at %#llx, where this process has registered memory: start the program "
            "again, and it has other addresses",
            (unsigned long long)address);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult gpc_memory_note_global(uint64_t image, CUdeviceptr address, size_t bytes)
{
    struct gpc_image_shadow *of = gpc_handle_shadow(gp_handle_kind(image), image);
    CUcontext context = gpc_current();
    struct gpc_range range;
    CUresult r = CUDA_SUCCESS;
    if (!of)
        return CUDA_ERROR_INVALID_HANDLE;
    bool found = gpc_range_find(address, &range);
    if (found && gpc_range_is_host(&range))
        return is_taken_here(address);
    __atomic_store_n(&of->has_variables, true, __ATOMIC_RELAXED);
    if (!found || !has_variable(&range, of->id, address, bytes))
        r = keep_on(gpc_context_device(context), context, of->id, address, bytes, GPC_RANGE_GLOBAL);
    return r || gpc_session_of_address(address) ? r : gpc_managed_variable(address, bytes);
}

/* Freed memory that is free again, else the worker's. */
static CUresult allocate(CUdeviceptr *dptr, size_t bytes)
{
    struct gpc_route on = gpc_route_here();
    CUdeviceptr at;
    CUresult r = gpc_route_session(&on) ? gpc_spare_take(&on, &at, bytes) : CUDA_ERROR_NOT_READY;
    if (r == CUDA_ERROR_NOT_READY)
        r = gpc_wire_cuMemAlloc_v2(&at, bytes);
    if (r == CUDA_SUCCESS)
        r = gpc_memory_keep(0, at, bytes, GPC_RANGE_DEVICE);
    if (r == CUDA_SUCCESS)
        *dptr = at;
    return r;
}

/* Of whole rows that begin where the GPU reads fast; 0: that is more than there is. */
static size_t pitched(size_t width, size_t height, size_t *pitch)
{
    const size_t alignment = 512;
    size_t bytes;
    if (__builtin_add_overflow(width, alignment - 1, pitch))
        return 0;
    *pitch -= *pitch % alignment;
    return __builtin_mul_overflow(*pitch, height, &bytes) ? 0 : bytes;
}

CUresult gpc_memory_alloc(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height)
{
    size_t own = width, bytes = pitch ? pitched(width, height, &own) : width;
    CUresult r = bytes ? allocate(dptr, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && pitch)
        *pitch = own;
    return r;
}

enum gpc_needs gpc_free_needs(uint64_t address)
{
    return address || gpc_current() ? GPC_NEEDS_CONTEXT : GPC_NEEDS_INIT;
}

CUresult gpc_memory_free(const struct gpc_route *on, CUdeviceptr dptr)
{
    struct gpc_range range;
    unsigned place = on ? on->session->index : gpc_range_place();
    if (!gpc_range_find_at(place, dptr, &range) || range.begin != dptr ||
        (range.kind != GPC_RANGE_DEVICE && range.kind != GPC_RANGE_MANAGED &&
         range.kind != GPC_RANGE_POOL && range.kind != GPC_RANGE_GRAPH &&
         range.kind != GPC_RANGE_IMPORTED))
        return CUDA_ERROR_INVALID_VALUE;
    if (range.kind == GPC_RANGE_IMPORTED)
        return gpc_ipc_close(on, dptr, range.kind);
    bool forget = range.kind != GPC_RANGE_GRAPH && gpc_range_forget(&range);
    CUresult r = range.kind == GPC_RANGE_DEVICE ? gpc_spare_free(on, &range) : CUDA_ERROR_NOT_READY;
    if (r == CUDA_ERROR_NOT_READY)
        r = range.kind == GPC_RANGE_MANAGED ? gpc_managed_free(on, dptr)
                                            : gpc_wire_cuMemFree_v2_on(on, dptr);
    if (r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && forget)
        gpc_range_add(&range);
    return r;
}

GPC_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    CUresult r = gpc_enter(GP_OP_cuMemFree_v2, gpc_free_needs(dptr));
    return r != CUDA_SUCCESS || dptr == 0 ? r : gpc_leave(gpc_memory_free(NULL, dptr));
}

const struct gpc_range *gpc_memory_its(CUdeviceptr address, struct gpc_range *own, CUresult *r)
{
    /* of pinned memory as the GPU has it, whose address may be another */
    if (gpc_range_find(address, own) &&
        (own->kind != GPC_RANGE_SHARED || own->device_address == own->begin))
        return own;
    *r = CUDA_ERROR_NOT_FOUND;
    return NULL;
}
