/* Activations of functions: registers and local memory for the lanes in them. */
#include "exec_grid.h"

#include <stdlib.h>
#include <string.h>

#define FRAME_ALIGN 16u
#define HEADER ((sizeof(struct sg_frame) + 63) / 64 * 64)
/* All frames of one launch: enough for 1024 threads deep in recursion. */
#define MAX_FRAME_BYTES ((size_t)4 << 30)

static size_t frame_size(const struct sg_function *f, uint32_t stride)
{
    return HEADER + (size_t)f->slots * SG_LANES * sizeof(uint64_t) + (size_t)stride * SG_LANES;
}

/* Up to a multiple of the power of two, and at least to one of FRAME_ALIGN. */
static uint32_t aligned(uint32_t at, uint32_t align)
{
    uint32_t past = (align > FRAME_ALIGN ? align : FRAME_ALIGN) - 1;
    return (at + past) & ~past;
}

static bool charge(struct sg_grid *grid, size_t bytes)
{
    if (__atomic_add_fetch(&grid->frame_bytes, bytes, __ATOMIC_RELAXED) <= MAX_FRAME_BYTES)
        return true;
    __atomic_sub_fetch(&grid->frame_bytes, bytes, __ATOMIC_RELAXED);
    return false;
}

static struct sg_frame *new_frame(struct sg_grid *grid, size_t bytes)
{
    if (!charge(grid, bytes))
        return NULL;
    struct sg_frame *frame = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!frame)
        __atomic_sub_fetch(&grid->frame_bytes, bytes, __ATOMIC_RELAXED);
    return frame;
}

struct sg_frame *sg_frame_enter(struct sg_warp *w, const struct sg_function *function,
                                struct sg_frame *parent, uint32_t lanes, CUresult *why)
{
    uint32_t stride = aligned(function->frame_bytes, FRAME_ALIGN);
    uint32_t base = aligned(parent ? parent->base + parent->stride : 1, function->frame_align);
    uint32_t depth = parent ? parent->depth + 1 : 0;
    *why = CUDA_ERROR_HARDWARE_STACK_ERROR;
    if (depth > SG_MAX_DEPTH || stride > SG_MAX_LOCAL || base > SG_MAX_LOCAL - stride)
        return NULL;
    size_t bytes = frame_size(function, stride);
    *why = CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_frame *frame = w->spare;
    if (frame && w->spare_bytes == bytes)
        w->spare = NULL;
    else
        frame = new_frame(w->block->run->grid, bytes);
    if (!frame)
        return NULL;
    memset(frame, 0, bytes);
    frame->parent = parent;
    frame->function = function;
    frame->depth = depth;
    frame->lanes = lanes;
    frame->base = base;
    frame->stride = stride;
    frame->registers = (uint64_t *)(void *)((unsigned char *)frame + HEADER);
    frame->local = (unsigned char *)(frame->registers + (size_t)function->slots * SG_LANES);
    return frame;
}

void sg_frame_discard(struct sg_warp *w)
{
    if (w->spare)
        __atomic_sub_fetch(&w->block->run->grid->frame_bytes, w->spare_bytes, __ATOMIC_RELAXED);
    free(w->spare);
    w->spare = NULL;
}

void sg_frame_leave(struct sg_warp *w, struct sg_frame *frame, uint32_t lanes)
{
    frame->lanes &= ~lanes;
    if (frame->lanes)
        return;
    sg_frame_discard(w);
    w->spare = frame;
    w->spare_bytes = frame_size(frame->function, frame->stride);
}

void sg_frame_unwind(struct sg_warp *w, uint32_t lane)
{
    struct sg_frame *frame = w->lane_frame[lane];
    while (frame) {
        struct sg_frame *parent = frame->parent;
        sg_frame_leave(w, frame, 1u << lane);
        frame = parent;
    }
    w->lane_frame[lane] = NULL;
}
