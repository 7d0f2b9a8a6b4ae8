/*
 * Pinned host memory. Where memory can be shared it is a mapping that the worker
 * has, too, at the same address if possible, so the GPU copies straight from and
 * to it. Over a network it is this process's own, and copies into it come as
 * notices: what is still on its way is kept here.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"
#include "cancel.h"
#include "context.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "host_function.h"
#include "ipc.h"
#include "its.h"
#include "landing.h"
#include "managed.h"
#include "maps.h"
#include "memory.h"
#include "ranges.h"
#include "remote_host.h"
#include "session.h"

/* Above what programs map by themselves, below the devices' windows. */
#define HOST_WINDOW UINT64_C(0x100000000000)
#define HOST_WINDOW_BYTES (UINT64_C(1) << 43)
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) /* which has few places for what programs map */
#undef HOST_WINDOW
#undef HOST_WINDOW_BYTES
#define HOST_WINDOW UINT64_C(0x7e9000000000)
#define HOST_WINDOW_BYTES (UINT64_C(1) << 36)
#endif
#endif

/* --- bytes on their way --------------------------------------------------------- */

struct expected {
    struct expected *next;
    struct gpc_session *session; /* that brings the bytes */
    uint64_t cookie;
    char *to;
    size_t bytes;
    unsigned landing; /* notices that the transport writes to their place */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct expected *expected;
static uint64_t last_cookie;

uint64_t gpc_pinned_expect(struct gpc_session *s, void *to, size_t bytes)
{
    struct expected *e = malloc(sizeof *e);
    if (!e)
        return 0;
    pthread_mutex_lock(&lock);
    uint64_t cookie = ++last_cookie;
    if (gpc_session_works(s)) { /* a lost one brings nothing any more */
        *e = (struct expected){expected, s, cookie, to, bytes, 0};
        expected = e;
        e = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(e);
    return cookie;
}

/* Under the lock. */
static struct expected **expected_find(const struct gpc_session *s, uint64_t cookie)
{
    struct expected **at = &expected;
    while (*at && ((*at)->cookie != cookie || (*at)->session != s))
        at = &(*at)->next;
    return at;
}

static bool has_room(const struct expected *e, const struct gp_req_gp_pinned_data *q)
{
    return e && q->offset <= e->bytes && q->bytes <= e->bytes - q->offset;
}

bool gpc_pinned_lands(struct gpc_session *s, const struct gp_req_gp_pinned_data *q, size_t size,
                      struct gp_landing *to)
{
    const size_t begin = gp_align8(sizeof *q);
    bool lands = false;
    if (q->bytes != q->n_data || begin > size || q->bytes > size - begin)
        return false;
    pthread_mutex_lock(&lock);
    struct expected *e = *expected_find(s, q->cookie);
    if (has_room(e, q)) {
        *to = (struct gp_landing){e->to + q->offset, begin, q->bytes};
        e->landing++;
        lands = true;
    }
    pthread_mutex_unlock(&lock);
    return lands;
}

void gpc_on_gp_pinned_data(struct gpc_session *s, const struct gp_req_gp_pinned_data *q,
                           const void *data)
{
    bool landed = gpc_landed(s), wrong = false;
    pthread_mutex_lock(&lock);
    struct expected **at = expected_find(s, q->cookie), *e = *at;
    if (e && landed)
        e->landing--;
    else if (has_room(e, q))
        memcpy(e->to + q->offset, data, q->bytes);
    if (e && q->last) {
        wrong = e->landing >
                0; /* more comes behind the last: it is the session's until that ends */
        if (!wrong) {
            *at = e->next;
            free(e);
        }
    }
    pthread_mutex_unlock(&lock);
    if (wrong)
        gpc_session_lose(s, "the worker sent more of a copy than was asked for");
}

bool gpc_pinned_expects(const struct gpc_session *s)
{
    bool some = false;
    pthread_mutex_lock(&lock);
    for (struct expected *e = expected; e && !some; e = e->next)
        some = e->session == s;
    pthread_mutex_unlock(&lock);
    return some;
}

void gpc_pinned_lose_begin(void)
{
    pthread_mutex_lock(&lock);
}

void gpc_pinned_lose_end(const struct gpc_session *s)
{
    for (struct expected **at = &expected; *at;) {
        struct expected *e = *at;
        if (e->session != s) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        free(e);
    }
    pthread_mutex_unlock(&lock);
}

/* A session that has still to bring bytes for this range, NULL if none has. One that
 * broke brings nothing any more. `*seen`: what it had brought when it was asked. */
static struct gpc_session *awaited(const char *address, size_t bytes, uint64_t *seen)
{
    struct gpc_session *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct expected *e = expected; e && !found; e = e->next)
        if ((!address || (address < e->to + e->bytes && e->to < address + bytes)) &&
            gpc_session_works(e->session))
            found = e->session;
    if (found)
        *seen = gpc_session_notices(found);
    pthread_mutex_unlock(&lock);
    return found;
}

CUresult gpc_pinned_settle(const void *address, size_t bytes)
{
    struct gpc_session *s;
    uint64_t seen;
    while ((s = awaited(address, bytes, &seen)) != NULL) {
        CUresult r = gpc_session_wait_notice(s, seen);
        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

/* --- allocation -------------------------------------------------------------------- */

struct owner {
    struct gpc_session *session;
    struct gp_share share; /* of shared memory */
};

/* Where the next one is to lie, so that a worker can have it at the same address: a hint. */
static void *place_for(size_t bytes)
{
    static uint64_t next;
    const uint64_t step = UINT64_C(2) << 20;
    uint64_t at = __atomic_fetch_add(&next, (bytes + step) & ~(step - 1), __ATOMIC_RELAXED);
    return (void *)(uintptr_t)(HOST_WINDOW + at % HOST_WINDOW_BYTES);
}

bool gpc_pinned_may(uint64_t address)
{
    return address >= HOST_WINDOW && address - HOST_WINDOW < HOST_WINDOW_BYTES;
}

static CUresult alloc_shared(size_t bytes, unsigned flags, void **out)
{
    struct gpc_session *s = gpc_session();
    struct owner *owner = calloc(1, sizeof *owner);
    if (!owner)
        return CUDA_ERROR_OUT_OF_MEMORY;
    owner->session = s;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    int cancel = gpc_cancel_off();
    int shared = s->transport->share(s->channel, place_for(whole), whole, &owner->share);
    gpc_cancel_back(cancel);
    if (shared != 0) {
        free(owner);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t device_address = 0;
    CUresult r = gpc_wire_gp_pinned_open(owner->share.id, (uint64_t)(uintptr_t)owner->share.addr,
                                         whole, flags, &device_address);
    struct gpc_range range = {.begin = (uint64_t)(uintptr_t)owner->share.addr,
                              .size = bytes,
                              .kind = GPC_RANGE_SHARED,
                              .context = gpc_context_owner(gpc_current()),
                              .device = gpc_context_device(gpc_current()),
                              .flags = flags,
                              .device_address = device_address,
                              .owner = owner};
    if (r == CUDA_SUCCESS && gpc_range_add(&range) != 0) {
        gpc_wire_gp_pinned_close(range.begin);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r != CUDA_SUCCESS) {
        s->transport->unshare(s->channel, &owner->share);
        free(owner);
        return r;
    }
    *out = owner->share.addr;
    return CUDA_SUCCESS;
}

static CUresult alloc_own(size_t bytes, unsigned flags, void **out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    void *memory = mmap(place_for(whole), whole, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpc_range range = {.begin = (uint64_t)(uintptr_t)memory,
                              .size = bytes,
                              .kind = GPC_RANGE_HOST,
                              .context = gpc_context_owner(gpc_current()),
                              .device = gpc_context_device(gpc_current()),
                              .flags = flags};
    if (gpc_range_add(&range) != 0) {
        munmap(memory, whole);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult gpc_as_cuMemHostAlloc(uint16_t op, void **pp, size_t bytesize, unsigned int Flags)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                           CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pp || bytesize == 0 || (Flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytesize > SIZE_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return gpc_leave(gpc_session_shares(gpc_session()) ? alloc_shared(bytesize, Flags, pp)
                                                       : alloc_own(bytesize, Flags, pp));
}

static CUresult range_release(const struct gpc_range *range)
{
    CUresult r = CUDA_SUCCESS;
    if (range->kind == GPC_RANGE_SHARED && !range->owner) {
        r = gpc_mapped_close(range);
    } else if (range->kind == GPC_RANGE_SHARED) {
        struct owner *owner = range->owner;
        struct gpc_session *s = owner->session;
        const struct gpc_route on = gpc_route_to(s);
        r = gpc_wire_gp_pinned_close_on(&on, range->begin);
        if (gpc_session_works(s))
            s->transport->unshare(s->channel, &owner->share);
        free(owner);
    } else if (!range->registered) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        munmap((void *)(uintptr_t)range->begin, (range->size + page - 1) / page * page);
    }
    return r;
}

GPC_EXPORT CUresult cuMemFreeHost(void *p)
{
    uint64_t address = (uint64_t)(uintptr_t)p;
    CUresult r = gpc_enter(GP_OP_cuMemFreeHost, gpc_free_needs(address));
    if (r != CUDA_SUCCESS || !p)
        return r;
    struct gpc_range range;
    if (!gpc_range_find(address, &range) || range.begin != address || !gpc_range_is_host(&range) ||
        range.registered)
        return CUDA_ERROR_INVALID_VALUE;
    if ((r = gpc_pinned_settle(p, range.size)) != CUDA_SUCCESS)
        return r;
    if (!gpc_range_forget(&range))
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(range_release(&range));
}

static const char *why_not_readable(const struct gpc_mapping *m)
{
    return m->rights[0] == 'r' ? NULL : "it cannot be read";
}

static const char *why_not_writable(const struct gpc_mapping *m)
{
    return m->rights[1] == 'w' ? why_not_readable(m) : "it cannot be written";
}

/* Whether the driver would find no pages to pin somewhere in there. */
static bool cannot_be_pinned(uint64_t address, size_t bytes, unsigned flags)
{
    const char *why;
    bool only_read = flags & CU_MEMHOSTREGISTER_READ_ONLY;
    return gpc_maps_check(address, address + bytes, only_read ? why_not_readable : why_not_writable,
                          &why) &&
           why;
}

CUresult gpc_as_cuMemHostRegister_v2(uint16_t op, void *p, size_t bytesize, unsigned int Flags)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                           CU_MEMHOSTREGISTER_READ_ONLY;
    struct gpc_range range;
    uint64_t address = (uint64_t)(uintptr_t)p;
    if (!p || bytesize == 0 || address + bytesize < address)
        return CUDA_ERROR_INVALID_VALUE;
    if (Flags & ~(known | CU_MEMHOSTREGISTER_IOMEMORY))
        return CUDA_ERROR_INVALID_VALUE;
    if (Flags & ~known)
        return gpc_refuse_because(op, "memory of a device");
    if (gpc_range_meets(address, bytesize))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (cannot_be_pinned(address, bytesize, Flags))
        return CUDA_ERROR_INVALID_VALUE;
    range = (struct gpc_range){.begin = address,
                               .size = bytesize,
                               .kind = GPC_RANGE_HOST,
                               .context = gpc_context_owner(gpc_current()),
                               .device = gpc_context_device(gpc_current()),
                               .flags = Flags,
                               .registered = true};
    return gpc_range_add(&range) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Kernels reach it: what they write has to be here, and the address has to be free over there when
 * this is over, because programs register the same memory again. What a wait finds out is the next
 * call's to say. */
static CUresult mapped_release(const struct gpc_range *range)
{
    const struct gpc_route on = gpc_route_in(range->context);
    gpc_wire_cuCtxSynchronize_on(&on);
    CUresult r = range_release(range);
    gpc_wire_cuCtxSynchronize_on(&on);
    return r;
}

GPC_EXPORT CUresult cuMemHostUnregister(void *p)
{
    CUresult r = gpc_enter(GP_OP_cuMemHostUnregister, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_range range;
    uint64_t address = (uint64_t)(uintptr_t)p;
    if (!gpc_range_find(address, &range) || range.begin != address || !range.registered)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if ((r = gpc_pinned_settle(p, range.size)) != CUDA_SUCCESS)
        return r;
    if (!gpc_range_forget(&range))
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return gpc_leave(range.kind == GPC_RANGE_SHARED ? mapped_release(&range) : CUDA_SUCCESS);
}

const struct gpc_range *gpc_pinned_its(const void *p, struct gpc_range *own, CUresult *r)
{
    if (gpc_range_find((uint64_t)(uintptr_t)p, own) && gpc_range_is_host(own))
        return own;
    *r = CUDA_ERROR_INVALID_VALUE;
    return NULL;
}

GPC_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct gpc_range range;
    CUresult r = gpc_enter(GP_OP_cuMemHostGetDevicePointer_v2, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS || !gpc_pinned_its(p, &range, &r))
        return r;
    if (!pdptr || Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const char *why = gpc_registered_why_not(&range);
    if (why)
        return gpc_refuse_because(GP_OP_cuMemHostGetDevicePointer_v2, why);
    if (gpc_range_session(&range) != gpc_session())
        return gpc_refuse_because(GP_OP_cuMemHostGetDevicePointer_v2,
                                  "this memory is another host's");
    if (range.kind == GPC_RANGE_HOST) {
        r = gpc_mapped_open(range.begin);
        range.device_address = range.begin;
    }
    if (r == CUDA_SUCCESS)
        *pdptr = range.device_address + ((uint64_t)(uintptr_t)p - range.begin);
    return gpc_leave(r);
}

/* A context takes along what was allocated in it, which is the worker's to map, not the driver's. */
static void range_ended(const struct gpc_range *range)
{
    const struct gpc_route on = gpc_route_in(range->context);
    if (gpc_range_is_host(range))
        range_release(range);
    else if (range->kind == GPC_RANGE_DEVICE)
        gpc_wire_cuMemFree_v2_on(&on, range->begin);
    else if (range->kind == GPC_RANGE_MANAGED)
        gpc_managed_free(&on, range->begin);
    else if (range->kind == GPC_RANGE_IPC || range->kind == GPC_RANGE_IMPORTED)
        gpc_ipc_drop(&on, range->begin);
    else if (range->kind == GPC_RANGE_GLOBAL)
        gpc_managed_variable_drop(range->begin, range->size);
}

void gpc_memory_context_ended(CUcontext context)
{
    gpc_pinned_settle(NULL, 0);
    gpc_range_context_ended(context, range_ended);
}
