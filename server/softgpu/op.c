/* Operations: made by entry points, run by streams and by graphs. */
#include "activity.h"
#include "array.h"
#include "pool.h"
#include "span.h"

#include <time.h>

#include "shared_event.h"
#include "timeslice.h"

struct sg_op *sg_op_new(enum sg_op_kind kind, CUcontext context)
{
    struct sg_op *op = calloc(1, sizeof(*op));
    if (op) {
        op->refs = 1;
        op->kind = kind;
        op->context = context;
    }
    return op;
}

struct sg_op *sg_op_ref(struct sg_op *op)
{
    op->refs++;
    return op;
}

void sg_op_unref(struct sg_op *op)
{
    if (!op || --op->refs)
        return;
    switch (op->kind) {
    case SG_OP_KERNEL:
        free(op->kernel.parameters);
        free(op->kernel.pointers);
        free(op->kernel.attributes);
        sg_textures_release(&op->kernel.held);
        sg_updates_drop(op->kernel.updates);
        if (op->kernel.function)
            sg_module_unref(op->kernel.function->module);
        break;
    case SG_OP_COPY:
        free(op->copy.staged);
        break;
    case SG_OP_RECORD:
    case SG_OP_WAIT:
    case SG_OP_WAIT_SHARED:
        sg_event_unref(op->event.event);
        break;
    case SG_OP_GRAPH:
    case SG_OP_BATCH:
        if (op->graph.launched)
            sg_blocks_passed(op->graph.list, op->graph.count);
        for (size_t i = 0; i < op->graph.count; i++)
            sg_op_unref(op->graph.list[i]);
        free(op->graph.list);
        free(op->graph.params);
        sg_kept_release(&op->graph.kept);
        break;
    case SG_OP_BLOCK_ALLOC:
    case SG_OP_BLOCK_FREE:
        sg_block_op_gone(op);
        break;
    case SG_OP_CONDITION:
    case SG_OP_CONDITION_RESET:
        sg_condition_op_gone(op);
        break;
    default:
        break;
    }
    free(op);
}

static void write_value(const struct sg_op *op)
{
    void *at = (void *)(uintptr_t)op->value.address;
    if (op->value.bytes == 8)
        __atomic_store_n((uint64_t *)at, op->value.value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint32_t *)at, (uint32_t)op->value.value, __ATOMIC_SEQ_CST);
}

static bool value_reached(const struct sg_op *op)
{
    const void *at = (const void *)(uintptr_t)op->value.address;
    bool wide = op->value.bytes == 8;
    uint64_t mask = wide ? UINT64_MAX : UINT32_MAX, wanted = op->value.value;
    uint64_t now = wide ? __atomic_load_n((const uint64_t *)at, __ATOMIC_SEQ_CST)
                        : __atomic_load_n((const uint32_t *)at, __ATOMIC_SEQ_CST);
    switch (op->value.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* cyclic, as CUDA defines it */
        return wide ? (int64_t)(now - wanted) >= 0
                    : (int32_t)((uint32_t)now - (uint32_t)wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & wanted) != 0;
    default:
        return (~(now | wanted) & mask) != 0;
    }
}

/* The memory of an operation may be freed before it runs, or the graph that it is a node of;
 * also while it runs, by another context. */
static bool hold_value(const struct sg_op *op)
{
    return sg_address_hold((void *)(uintptr_t)op->value.address, op->value.bytes, NULL, 0);
}

static CUresult wait_value(const struct sg_op *op)
{
    struct timespec pause = {0, 50000};
    bool reached = false;
    while (!reached && !__atomic_load_n(&op->context->cancel, __ATOMIC_RELAXED)) {
        if (!hold_value(op))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        reached = value_reached(op);
        sg_address_let_go();
        if (!reached)
            nanosleep(&pause, NULL);
    }
    return CUDA_SUCCESS;
}

static void wait_shared(const struct sg_op *op)
{
    struct timespec pause = {0, 50000};
    while (!__atomic_load_n(&op->context->cancel, __ATOMIC_RELAXED) &&
           !sg_shared_event_passed(op->event.event->shared, op->event.shared))
        nanosleep(&pause, NULL);
}

/* What is written for this thread now. */
static _Thread_local uint32_t *written;

void sg_op_tell_written(uint32_t *here)
{
    written = here;
}

static CUresult run_write(const struct sg_op *op)
{
    if (!hold_value(op))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (written)
        __atomic_store_n(written, 1, __ATOMIC_SEQ_CST);
    write_value(op);
    sg_address_let_go();
    return CUDA_SUCCESS;
}

static CUresult run_copy(const struct sg_copy *copy)
{
    if (!sg_copy_tiles_live(copy) ||
        !sg_address_hold(copy->dst, copy->dst_bytes, copy->src, copy->staged ? 0 : copy->src_bytes))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    sg_copy_run(copy);
    sg_address_let_go();
    return CUDA_SUCCESS;
}

static CUresult run_set(const struct sg_set *set)
{
    uint64_t span = gp_span_rows(set->pitch, set->width, set->element, set->height);
    if (!sg_address_hold(set->dst, span, NULL, 0))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    sg_set_run(set);
    sg_address_let_go();
    return CUDA_SUCCESS;
}

static CUresult run_locked(const struct sg_op *op)
{
    SG_LOCKED;
    if (op->kind == SG_OP_RECORD)
        sg_event_stamp(op->event.event, op->event.record);
    if (op->kind == SG_OP_RECORD && op->event.event->shared)
        sg_shared_event_pass(op->event.event->shared, op->event.shared);
    if (op->kind == SG_OP_FREE)
        sg_pool_free_in_order(op->address);
    return CUDA_SUCCESS;
}

static CUresult run_graph(const struct sg_op *op)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < op->graph.count && result == CUDA_SUCCESS; i++)
        result = sg_op_run(op->graph.list[i]);
    return result;
}

/* Copies have engines of their own, and who waits for the host has no work meanwhile. */
static bool keeps_device(enum sg_op_kind kind)
{
    return kind != SG_OP_COPY && kind != SG_OP_HOST && kind != SG_OP_CALLBACK &&
           kind != SG_OP_WAIT_VALUE && kind != SG_OP_WAIT_SHARED;
}

/* Answers with what the application is told: the fault, if there was one. */
static CUresult callbacks_add(unsigned running)
{
    pthread_mutex_lock(&sg.lock);
    CUresult fault = sg.fault;
    sg.callbacks += running;
    pthread_cond_broadcast(&sg.progress);
    pthread_mutex_unlock(&sg.lock);
    return fault;
}

static void run_callback(const struct sg_op *op)
{
    CUresult fault = callbacks_add(1);
    if (op->kind == SG_OP_HOST)
        op->host.fn(op->host.data);
    else
        op->callback.fn(op->callback.stream, fault, op->callback.data);
    callbacks_add(-1u);
}

static CUresult run(const struct sg_op *op)
{
    switch (op->kind) {
    case SG_OP_EMPTY:
    case SG_OP_WAIT:
        return CUDA_SUCCESS;
    case SG_OP_KERNEL:
        return sg_kernel_run(op);
    case SG_OP_COPY:
        return run_copy(&op->copy);
    case SG_OP_SET:
        return run_set(&op->set);
    case SG_OP_HOST:
    case SG_OP_CALLBACK:
        run_callback(op);
        return CUDA_SUCCESS;
    case SG_OP_WRITE_VALUE:
        return run_write(op);
    case SG_OP_WAIT_VALUE:
        return wait_value(op);
    case SG_OP_WAIT_SHARED:
        wait_shared(op);
        return CUDA_SUCCESS;
    case SG_OP_RECORD:
    case SG_OP_FREE:
        return run_locked(op);
    case SG_OP_GRAPH:
    case SG_OP_BATCH:
        return run_graph(op);
    case SG_OP_BLOCK_ALLOC:
    case SG_OP_BLOCK_FREE:
        sg_block_run(op);
        return CUDA_SUCCESS;
    case SG_OP_CONDITION:
    case SG_OP_CONDITION_RESET:
        return sg_condition_run(op);
    }
    return CUDA_ERROR_UNKNOWN;
}

CUresult sg_op_run(const struct sg_op *op)
{
    if (!keeps_device(op->kind))
        sg_time_leave();
    uint64_t start = sg_activity_now();
    CUresult result = run(op);
    sg_activity_ran(op, start);
    return result;
}
