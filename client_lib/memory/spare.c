#include "spare.h"

#include <string.h>

#include "context.h"
#include "gpc_wire.h"
#include "handle.h"
#include "operations_there.h"
#include "size_class.h"

/* Of one granule; a program that frees more of them before it allocates asks for the others. */
#define PIECES_MAX 64

/* What is free of one size on one device. */
struct spare {
    uint64_t tidied;  /* holds while this is the last message that tidies */
    uint64_t granule; /* the worker leaves it alone, or will once the free is there; 0: none */
    unsigned count;
    bool never; /* some of its kind is another process's as well */
    uint64_t at[PIECES_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct spare spares[GP_DEVICES_MAX][GP_CLASSES];
/* All work that reaches a device's memory, up to this message, is over. */
static uint64_t idle_behind[GP_DEVICES_MAX];

void gpc_spare_sent(struct gpc_session *s, const struct gp_header *h)
{
    const struct gp_op_info *op = &gp_op_table[h->op];
    if (!op->quiet) {
        __atomic_store_n(&s->busy_seq, h->seq, __ATOMIC_RELAXED);
        __atomic_add_fetch(&s->busy_count, 1, __ATOMIC_RELEASE);
    }
    if (op->tidies)
        __atomic_store_n(&s->tidied_seq, h->seq, __ATOMIC_RELAXED);
}

/* Under the lock: what holds now; NULL: of this size nothing is kept. */
static struct spare *spare_of(const struct gpc_session *s, CUdevice device, uint64_t bytes)
{
    uint32_t shift = gp_class_shift(bytes);
    if (shift == 0 || bytes == 0 || device < 0 || device >= GP_DEVICES_MAX)
        return NULL;
    unsigned index = shift == GP_GRANULE_SHIFT ? GP_CLASSES - 1 : shift - GP_CLASS_LEAST;
    struct spare *p = &spares[device][index];
    uint64_t tidied = __atomic_load_n(&s->tidied_seq, __ATOMIC_RELAXED);
    if (p->tidied < tidied) {
        p->tidied = tidied;
        p->granule = 0;
        p->count = 0;
    }
    return p;
}

static uint64_t granule_of(uint64_t at)
{
    return at & ~(GP_GRANULE - 1);
}

/* Under the lock. The worker's word, so it is looked at: in the granule, and not there yet. */
static void piece_add(struct spare *p, uint64_t at)
{
    if (p->granule != granule_of(at) || p->count == PIECES_MAX)
        return;
    for (unsigned i = 0; i < p->count; i++)
        if (p->at[i] == at)
            return;
    p->at[p->count++] = at;
}

/* What a capture makes of a call is the worker's to say. */
static bool can(const struct gpc_session *s, uint16_t op)
{
    return s && !gpc_capture_active() && gpc_session_has(s, op);
}

/* Sent only while what was known of free memory still holds. */
static CUresult post(struct gpc_call *call, uint64_t tidied)
{
    call->only_tidied = true;
    call->tidied = tidied;
    return gpc_call_post(call);
}

/* --- taking ------------------------------------------------------------------------------------ */

/* `awaits`: none, but what was freed while the GPU worked may be free by now. */
static bool piece_pick(const struct gpc_route *on, size_t bytes, uint64_t *at, uint64_t *tidied,
                       bool *awaits)
{
    CUdevice device = gpc_context_device(on->context);
    pthread_mutex_lock(&lock);
    struct spare *p = spare_of(on->session, device, bytes);
    bool found = p && p->count;
    *awaits = p && p->granule && !found;
    if (found) {
        *at = p->at[--p->count];
        *tidied = p->tidied;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

CUresult gpc_spare_take(const struct gpc_route *on, CUdeviceptr *at, size_t bytes)
{
    uint64_t piece, tidied;
    bool found = false, awaits = false;
    if (can(on->session, GP_OP_gp_memory_take))
        found = piece_pick(on, bytes, &piece, &tidied, &awaits);
    if (awaits) {
        gpc_session_poll(on->session);
        found = piece_pick(on, bytes, &piece, &tidied, &awaits);
    }
    if (!found)
        return CUDA_ERROR_NOT_READY;
    struct gp_req_gp_memory_take q = {
        .h.op = GP_OP_gp_memory_take, .dptr = piece, .bytesize = bytes};
    struct gpc_call call = {.route = *on, .request = &q.h, .request_size = sizeof q};
    CUresult r = post(&call, tidied);
    if (r == CUDA_SUCCESS)
        *at = piece;
    return r;
}

/* --- freeing ----------------------------------------------------------------------------------- */

/* Under the lock: nothing that puts work on a GPU was sent since all that reaches this device's
 * memory was over. */
static bool is_idle(const struct gpc_session *s, CUdevice device)
{
    return __atomic_load_n(&s->busy_seq, __ATOMIC_RELAXED) <= idle_behind[device];
}

/* Whether the memory may be kept: it lies in the one granule, or there is none yet. */
static bool piece_want(const struct gpc_route *on, const struct gpc_range *range, uint64_t *tidied,
                       bool *idle)
{
    pthread_mutex_lock(&lock);
    struct spare *p = spare_of(on->session, range->device, range->size);
    bool want = p && !p->never && (!p->granule || p->granule == granule_of(range->begin)) &&
                p->count < PIECES_MAX;
    if (want) {
        p->granule = granule_of(range->begin);
        *tidied = p->tidied;
        *idle = is_idle(on->session, range->device);
    }
    pthread_mutex_unlock(&lock);
    return want;
}

static void piece_give(const struct gpc_route *on, const struct gpc_range *range, uint64_t tidied)
{
    pthread_mutex_lock(&lock);
    struct spare *p = spare_of(on->session, range->device, range->size);
    if (p && p->tidied == tidied)
        piece_add(p, range->begin);
    pthread_mutex_unlock(&lock);
}

CUresult gpc_spare_free(const struct gpc_route *on, const struct gpc_range *range)
{
    uint64_t tidied;
    bool idle;
    struct gpc_route here = on ? *on : gpc_route_here();
    here.session = gpc_session_of_address(range->begin);
    if (!here.context || gpc_session_of_handle((uint64_t)here.context) != here.session ||
        !can(here.session, GP_OP_gp_memory_free) || !piece_want(&here, range, &tidied, &idle))
        return CUDA_ERROR_NOT_READY;
    struct gp_req_gp_memory_free q = {
        .h.op = GP_OP_gp_memory_free, .dptr = range->begin, .idle = idle};
    struct gpc_call call = {.route = here, .request = &q.h, .request_size = sizeof q};
    CUresult r = post(&call, tidied);
    if (r == CUDA_SUCCESS && idle)
        piece_give(&here, range, tidied);
    return r;
}

/* What was freed has no size here any more: only its own class has this granule. */
static void spare_add(struct gpc_session *s, CUdevice device, uint64_t at, uint64_t behind)
{
    for (unsigned i = 0; i < GP_CLASSES; i++) {
        uint32_t shift = i == GP_CLASSES - 1 ? GP_GRANULE_SHIFT : GP_CLASS_LEAST + i;
        struct spare *p = spare_of(s, device, UINT64_C(1) << shift);
        if (p->tidied <= behind && (at & ((UINT64_C(1) << shift) - 1)) == 0)
            piece_add(p, at);
    }
}

void gpc_on_gp_memory_spare(struct gpc_session *s, const struct gp_req_gp_memory_spare *q)
{
    for (uint32_t i = 0; i < s->snapshot->device_count; i++) {
        CUdevice device = gpc_device_of(s, i);
        const struct gp_device_info *d = gpc_device_info(device);
        if (!d || q->at < d->window_begin || q->at >= d->window_end)
            continue;
        pthread_mutex_lock(&lock);
        spare_add(s, device, q->at, q->behind);
        if (q->behind > idle_behind[device])
            idle_behind[device] = q->behind;
        pthread_mutex_unlock(&lock);
    }
}

void gpc_spare_named(const struct gpc_range *range)
{
    const struct gpc_session *s = gpc_session_of_address(range->begin);
    pthread_mutex_lock(&lock);
    struct spare *p = s ? spare_of(s, range->device, range->size) : NULL;
    if (p)
        p->never = true;
    pthread_mutex_unlock(&lock);
}
