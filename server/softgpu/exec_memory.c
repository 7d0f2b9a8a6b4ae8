/* Loads and stores, and the one way to host memory for every space. */
#include "exec_grid.h"

#include <string.h>

static void *look_global(struct sg_run *run, uint64_t address, uint32_t size)
{
    for (unsigned i = 0; i < SG_EXTENTS; i++) {
        const struct sg_extent *e = &run->extents[i];
        if (address >= e->begin && address < e->end && size <= e->end - address)
            return e->host + (address - e->begin);
    }
    const struct sg_memory *memory = run->launch->memory;
    uint64_t begin = 0, end = 0;
    if (!memory || !memory->resolve)
        return NULL;
    unsigned char *host = memory->resolve(memory->context, address, size, &begin, &end);
    if (!host || begin > address || end <= address)
        return host;
    run->extents[run->next_extent] = (struct sg_extent){begin, end, host - (address - begin)};
    run->next_extent = (run->next_extent + 1) % SG_EXTENTS;
    return host;
}

static void *look_shared(struct sg_block *block, uint64_t address, uint32_t size)
{
    uint32_t rank = (uint32_t)address >> SG_CLUSTER_SHIFT;
    uint32_t offset = (uint32_t)address & ((1u << SG_CLUSTER_SHIFT) - 1);
    if (rank) {
        if (rank > block->cluster->size)
            return NULL;
        block = block->cluster->blocks[rank - 1];
    }
    uint32_t top = block->run->shared_bytes;
    return offset <= top && size <= top - offset ? block->shared + offset : NULL;
}

/* The frame, here or further out, whose part of the stack it is. */
static void *look_local(struct sg_warp *w, unsigned lane, uint64_t address, uint32_t size)
{
    for (struct sg_frame *f = w->lane_frame[lane]; f; f = f->parent) {
        if (address < f->base)
            continue;
        uint64_t offset = address - f->base;
        if (offset >= f->stride || size > f->stride - offset)
            return NULL;
        return f->local + (size_t)lane * f->stride + offset;
    }
    return NULL;
}

static void *look_parameter(struct sg_run *run, uint64_t address, uint32_t size)
{
    uint64_t bytes = run->function->info.parameter_bytes;
    return address <= bytes && size <= bytes - address ? run->parameters + address : NULL;
}

static void *look_workspace(struct sg_run *run, uint64_t address, uint32_t size)
{
    struct sg_grid *grid = run->grid;
    uint64_t bytes = run->launch->cooperative ? sizeof(grid->workspace) : 0;
    return address <= bytes && size <= bytes - address ? (unsigned char *)grid->workspace + address
                                                       : NULL;
}

void *sg_look(struct sg_warp *w, unsigned lane, unsigned space, uint64_t address, uint32_t size)
{
    uint64_t window = address & ~SG_OFFSET_MASK, offset = address & SG_OFFSET_MASK;
    switch (space) {
    case SG_S_SHARED:
        return window && window != SG_WINDOW_SHARED ? NULL : look_shared(w->block, offset, size);
    case SG_S_LOCAL:
        return look_local(w, lane, offset, size);
    case SG_S_PARAM:
        return look_parameter(w->block->run, offset, size);
    default:
        break;
    }
    switch (window) {
    case 0:
        return look_global(w->block->run, address, size);
    case SG_WINDOW_SHARED:
        return look_shared(w->block, offset, size);
    case SG_WINDOW_LOCAL:
        return look_local(w, lane, offset, size);
    case SG_WINDOW_PARAM:
        return look_parameter(w->block->run, offset, size);
    case SG_WINDOW_GRID:
        return look_workspace(w->block->run, offset, size);
    case SG_WINDOW_HEAP:
        return sg_heap_look(address, size);
    default:
        return NULL;
    }
}

static const char *space_name(unsigned space)
{
    static const char *const names[] = {"generic", "global", "shared", "local",
                                        "param",   "const",  "reg"};
    return space < sizeof(names) / sizeof(*names) ? names[space] : "unknown";
}

void *sg_reach(struct sg_warp *w, const struct sg_insn *in, unsigned lane, unsigned space,
               uint64_t address, uint32_t size, uint32_t align)
{
    if (address & (align - 1)) {
        sg_fault(w, in, lane, CUDA_ERROR_MISALIGNED_ADDRESS,
                 "%s address 0x%llx is not a multiple of %u", space_name(space),
                 (unsigned long long)address, align);
        return NULL;
    }
    void *host = sg_look(w, lane, space, address, size);
    if (!host)
        sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS,
                 "%u bytes at %s address 0x%llx are outside all memory", size, space_name(space),
                 (unsigned long long)address);
    return host;
}

static uint64_t read_element(const unsigned char *p, uint32_t size)
{
    switch (size) {
    case 1:
        return *p;
    case 2:
        return __atomic_load_n((const uint16_t *)(const void *)p, __ATOMIC_RELAXED);
    case 4:
        return __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_RELAXED);
    default:
        return __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_RELAXED);
    }
}

static void write_element(unsigned char *p, uint32_t size, uint64_t v)
{
    switch (size) {
    case 1:
        *p = (unsigned char)v;
        break;
    case 2:
        __atomic_store_n((uint16_t *)(void *)p, (uint16_t)v, __ATOMIC_RELAXED);
        break;
    case 4:
        __atomic_store_n((uint32_t *)(void *)p, (uint32_t)v, __ATOMIC_RELAXED);
        break;
    default:
        __atomic_store_n((uint64_t *)(void *)p, v, __ATOMIC_RELAXED);
        break;
    }
}

/* Signed values fill the register, whatever its width. */
static uint64_t widen(const struct sg_insn *in, const struct sg_operand *x, uint64_t v)
{
    switch (in->type) {
    case SG_T_S8:
        v = (uint64_t)(int64_t)(int8_t)v;
        break;
    case SG_T_S16:
        v = (uint64_t)(int64_t)(int16_t)v;
        break;
    case SG_T_S32:
        v = (uint64_t)(int64_t)(int32_t)v;
        break;
    default:
        return v;
    }
    return x->width >= 8 ? v : v & (((uint64_t)1 << (8 * x->width)) - 1);
}

SG_HANDLER(sg_do_load)
{
    const struct sg_operand *a = &in->x[in->vector];
    uint64_t room[SG_LANES];
    const uint64_t *address = sg_operand_all(w, a, room);
    uint32_t size = sg_type_size(in->type), total = size * in->vector;
    unsigned space = sg_space_of(in, a);
    if (address != room) { /* a destination may be the address register */
        memcpy(room, address, sizeof(room));
        address = room;
    }
    SG_FOR_LANES(l, mask)
    {
        const unsigned char *p = sg_reach(w, in, l, space, sg_address(a, address[l], in->offset),
                                          total, total);
        if (!p)
            return SG_FAULT;
        for (unsigned i = 0; i < in->vector; i++) {
            const struct sg_operand *x = &in->x[i];
            if (x->kind != SG_O_REGISTER)
                continue;
            uint64_t *d = sg_register(w, x) + l;
            d[0] = widen(in, x, read_element(p + (size_t)i * size, size > 8 ? 8 : size));
            if (size == 16)
                d[SG_LANES] = read_element(p + (size_t)i * size + 8, 8);
        }
    }
    if (in->polls)
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return SG_NEXT;
}

static bool store_lane(struct sg_warp *w, const struct sg_insn *in, unsigned lane, uint64_t address,
                       const uint64_t *const *value)
{
    uint32_t size = sg_type_size(in->type), total = size * in->vector;
    unsigned char *p = sg_reach(w, in, lane, sg_space_of(in, &in->x[0]), address, total, total);
    if (!p)
        return false;
    for (unsigned i = 0; i < in->vector; i++) {
        write_element(p + (size_t)i * size, size > 8 ? 8 : size, value[i][lane]);
        if (size == 16)
            write_element(p + (size_t)i * size + 8, 8,
                          in->x[i + 1].kind == SG_O_REGISTER ? value[i][lane + SG_LANES] : 0);
    }
    return true;
}

SG_HANDLER(sg_do_store)
{
    uint64_t room[9][SG_LANES];
    const uint64_t *value[8];
    const uint64_t *address = sg_operand_all(w, &in->x[0], room[8]);
    for (unsigned i = 0; i < in->vector; i++)
        value[i] = sg_operand_all(w, &in->x[i + 1], room[i]);
    if (in->orders)
        __atomic_thread_fence(__ATOMIC_RELEASE);
    SG_FOR_LANES(l, mask)
    if (!store_lane(w, in, l, sg_address(&in->x[0], address[l], in->offset), value))
        return SG_FAULT;
    return SG_NEXT;
}

/* Bytes that come from the source, of `size`: as many as are given, or none if it is ignored. */
static uint32_t source_size(const struct sg_operand *given, uint64_t value, uint32_t size)
{
    if (given->kind == SG_O_NONE)
        return size;
    if (given->kind == SG_O_REGISTER && given->width == sg_type_size(SG_T_PRED))
        return value & 1 ? 0 : size;
    return (uint32_t)value < size ? (uint32_t)value : size;
}

/* Synchronous, which the waits that follow allow. What the source lacks is zero. */
SG_HANDLER(sg_do_copy_async)
{
    uint64_t room[3][SG_LANES];
    const struct sg_operand *x = in->x;
    const uint64_t *to = sg_operand_all(w, &x[SG_COPY_TO], room[0]);
    const uint64_t *from = sg_operand_all(w, &x[SG_COPY_FROM], room[1]);
    const uint64_t *given = sg_operand_all(w, &x[SG_COPY_MORE], room[2]);
    uint32_t size = (uint32_t)x[SG_COPY_SIZE].value;
    SG_FOR_LANES(l, mask)
    {
        uint32_t n = source_size(&x[SG_COPY_MORE], given[l], size);
        unsigned char *d = sg_reach(w, in, l, SG_S_SHARED, sg_address_own(&x[SG_COPY_TO], to[l]),
                                    size, size);
        if (!d)
            return SG_FAULT;
        memset(d, 0, size);
        if (!n)
            continue;
        const unsigned char *s = sg_reach(w, in, l, SG_S_GLOBAL,
                                          sg_address_own(&x[SG_COPY_FROM], from[l]), n, 1);
        if (!s)
            return SG_FAULT;
        memcpy(d, s, n);
    }
    return SG_NEXT;
}

SG_HANDLER(sg_do_fence)
{
    (void)w, (void)in, (void)mask;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return SG_NEXT;
}
