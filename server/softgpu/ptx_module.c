/* The module as a whole: what functions reach, addresses, access. */
#include "ptx_parse.h"

#include <stdlib.h>

/* Everything that `index` may call, itself included. */
static void reach(struct sg_module *m, uint32_t index, bool *seen)
{
    uint32_t *stack = malloc((m->function_count + 1) * sizeof(*stack));
    uint32_t depth = 0;
    if (!stack)
        return;
    seen[index] = true;
    stack[depth++] = index;
    while (depth) {
        const struct sg_function *f = m->functions[stack[--depth]];
        for (uint32_t i = 0; i < m->function_count; i++) {
            bool called = f->calls_pointer && m->functions[i]->address_taken;
            for (uint32_t k = 0; !called && k < f->callees.count; k++)
                called = f->callees.items[k] == i;
            if (called && !seen[i]) {
                seen[i] = true;
                stack[depth++] = i;
            }
        }
    }
    free(stack);
}

/* Places in shared memory for the variables that an entry can name; the dynamic
 * ones all begin behind the others. */
static void shared_place(struct sg_parser *p, struct sg_function *entry, bool *seen)
{
    struct sg_module *m = p->module;
    uint64_t at = 0;
    entry->shared_offset = sg_take(p, (m->shared_count + 1) * sizeof(uint32_t));
    bool *used = sg_take_scratch(p, m->shared_count + 1);
    uint32_t dynamic_align = 16;
    for (uint32_t i = 0; i < m->function_count; i++)
        for (uint32_t k = 0; seen[i] && k < m->functions[i]->shared_used.count; k++)
            used[m->functions[i]->shared_used.items[k]] = true;
    for (uint32_t i = 0; i < m->shared_count; i++) {
        const struct sg_shared *v = m->shared[i];
        if (used[i] && v->dynamic) {
            entry->info.uses_dynamic_shared = true;
            dynamic_align = v->align > dynamic_align ? v->align : dynamic_align;
        }
        if (!used[i] || v->dynamic)
            continue;
        at = (at + v->align - 1) / v->align * v->align;
        entry->shared_offset[i] = (uint32_t)at;
        at += v->size;
        if (at > SG_MAX_SHARED)
            sg_fail(p, entry->line, "%s uses more than %u bytes of shared memory", entry->info.name,
                    SG_MAX_SHARED);
    }
    if (entry->info.uses_dynamic_shared)
        at = (at + dynamic_align - 1) / dynamic_align * dynamic_align;
    entry->info.static_shared_bytes = (uint32_t)at;
    for (uint32_t i = 0; i < m->shared_count; i++)
        if (m->shared[i]->dynamic)
            entry->shared_offset[i] = (uint32_t)at;
}

/* What the module's variables in constant memory take, behind each other. */
static uint32_t constant_bytes(const struct sg_module *m)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < m->global_count; i++) {
        const struct sg_global *v = &m->globals[i]->global;
        if (v->constant && at <= INT32_MAX)
            at = (at + v->align - 1) / v->align * v->align + v->size;
    }
    return at < INT32_MAX ? (uint32_t)at : INT32_MAX;
}

void sg_module_finish(struct sg_parser *p)
{
    struct sg_module *m = p->module;
    uint32_t constant = constant_bytes(m);
    bool *seen = sg_take_scratch(p, m->function_count + 1);
    for (uint32_t i = 0; i < m->entry_count; i++) {
        struct sg_function *entry = m->functions[m->entries[i]->index];
        if (!entry->defined && entry->external)
            continue; /* of another part, which a linker knows */
        if (!entry->defined)
            sg_fail(p, entry->line, "the kernel %s has no body", entry->info.name);
        memset(seen, 0, m->function_count);
        reach(m, entry->index, seen);
        shared_place(p, entry, seen);
        entry->info.constant_bytes = constant;
    }
}

const char *sg_module_unresolved(const struct sg_module *m)
{
    for (uint32_t i = 0; i < m->global_count; i++)
        if (m->globals[i]->external)
            return m->globals[i]->global.name;
    for (uint32_t i = 0; i < m->function_count; i++) {
        const struct sg_function *f = m->functions[i];
        if ((f->called || f->address_taken || f->entry) && !f->defined && f->builtin == SG_B_NONE)
            return f->info.name;
    }
    return NULL;
}

void sg_module_free(struct sg_module *module)
{
    if (!module)
        return;
    free(module->code);
    free(module->functions);
    free(module->entries);
    free(module->globals);
    free(module->shared);
    sg_pool_free(&module->arena);
    free(module);
}

size_t sg_module_function_count(const struct sg_module *module)
{
    return module->entry_count;
}

const struct sg_function *sg_module_function_at(const struct sg_module *module, size_t index)
{
    return index < module->entry_count ? module->entries[index] : NULL;
}

const struct sg_function *sg_module_function(const struct sg_module *module, const char *name)
{
    for (uint32_t i = 0; i < module->entry_count; i++)
        if (!strcmp(module->entries[i]->info.name, name))
            return module->entries[i];
    return NULL;
}

const struct sg_function_info *sg_function_info(const struct sg_function *function)
{
    return &function->info;
}

size_t sg_module_global_count(const struct sg_module *module)
{
    return module->global_count;
}

struct sg_global *sg_module_global_at(struct sg_module *module, size_t index)
{
    return index < module->global_count ? &module->globals[index]->global : NULL;
}

CUresult sg_module_place(struct sg_module *module)
{
    for (uint32_t i = 0; i < module->global_count; i++) {
        const struct sg_global *g = &module->globals[i]->global;
        if (g->size && (!g->address || g->address >= SG_DEVICE_ADDRESS_LIMIT))
            return CUDA_ERROR_INVALID_IMAGE;
    }
    for (uint32_t i = 0; i < module->code_count; i++) {
        struct sg_insn *in = &module->code[i];
        for (uint32_t k = 0; k < in->operands; k++)
            if (in->x[k].kind == SG_O_GLOBAL) {
                in->x[k].value += module->globals[in->x[k].slot]->global.address;
                in->x[k].kind = SG_O_IMMEDIATE;
            }
        if (in->op != SG_P_CALL)
            continue;
        for (uint32_t k = 0; k < in->call->argument_count; k++)
            if (in->call->arguments[k].kind == SG_O_GLOBAL) {
                in->call->arguments[k].value +=
                    module->globals[in->call->arguments[k].slot]->global.address;
                in->call->arguments[k].kind = SG_O_IMMEDIATE;
            }
    }
    module->placed = true;
    return CUDA_SUCCESS;
}

void sg_module_initial_image(const struct sg_module *module, size_t index, void *bytes)
{
    const struct sg_variable *v = module->globals[index];
    if (v->global.init)
        memcpy(bytes, v->global.init, v->global.size);
    else
        memset(bytes, 0, v->global.size);
    for (uint32_t i = 0; i < v->relocation_count; i++) {
        const struct sg_relocation *r = &v->relocations[i];
        uint64_t value = r->function ? SG_WINDOW_CODE | (r->symbol + 1)
                                     : module->globals[r->symbol]->global.address;
        value = (value + (uint64_t)r->addend) >> r->shift;
        memcpy((char *)bytes + r->offset, &value, r->size);
    }
}
