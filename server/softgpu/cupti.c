/*
 * What the soft GPU does when, as CUPTI would say it: the functions of CUPTI that a worker asks
 * (proto/wire/cupti.h), under their names. Each operation that is submitted while somebody
 * records has a correlation of its own; kernels, copies and sets leave a record when they have
 * run.
 */
#include "cupti.h"

#include <stdio.h>

#include "activity.h"
#include "monotonic.h"

#define NAMES 4096 /* of kernels, kept for good: a record may outlive the module */
#define KINDS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken last */
static gp_cupti_requested *requested;
static gp_cupti_completed *completed;
static uint64_t enabled; /* a bit for each kind */
static uint8_t *buffer;
static size_t room, used, dropped;
static uint32_t last_correlation;
static int64_t last_grid;
static char *names[NAMES];
static size_t name_count;

static _Thread_local uint64_t external; /* of the calling thread; 0: none */
static _Thread_local struct {
    uint32_t correlation, stream;
} running; /* of a stream's thread */

static bool wants(uint32_t kind)
{
    return __atomic_load_n(&enabled, __ATOMIC_RELAXED) >> kind & 1;
}

/* Under the lock, as all that follow but the entry points. */
static void hand_over(void)
{
    if (buffer && completed)
        completed(NULL, 0, buffer, room, used);
    buffer = NULL;
    room = used = 0;
}

static void append(const void *record, size_t size)
{
    size_t records = 0;
    if (buffer && room - used < size)
        hand_over();
    if (!buffer && requested)
        requested(&buffer, &room, &records);
    if (!buffer || room < size) {
        dropped++;
        return;
    }
    memcpy(buffer + used, record, size);
    used += size;
}

static const char *kept_name(const char *name)
{
    for (size_t i = 0; i < name_count; i++)
        if (strcmp(names[i], name) == 0)
            return names[i];
    if (name_count == NAMES || !(names[name_count] = strdup(name)))
        return NULL;
    return names[name_count++];
}

void sg_activity_submitted(struct sg_op *op)
{
    if (!__atomic_load_n(&enabled, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&lock);
    op->correlation = ++last_correlation;
    struct gp_cupti_external e = {.kind = GP_CUPTI_EXTERNAL_CORRELATION,
                                  .external_kind = GP_CUPTI_CUSTOM0,
                                  .external = external,
                                  .correlation = op->correlation};
    if (external && wants(GP_CUPTI_EXTERNAL_CORRELATION))
        append(&e, sizeof e);
    pthread_mutex_unlock(&lock);
}

void sg_activity_enter(const struct sg_op *op, CUstream stream)
{
    running.correlation = op->correlation;
    running.stream = (uint32_t)stream->id;
}

uint64_t sg_activity_now(void)
{
    return __atomic_load_n(&enabled, __ATOMIC_RELAXED) ? gp_real_ns() : 0;
}

static void kernel_ran(const struct sg_op *op, uint64_t start)
{
    const struct sg_kernel *k = &op->kernel;
    const struct sg_function_info *info = sg_function_info(k->code);
    struct gp_cupti_kernel r = {.kind = GP_CUPTI_CONCURRENT_KERNEL,
                                .start = start,
                                .end = gp_real_ns(),
                                .device = (uint32_t)op->context->device->ordinal,
                                .context = (uint32_t)op->context->id,
                                .stream = running.stream,
                                .dynamic_shared = (int32_t)k->shared,
                                .correlation = running.correlation,
                                .grid_id = ++last_grid,
                                .name = kept_name(info->name)};
    r.static_shared = (int32_t)info->static_shared_bytes;
    r.completed = r.end;
    for (int i = 0; i < 3; i++) {
        r.grid[i] = (int32_t)k->grid[i];
        r.block[i] = (int32_t)k->block[i];
        r.cluster[i] = k->cluster[i];
    }
    append(&r, sizeof r);
}

static uint8_t memory_of(const void *at)
{
    struct sg_extent extent;
    if (!sg_address_find((uint64_t)(uintptr_t)at, &extent))
        return GP_CUPTI_PAGEABLE;
    return sg_space_is_host(extent.space) ? GP_CUPTI_PINNED : GP_CUPTI_DEVICE;
}

/* Whether the ends of a copy are two devices' memory. */
static bool between_devices(const struct sg_copy *c, struct sg_extent *from, struct sg_extent *to)
{
    return !c->staged && sg_address_find((uint64_t)(uintptr_t)c->src, from) &&
           sg_address_find((uint64_t)(uintptr_t)c->dst, to) && !sg_space_is_host(from->space) &&
           !sg_space_is_host(to->space) && from->device != to->device;
}

/* Contexts other than the copy's may have gone: their numbers are 0. */
static void peer_copy_ran(const struct sg_op *op, uint64_t start, const struct sg_extent *from,
                          const struct sg_extent *to)
{
    const struct sg_copy *c = &op->copy;
    const struct sg_device *device = op->context->device;
    uint32_t context = (uint32_t)op->context->id;
    struct gp_cupti_memcpy2 r = {.kind = GP_CUPTI_MEMCPY2,
                                 .copy = GP_CUPTI_PTOP,
                                 .from = GP_CUPTI_DEVICE,
                                 .to = GP_CUPTI_DEVICE,
                                 .bytes = c->width * c->height * c->depth,
                                 .start = start,
                                 .end = gp_real_ns(),
                                 .device = (uint32_t)device->ordinal,
                                 .context = context,
                                 .stream = running.stream,
                                 .from_device = (uint32_t)from->device->ordinal,
                                 .from_context = from->device == device ? context : 0,
                                 .to_device = (uint32_t)to->device->ordinal,
                                 .to_context = to->device == device ? context : 0,
                                 .correlation = running.correlation};
    if (wants(GP_CUPTI_MEMCPY2))
        append(&r, sizeof r);
}

static void copy_ran(const struct sg_op *op, uint64_t start)
{
    const struct sg_copy *c = &op->copy;
    struct sg_extent source, target;
    if (between_devices(c, &source, &target)) {
        peer_copy_ran(op, start, &source, &target);
        return;
    }
    struct gp_cupti_memcpy r = {.kind = GP_CUPTI_MEMCPY,
                                .from = c->staged ? GP_CUPTI_PAGEABLE : memory_of(c->src),
                                .to = memory_of(c->dst),
                                .bytes = c->width * c->height * c->depth,
                                .start = start,
                                .end = gp_real_ns(),
                                .device = (uint32_t)op->context->device->ordinal,
                                .context = (uint32_t)op->context->id,
                                .stream = running.stream,
                                .correlation = running.correlation,
                                .copies = 1};
    bool from = r.from == GP_CUPTI_DEVICE, to = r.to == GP_CUPTI_DEVICE;
    r.copy = from && to ? GP_CUPTI_DTOD : from ? GP_CUPTI_DTOH : to ? GP_CUPTI_HTOD : GP_CUPTI_HTOH;
    if (wants(GP_CUPTI_MEMCPY))
        append(&r, sizeof r);
}

static void set_ran(const struct sg_op *op, uint64_t start)
{
    const struct sg_set *s = &op->set;
    struct gp_cupti_memset r = {.kind = GP_CUPTI_MEMSET,
                                .value = s->value,
                                .bytes = (uint64_t)s->width * s->element * s->height,
                                .start = start,
                                .end = gp_real_ns(),
                                .device = (uint32_t)op->context->device->ordinal,
                                .context = (uint32_t)op->context->id,
                                .stream = running.stream,
                                .correlation = running.correlation,
                                .memory = memory_of(s->dst)};
    append(&r, sizeof r);
}

void sg_activity_ran(const struct sg_op *op, uint64_t start)
{
    if (!start)
        return;
    pthread_mutex_lock(&lock);
    if (op->kind == SG_OP_KERNEL && wants(GP_CUPTI_CONCURRENT_KERNEL))
        kernel_ran(op, start);
    else if (op->kind == SG_OP_COPY)
        copy_ran(op, start);
    else if (op->kind == SG_OP_SET && wants(GP_CUPTI_MEMSET))
        set_ran(op, start);
    pthread_mutex_unlock(&lock);
}

/* ---- entry points ---- */
#pragma GCC visibility push(default)
#define X(name, parameters) uint32_t name parameters;
GP_CUPTI_FUNCTIONS(X)
#undef X
#pragma GCC visibility pop

uint32_t cuptiActivityRegisterCallbacks(gp_cupti_requested *request, gp_cupti_completed *complete)
{
    if (!request || !complete)
        return GP_CUPTI_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    requested = request;
    completed = complete;
    pthread_mutex_unlock(&lock);
    return GP_CUPTI_SUCCESS;
}

static uint32_t enable(uint32_t kind, bool on)
{
    if (kind == 0 || kind >= KINDS)
        return GP_CUPTI_INVALID_KIND;
    pthread_mutex_lock(&lock);
    uint64_t bit = UINT64_C(1) << kind;
    __atomic_store_n(&enabled, on ? enabled | bit : enabled & ~bit, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiActivityEnable(uint32_t kind)
{
    return enable(kind, true);
}

uint32_t cuptiActivityDisable(uint32_t kind)
{
    return enable(kind, false);
}

/* What has not ended has no record yet. */
uint32_t cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&lock);
    hand_over();
    pthread_mutex_unlock(&lock);
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiActivityGetNextRecord(uint8_t *records, size_t valid, void **record)
{
    return gp_cupti_next(records, valid, record);
}

/* Called from within a callback, where the lock is held: it is the caller's. */
uint32_t cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *count)
{
    (void)context;
    (void)stream;
    if (!count)
        return GP_CUPTI_INVALID_PARAMETER;
    *count = __atomic_exchange_n(&dropped, 0, __ATOMIC_RELAXED);
    return GP_CUPTI_SUCCESS;
}

/* No more than one at a time: a worker has no need of more. */
uint32_t cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id)
{
    if (kind != GP_CUPTI_CUSTOM0)
        return GP_CUPTI_INVALID_PARAMETER;
    if (external)
        return GP_CUPTI_NOT_SUPPORTED;
    external = id;
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last)
{
    if (kind != GP_CUPTI_CUSTOM0)
        return GP_CUPTI_INVALID_PARAMETER;
    if (!external)
        return GP_CUPTI_QUEUE_EMPTY;
    if (last)
        *last = external;
    external = 0;
    return GP_CUPTI_SUCCESS;
}

uint32_t cuptiGetTimestamp(uint64_t *now)
{
    if (!now)
        return GP_CUPTI_INVALID_PARAMETER;
    *now = gp_real_ns();
    return GP_CUPTI_SUCCESS;
}
