/* Functions that CUDA's runtime on the device provides: printf, malloc, free, assert, and the
 * values of graphs' conditions. Others are called from here. */
#include "exec_grid.h"

#include <string.h>

bool sg_builtin_argument(struct sg_warp *w, const struct sg_call *call, uint32_t i, unsigned lane,
                         void *out, uint32_t bytes)
{
    if (i >= call->argument_count)
        return false;
    const struct sg_operand *x = &call->arguments[i];
    if (x->kind == SG_O_LOCAL) {
        memcpy(out, w->frame->local + (size_t)lane * w->frame->stride + x->value,
               x->slot < bytes ? x->slot : bytes);
        return x->slot >= bytes;
    }
    uint64_t value = sg_operand_lane(w, x, lane);
    memcpy(out, &value, bytes < sizeof(value) ? bytes : sizeof(value));
    return bytes <= sizeof(value);
}

static uint64_t argument(struct sg_warp *w, const struct sg_call *call, uint32_t i, unsigned lane)
{
    uint64_t value = 0;
    sg_builtin_argument(w, call, i, lane, &value, sizeof(value));
    return value;
}

void sg_builtin_give(struct sg_warp *w, const struct sg_call *call, unsigned lane, uint64_t value)
{
    if (!call->result_count)
        return;
    const struct sg_operand *x = &call->results[0];
    if (x->kind == SG_O_LOCAL)
        memcpy(w->frame->local + (size_t)lane * w->frame->stride + x->value, &value,
               x->slot < 8 ? x->slot : 8);
    else
        sg_write(w->frame, x, lane, value);
}

static void read_text(struct sg_warp *w, unsigned lane, uint64_t address, char *out, size_t size)
{
    size_t n = 0;
    for (const char *p; n + 1 < size; n++) {
        p = sg_look(w, lane, SG_S_GENERIC, address + n, 1);
        if (!p || !*p)
            break;
        out[n] = *p;
    }
    out[n] = 0;
}

/* __assertfail(message, file, line, function, size of a character) */
static enum sg_step fail_assertion(struct sg_warp *w, const struct sg_insn *in, unsigned lane)
{
    const struct sg_launch *launch = w->block->run->launch;
    char message[512], file[512], function[512], line[1800];
    read_text(w, lane, argument(w, in->call, 0, lane), message, sizeof(message));
    read_text(w, lane, argument(w, in->call, 1, lane), file, sizeof(file));
    read_text(w, lane, argument(w, in->call, 3, lane), function, sizeof(function));
    uint32_t number = (uint32_t)argument(w, in->call, 2, lane), t = w->index * SG_LANES + lane;
    const uint32_t *n = launch->block, *b = w->block->id;
    int size = snprintf(line, sizeof(line),
                        "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
                        file, number, function, b[0], b[1], b[2], t % n[0], t / n[0] % n[1],
                        t / n[0] / n[1], message);
    if (size > 0)
        sg_grid_print(w->block->run, w->block->cluster->number, line,
                      (size_t)size < sizeof(line) ? (size_t)size : sizeof(line) - 1);
    return sg_fault(w, in, lane, CUDA_ERROR_ASSERT, "assertion failed: %.100s", message);
}

static enum sg_step release(struct sg_warp *w, const struct sg_insn *in, unsigned lane)
{
    uint64_t address = argument(w, in->call, 0, lane);
    if (address && !sg_heap_give(address))
        return sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS,
                        "free(0x%llx): not from malloc, or freed before",
                        (unsigned long long)address);
    return SG_NEXT;
}

/* cudaGraphSetConditional(handle, value); nobody's handle is no error, as in CUDA. */
static void set_condition(struct sg_warp *w, const struct sg_call *call, unsigned lane)
{
    const struct sg_launch *launch = w->block->run->launch;
    if (launch->set_condition)
        launch->set_condition(launch->condition_context, argument(w, call, 0, lane),
                              (uint32_t)argument(w, call, 1, lane));
}

enum sg_step sg_builtin_call(struct sg_warp *w, const struct sg_insn *in, uint32_t mask,
                             const struct sg_function *callee)
{
    const struct sg_call *call = in->call;
    /* All lanes that fail print their line before the launch ends. */
    enum sg_step step = SG_NEXT;
    SG_FOR_LANES(l, mask)
    {
        switch (callee->builtin) {
        case SG_B_VPRINTF: {
            int n = sg_print(w, l, argument(w, call, 0, l), argument(w, call, 1, l));
            sg_builtin_give(w, call, l, (uint32_t)n);
            break;
        }
        case SG_B_MALLOC:
            sg_builtin_give(w, call, l, sg_heap_take(argument(w, call, 0, l)));
            break;
        case SG_B_FREE:
            step = release(w, in, l);
            break;
        case SG_B_SET_CONDITION:
            set_condition(w, call, l);
            break;
        case SG_B_NODE_PARAMETERS:
        case SG_B_NODE_GRID:
        case SG_B_NODE_ENABLED:
        case SG_B_NODE_UPDATES:
            step = sg_update_call(w, in, l, callee->builtin);
            break;
        case SG_B_ASSERTFAIL:
            step = fail_assertion(w, in, l);
            break;
        case SG_B_NONE:
            return sg_fault(w, in, l, CUDA_ERROR_ILLEGAL_INSTRUCTION, "%s is not defined",
                            callee->info.name);
        default:
            step = sg_runtime_call(w, in, l, callee->builtin);
        }
        if (step == SG_FAULT && callee->builtin != SG_B_ASSERTFAIL)
            return step;
    }
    return step;
}
