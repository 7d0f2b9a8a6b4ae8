/* What nodes do that a capture or a clone has made: as the client names events, arrays and memory. */
#include <string.h>

#include "gpw_handlers.h"
#include "graph_node.h"
#include "handles.h"
#include "memory_internal.h"

CUresult gpw_node_event_told(struct gpw_session *s, CUgraphNode node, bool record, uint64_t *event)
{
    CUevent its = NULL;
    CUresult r = record ? s->driver->cuGraphEventRecordNodeGetEvent(node, &its)
                        : s->driver->cuGraphEventWaitNodeGetEvent(node, &its);
    *event = r == CUDA_SUCCESS ? gpw_handle_find(s, GP_HANDLE_EVENT, (uint64_t)its) : 0;
    return r || *event ? r : CUDA_ERROR_NOT_SUPPORTED; /* the client has ended it */
}

CUresult gpw_gp_node_batch_told(struct gpw_session *s, CUgraphNode node,
                                CUstreamBatchMemOpParams *list, uint32_t *n_list)
{
    CUDA_BATCH_MEM_OP_NODE_PARAMS p = {.count = 0};
    CUresult r = s->driver->cuGraphBatchMemOpNodeGetParams(node, &p);
    uint32_t room = *n_list / sizeof *list;
    *n_list = 0;
    if (r != CUDA_SUCCESS)
        return r;
    if (p.count > room || (p.count && !p.paramArray))
        return CUDA_ERROR_NOT_SUPPORTED;
    memcpy(list, p.paramArray, p.count * sizeof *list);
    for (unsigned i = 0; i < p.count; i++) /* what the driver keeps there is its own */
        if (list[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
            list[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            list[i].waitValue.alias = 0;
        else if (list[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
                 list[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
            list[i].writeValue.alias = 0;
    *n_list = (uint32_t)(p.count * sizeof *list);
    return CUDA_SUCCESS;
}

/* The client's address of pinned memory that both sides have; 0: it has none. */
static uint64_t shared_address(struct gpw_session *s, const void *real)
{
    for (const struct gpw_pinned *p = s->memory->pinned; p; p = p->next) {
        uint64_t begin = (uint64_t)(uintptr_t)p->share.addr;
        if ((uint64_t)(uintptr_t)real - begin < p->share.size)
            return p->address + ((uint64_t)(uintptr_t)real - begin);
    }
    return 0;
}

/* One end in the client's words, 0: it has none for it. */
static uint64_t end_told(struct gpw_session *s, CUmemorytype *type, uint64_t device,
                         const void *host, CUarray array)
{
    uint64_t shared;
    switch (*type) {
    case CU_MEMORYTYPE_ARRAY:
        return gpw_handle_find(s, GP_HANDLE_ARRAY, (uint64_t)array);
    case CU_MEMORYTYPE_HOST:
        return shared_address(s, host);
    case CU_MEMORYTYPE_UNIFIED:
        shared = shared_address(s, (const void *)(uintptr_t)device);
        *type = shared ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        device = shared ? shared : device;
        return shared || gpw_memory_reach(s, device, 1) ? device : 0;
    default:
        return gpw_memory_reach(s, device, 1) ? device : 0;
    }
}

CUresult gpw_noted_gp_node_copy_told(struct gpw_session *s, CUgraphNode node, CUDA_MEMCPY3D *copy)
{
    (void)node;
    CUDA_MEMCPY3D p = *copy;
    uint64_t from = end_told(s, &p.srcMemoryType, p.srcDevice, p.srcHost, p.srcArray);
    uint64_t to = end_told(s, &p.dstMemoryType, p.dstDevice, p.dstHost, p.dstArray);
    if (!from || !to)
        return CUDA_ERROR_NOT_SUPPORTED; /* a buffer of ours, or what was freed */
    p.srcDevice = from;
    p.dstDevice = to;
    p.srcHost = p.dstHost = p.reserved0 = p.reserved1 = NULL; /* nothing of this process */
    p.srcArray = p.dstArray = NULL;
    *copy = p;
    return CUDA_SUCCESS;
}
