/*
 * Memory that graphs allocate. A node's block has its address from the beginning, so that other
 * nodes can name it; it has memory from the first launch on; and work may touch it from the
 * allocation on until the free. What a device has reserved for blocks it keeps, for later ones as
 * well, until it is trimmed.
 */
#include "softgpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include "timeslice.h"

struct sg_block {
    struct sg_block *next;
    int refs; /* operations, and itself while it is allocated */
    struct sg_device *device;
    uint64_t address, rounded;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    unsigned busy;  /* launches and frees under way */
    bool backed;    /* it has memory */
    bool allocated; /* as the program sees it, which is ahead of the streams */
    bool runs;      /* there is an executable with its node */
    bool launching; /* scratch: the launch under way allocates it */
    CUgraph freed_in;
};

static struct sg_block *blocks; /* under sg.lock */

static uint64_t round_up(uint64_t size)
{
    return (size + SG_ALIGNMENT - 1) / SG_ALIGNMENT * SG_ALIGNMENT;
}

static void count(struct sg_graph_use *use, int64_t change)
{
    use->now += (uint64_t)change;
    use->high = use->now > use->high ? use->now : use->high;
}

/* ---- blocks ---- */
/* Where nothing may touch it. */
static CUresult place(struct sg_block *block)
{
    struct sg_extent extent = {.space = SG_SPACE_POOL,
                               .device = block->device,
                               .id = ++sg.next_id,
                               .block = block,
                               .absent = true};
    block->address = sg_arena_take(block->device->arena, block->rounded);
    if (!block->address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    extent.begin = block->address;
    extent.end = block->address + block->params.bytesize;
    CUresult result = sg_address_add(&extent);
    if (result != CUDA_SUCCESS)
        sg_arena_give(block->device->arena, block->address);
    return result;
}

static CUresult block_new(struct sg_device *device, uint64_t size, struct sg_block **out)
{
    if (!size || size > device->memory_size)
        return size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    struct sg_block *block = calloc(1, sizeof(*block));
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *block = (struct sg_block){.device = device, .rounded = round_up(size)};
    block->params.bytesize = size;
    CUresult result = place(block);
    if (result != CUDA_SUCCESS) {
        free(block);
        return result;
    }
    block->next = blocks;
    blocks = block;
    *out = block;
    return CUDA_SUCCESS;
}

static void show(const struct sg_block *block, bool absent)
{
    struct sg_extent extent;
    if (!sg_address_find(block->address, &extent))
        return;
    extent.absent = absent;
    sg_address_update(&extent);
}

/* Nothing has it: its pages are the system's again, and another may have as many. */
static void unback(struct sg_block *block)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t begin = (block->address + page - 1) / page * page;
    uint64_t end = (block->address + block->rounded) / page * page;
    if (!block->backed)
        return;
    if (begin < end)
        madvise((void *)(uintptr_t)begin, end - begin, MADV_DONTNEED);
    block->device->graph_idle += block->rounded;
    block->backed = false;
}

/* What blocks have and nobody uses. */
static void gather(const struct sg_device *device)
{
    for (struct sg_block *b = blocks; b; b = b->next)
        if (b->device == device && !b->allocated && !b->busy && !b->launching)
            unback(b);
}

static CUresult back(struct sg_block *block)
{
    struct sg_device *device = block->device;
    if (block->backed)
        return CUDA_SUCCESS;
    if (block->rounded > device->graph_idle)
        gather(device);
    uint64_t reused = block->rounded < device->graph_idle ? block->rounded : device->graph_idle;
    uint64_t more = block->rounded - reused;
    if (more > device->memory_size - device->memory_used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    device->graph_idle -= reused;
    sg_time_memory(device, (int64_t)more);
    count(&device->graph_reserved, (int64_t)more);
    block->backed = true;
    return CUDA_SUCCESS;
}

static void block_unref(struct sg_block *block)
{
    struct sg_block **link = &blocks;
    if (--block->refs)
        return;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    unback(block);
    sg_address_remove(block->address, NULL);
    sg_arena_give(block->device->arena, block->address);
    free((void *)(uintptr_t)block->params.accessDescs);
    free(block);
}

static void set_allocated(struct sg_block *block, bool allocated)
{
    if (block->allocated == allocated)
        return;
    block->allocated = allocated;
    count(&block->device->graph_used,
          allocated ? (int64_t)block->rounded : -(int64_t)block->rounded);
    if (allocated)
        block->refs++;
    else
        block_unref(block); /* whoever frees it has it, too */
}

static CUresult block_op(enum sg_op_kind kind, CUcontext context, struct sg_block *block,
                         struct sg_op **out)
{
    struct sg_op *op = sg_op_new(kind, context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->block.its = block;
    block->refs++;
    *out = op;
    return CUDA_SUCCESS;
}

CUresult sg_block_alloc(CUcontext context, struct sg_device *device, uint64_t size,
                        CUdeviceptr *address, struct sg_op **out)
{
    struct sg_block *block;
    SG_TRY(block_new(device, size, &block));
    block->refs = 1;
    block->params.dptr = block->address;
    block->params.poolProps = (CUmemPoolProps){
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}};
    *address = block->address;
    CUresult result = block_op(SG_OP_BLOCK_ALLOC, context, block, out);
    block_unref(block);
    return result;
}

CUresult sg_block_free_captured(CUcontext context, CUgraph graph, CUdeviceptr address,
                                struct sg_op **out)
{
    struct sg_extent extent;
    if (!sg_address_find(address, &extent) || extent.begin != address || !extent.block ||
        extent.block->freed_in)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(block_op(SG_OP_BLOCK_FREE, context, extent.block, out));
    extent.block->freed_in = graph;
    return CUDA_SUCCESS;
}

void sg_block_op_gone(const struct sg_op *op)
{
    op->block.its->busy -= op->block.holds;
    block_unref(op->block.its);
}

void sg_block_node_gone(const struct sg_op *op, CUgraph graph)
{
    if (op->kind == SG_OP_BLOCK_FREE && op->block.its->freed_in == graph)
        op->block.its->freed_in = NULL;
}

CUresult sg_block_free(CUcontext context, struct sg_block *block, struct sg_op **out)
{
    if (!block->allocated)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(block_op(SG_OP_BLOCK_FREE, context, block, out));
    (*out)->block.holds = true;
    block->busy++;
    set_allocated(block, false);
    return CUDA_SUCCESS;
}

CUresult sg_block_give(struct sg_block *block)
{
    if (!block->allocated)
        return CUDA_ERROR_INVALID_VALUE;
    show(block, true);
    set_allocated(block, false);
    return CUDA_SUCCESS;
}

void sg_block_run(const struct sg_op *op)
{
    SG_LOCKED;
    show(op->block.its, op->kind == SG_OP_BLOCK_FREE);
}

/* ---- launches ---- */
static CUresult may_launch(struct sg_op *const *list, size_t n, bool frees)
{
    for (size_t i = 0; i < n; i++)
        if (list[i]->kind == SG_OP_BLOCK_ALLOC) {
            if (list[i]->block.its->allocated && !frees)
                return CUDA_ERROR_INVALID_VALUE;
            list[i]->block.its->launching = true;
            SG_TRY(back(list[i]->block.its));
        }
    for (size_t i = 0; i < n; i++)
        if (list[i]->kind == SG_OP_BLOCK_FREE && !list[i]->block.its->allocated &&
            !list[i]->block.its->launching)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sg_blocks_launch(struct sg_op *const *list, size_t n, bool frees)
{
    CUresult result = may_launch(list, n, frees);
    for (size_t i = 0; i < n; i++) {
        if (list[i]->kind != SG_OP_BLOCK_ALLOC && list[i]->kind != SG_OP_BLOCK_FREE)
            continue;
        list[i]->block.its->launching = false;
        list[i]->block.its->busy += list[i]->kind == SG_OP_BLOCK_ALLOC; /* until it has passed */
        if (result == CUDA_SUCCESS)
            set_allocated(list[i]->block.its, list[i]->kind == SG_OP_BLOCK_ALLOC);
    }
    return result;
}

void sg_blocks_passed(struct sg_op *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i]->kind == SG_OP_BLOCK_ALLOC)
            list[i]->block.its->busy--;
}

bool sg_graph_has_memory(CUgraph graph)
{
    for (size_t i = 0; i < graph->node_count; i++)
        if (sg_node_is_memory(graph->nodes[i]))
            return true;
    return false;
}

CUresult sg_blocks_instantiate(CUgraph graph)
{
    for (size_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
            graph->nodes[i]->op->block.its->runs)
            return CUDA_ERROR_NOT_SUPPORTED;
    sg_blocks_run(graph, true);
    return CUDA_SUCCESS;
}

void sg_blocks_run(CUgraph graph, bool runs)
{
    for (size_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            graph->nodes[i]->op->block.its->runs = runs;
}

/* ---- nodes ---- */
static CUresult keep_access(struct sg_block *block, const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    if (!p->accessDescCount)
        return CUDA_SUCCESS;
    for (size_t i = 0; i < p->accessDescCount; i++)
        if (p->accessDescs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !sg_device(p->accessDescs[i].location.id))
            return CUDA_ERROR_INVALID_VALUE;
    CUmemAccessDesc *own = calloc(p->accessDescCount, sizeof(*own));
    if (!own)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(own, p->accessDescs, p->accessDescCount * sizeof(*own));
    block->params.accessDescs = own;
    block->params.accessDescCount = p->accessDescCount;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    SG_LOCKED;
    CUcontext context;
    CUdeviceptr address;
    struct sg_op *op;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    SG_TRY(sg_context_current(&context));
    if (!p || p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (p->accessDescCount && !p->accessDescs) || p->accessDescCount > SG_MAX_DEVICES)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_device *device = sg_device(p->poolProps.location.id);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (p->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    SG_TRY(sg_block_alloc(context, device, p->bytesize, &address, &op));
    op->block.its->params.poolProps = p->poolProps;
    CUresult result = keep_access(op->block.its, p);
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    SG_TRY(sg_graph_add(hGraph, op, CU_GRAPH_NODE_TYPE_MEM_ALLOC, dependencies, numDependencies,
                        phGraphNode));
    p->dptr = address;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                               const CUgraphNode *dependencies, size_t numDependencies,
                               CUdeviceptr dptr)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_op *op;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_block_free_captured(context, hGraph, dptr, &op));
    return sg_graph_add(hGraph, op, CU_GRAPH_NODE_TYPE_MEM_FREE, dependencies, numDependencies,
                        phGraphNode);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    SG_NODE_CHECK(hNode);
    if (hNode->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !params_out)
        return CUDA_ERROR_INVALID_VALUE;
    *params_out = hNode->op->block.its->params;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    SG_NODE_CHECK(hNode);
    if (hNode->type != CU_GRAPH_NODE_TYPE_MEM_FREE || !dptr_out)
        return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = hNode->op->block.its->address;
    return CUDA_SUCCESS;
}

/* ---- a device's ---- */
CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *of = sg_device(device);
    if (!of)
        return CUDA_ERROR_INVALID_DEVICE;
    gather(of);
    sg_time_memory(of, -(int64_t)of->graph_idle);
    count(&of->graph_reserved, -(int64_t)of->graph_idle);
    of->graph_idle = 0;
    return CUDA_SUCCESS;
}

static struct sg_graph_use *use_of(CUdevice device, CUgraphMem_attribute attribute)
{
    struct sg_device *of = sg_device(device);
    bool used = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ||
                attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
    return !of ? NULL : used ? &of->graph_used : &of->graph_reserved;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    SG_LOCKED;
    SG_READY();
    const struct sg_graph_use *use = use_of(device, attr);
    if (!use)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || (unsigned)attr > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    bool high = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ||
                attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    *(cuuint64_t *)value = high ? use->high : use->now;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    SG_LOCKED;
    SG_READY();
    struct sg_graph_use *use = use_of(device, attr);
    if (!use)
        return CUDA_ERROR_INVALID_DEVICE;
    if ((attr != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH && attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) ||
        !value || *(const cuuint64_t *)value)
        return CUDA_ERROR_INVALID_VALUE;
    use->high = use->now;
    return CUDA_SUCCESS;
}
