/* Jumps, calls, ends. */
#include "exec_internal.h"

#include <string.h>

/* The lanes of `mask` go to `target`, the rest of the group to the next one. */
static enum sg_step jump(struct sg_warp *w, const struct sg_insn *in, uint32_t mask,
                         uint32_t target)
{
    bool back = target <= (uint32_t)(in - w->block->run->module->code);
    if (mask == w->active) {
        w->pc = target;
        if (!back || !sg_warp_tired(w))
            return SG_NEXT;
        sg_warp_split(w, 0, 0);
        return SG_SELECT;
    }
    sg_warp_split(w, mask, target);
    if (back)
        sg_warp_tired(w);
    return SG_SELECT;
}

SG_HANDLER(sg_do_branch)
{
    return jump(w, in, mask, in->target);
}

SG_HANDLER(sg_do_branch_index)
{
    uint64_t room[SG_LANES];
    const uint64_t *index = sg_operand_all(w, &in->x[0], room);
    sg_warp_split(w, 0, 0);
    SG_FOR_LANES(l, mask)
    {
        uint32_t i = (uint32_t)index[l];
        if (i >= in->targets[0])
            return sg_fault(w, in, l, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                            "brx.idx: index %u is beyond the %u targets", i, in->targets[0]);
        w->lane_pc[l] = in->targets[1 + i];
    }
    sg_warp_tired(w);
    return SG_SELECT;
}

/* Moves one value between a caller's operand and a callee's formal. */
struct place {
    struct sg_frame *frame;
    bool in_register;
    uint32_t slot, offset, size;
};

static void copy_place(const struct place *to, const struct place *from, unsigned lane)
{
    unsigned char buffer[16] = {0};
    const unsigned char *source = buffer;
    uint32_t size = from->size;
    if (from->in_register) {
        const uint64_t *r = from->frame->registers + (size_t)from->slot * SG_LANES + lane;
        memcpy(buffer, r, 8);
        if (size == 16)
            memcpy(buffer + 8, r + SG_LANES, 8);
    } else {
        source = from->frame->local + (size_t)lane * from->frame->stride + from->offset;
    }
    if (!to->in_register) {
        uint32_t n = size < to->size ? size : to->size;
        memcpy(to->frame->local + (size_t)lane * to->frame->stride + to->offset, source, n);
        return;
    }
    uint64_t *r = to->frame->registers + (size_t)to->slot * SG_LANES + lane;
    uint64_t parts[2] = {0, 0};
    memcpy(parts, source, size < to->size ? size : to->size);
    r[0] = parts[0];
    if (to->size == 16)
        r[SG_LANES] = parts[1];
}

static struct place formal_place(struct sg_frame *frame, const struct sg_formal *f)
{
    return (struct place){frame, f->in_register, f->slot, f->offset, f->size};
}

static struct place operand_place(struct sg_frame *frame, const struct sg_operand *x)
{
    if (x->kind == SG_O_LOCAL)
        return (struct place){frame, false, 0, (uint32_t)x->value, x->slot};
    return (struct place){frame, true, x->slot, 0, x->width > 8 ? 16 : 8};
}

static void pass_argument(struct sg_warp *w, struct sg_frame *frame, const struct sg_formal *f,
                          const struct sg_operand *x, uint32_t mask)
{
    struct place to = formal_place(frame, f);
    if (x->kind == SG_O_LOCAL || (x->kind == SG_O_REGISTER && !x->negated)) {
        struct place from = operand_place(w->frame, x);
        SG_FOR_LANES(l, mask)
        copy_place(&to, &from, l);
        return;
    }
    uint64_t room[SG_LANES];
    const uint64_t *value = sg_operand_all(w, x, room);
    SG_FOR_LANES(l, mask)
    {
        if (f->in_register)
            frame->registers[(size_t)f->slot * SG_LANES + l] = value[l];
        else
            memcpy(frame->local + (size_t)l * frame->stride + f->offset, &value[l],
                   f->size < 8 ? f->size : 8);
    }
}

/* `mask` enters the callee; the others' pcs have been written. */
static enum sg_step enter(struct sg_warp *w, const struct sg_insn *in, uint32_t mask,
                          const struct sg_function *callee)
{
    const struct sg_call *call = in->call;
    unsigned lane = (unsigned)__builtin_ctz(mask);
    if (!callee->defined)
        return sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "%s is not defined",
                        callee->info.name);
    if (call->argument_count != callee->argument_count)
        return sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                        "%s is called with another number of arguments than it has",
                        callee->info.name);
    CUresult why;
    struct sg_frame *frame = sg_frame_enter(w, callee, w->frame, mask, &why);
    if (!frame)
        return sg_fault(w, in, lane, why,
                        why == CUDA_ERROR_OUT_OF_MEMORY ? "no memory for the frame of %s"
                                                        : "calls too deep, at %s",
                        callee->info.name);
    frame->site = in;
    frame->return_pc = w->pc;
    for (uint32_t i = 0; i < call->argument_count; i++)
        pass_argument(w, frame, &callee->arguments[i], &call->arguments[i], mask);
    SG_FOR_LANES(l, mask)
    {
        w->lane_frame[l] = frame;
        w->lane_pc[l] = callee->start;
    }
    return SG_SELECT;
}

static enum sg_step call_one(struct sg_warp *w, const struct sg_insn *in, uint32_t mask,
                             const struct sg_function *callee)
{
    if (callee->builtin == SG_B_NONE)
        return enter(w, in, mask, callee);
    return sg_builtin_call(w, in, mask, callee) == SG_FAULT ? SG_FAULT : SG_SELECT;
}

const struct sg_function *sg_function_pointed(const struct sg_module *m, uint64_t pointer)
{
    uint64_t index = (pointer & SG_OFFSET_MASK) - 1;
    if ((pointer & ~SG_OFFSET_MASK) != SG_WINDOW_CODE || index >= m->function_count)
        return NULL;
    return m->functions[index];
}

/* Lanes may each call something else: one frame per callee. */
static enum sg_step call_pointer(struct sg_warp *w, const struct sg_insn *in, uint32_t mask)
{
    uint64_t room[SG_LANES];
    const uint64_t *pointer = sg_operand_all(w, &in->x[0], room);
    while (mask) {
        unsigned first = (unsigned)__builtin_ctz(mask);
        uint32_t same = 0;
        SG_FOR_LANES(l, mask)
        same |= (uint32_t)(pointer[l] == pointer[first]) << l;
        const struct sg_function *callee = sg_function_pointed(w->block->run->module,
                                                               pointer[first]);
        if (!callee || callee->entry)
            return sg_fault(w, in, first, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                            "call through 0x%llx, which is no function",
                            (unsigned long long)pointer[first]);
        if (call_one(w, in, same, callee) == SG_FAULT)
            return SG_FAULT;
        mask &= ~same;
    }
    return SG_SELECT;
}

SG_HANDLER(sg_do_call)
{
    const struct sg_function *callee = in->call->callee;
    if (callee && callee->builtin != SG_B_NONE)
        return sg_builtin_call(w, in, mask, callee);
    sg_warp_split(w, 0, 0);
    sg_warp_tired(w);
    return callee ? enter(w, in, mask, callee) : call_pointer(w, in, mask);
}

SG_HANDLER(sg_do_ret)
{
    struct sg_frame *frame = w->frame, *parent = frame->parent;
    if (!parent)
        return sg_do_exit(w, in, mask);
    const struct sg_call *call = frame->site->call;
    const struct sg_function *f = frame->function;
    /* What another part of the program takes for a result, of a function that has none, is anything,
     * as on a card: Numba does so. */
    for (uint32_t i = 0; i < call->result_count && i < f->result_count; i++) {
        struct place from = formal_place(frame, &f->results[i]);
        if (call->results[i].kind == SG_O_NONE)
            continue;
        struct place to = operand_place(parent, &call->results[i]);
        SG_FOR_LANES(l, mask)
        copy_place(&to, &from, l);
    }
    sg_warp_split(w, 0, 0);
    SG_FOR_LANES(l, mask)
    {
        w->lane_frame[l] = parent;
        w->lane_pc[l] = frame->return_pc;
    }
    sg_frame_leave(w, frame, mask);
    return SG_SELECT;
}

SG_HANDLER(sg_do_exit)
{
    (void)in;
    sg_warp_split(w, 0, 0);
    sg_warp_exit(w, mask);
    return SG_SELECT;
}

SG_HANDLER(sg_do_trap)
{
    unsigned lane = (unsigned)__builtin_ctz(mask);
    return in->mode ? sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "brkpt")
                    : sg_fault(w, in, lane, CUDA_ERROR_LAUNCH_FAILED, "trap");
}
