/* What nodes of graphs do: as they were given it, or as the worker says. */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "graph_node.h"
#include "handle.h"
#include "host_function.h"
#include "module.h"
#include "session.h"
#include "shared.h"
#include "span.h"

/* Parameters that the worker has told are kept for whoever asked, until the node's place is
 * another one's, whose id is of a later generation: by index. */
static struct gpc_node **told;
static uint32_t told_room;

/* Under the graphs' lock. */
static struct gpc_node *told_place(CUgraphNode id)
{
    uint32_t at = gp_handle_index((uint64_t)id) * GP_SESSIONS_MAX + gp_handle_session((uint64_t)id);
    if (gp_handle_index((uint64_t)id) >= GP_HANDLE_INDEX_MAX)
        return NULL;
    if (at >= told_room) {
        uint32_t room = told_room ? told_room : 64 * GP_SESSIONS_MAX;
        while (room <= at)
            room *= 2;
        struct gpc_node **more = realloc(told, room * sizeof *more);
        if (!more)
            return NULL;
        memset(more + told_room, 0, (room - told_room) * sizeof *more);
        told = more;
        told_room = room;
    }
    if (told[at] && told[at]->id != id) { /* of a node that is gone */
        gpc_node_free(told[at]);
        told[at] = NULL;
    }
    if (!told[at] && (told[at] = gpc_node_new()))
        told[at]->id = id;
    return told[at];
}

/* What was given of another function has another layout. */
static void told_function(struct gpc_node *node, CUfunction f)
{
    if (node->work.kernel.func == f)
        return;
    free(node->parameters);
    node->parameters = NULL;
}

static CUresult ask_kernel(CUgraphNode id, CUDA_KERNEL_NODE_PARAMS *p, size_t size)
{
    unsigned char packed[GP_PARAMETER_BYTES_MAX];
    uint32_t shape[7], got_shape = 0, got = 0;
    uint64_t function;
    CUresult r = gpc_wire_gp_node_kernel_told(id, &function, shape, packed, &got_shape, &got);
    struct gpc_kernel *k = r ? NULL : gpc_kernel_of((CUfunction)function);
    if (r == CUDA_SUCCESS && k)
        r = gpc_attributes_parameters(k);
    if (r != CUDA_SUCCESS)
        return r;
    if (!k || got != k->bytes || got_shape != sizeof shape)
        return CUDA_ERROR_UNKNOWN;
    CUfunction f = (CUfunction)function;
    const struct gpc_kernel *kernel = k->kernel ? k->kernel : k->image->is_library ? k : NULL;
    if (kernel == k && (r = gpc_kernel_function(k, &f)) != CUDA_SUCCESS)
        return r;
    gpc_graphs_lock();
    struct gpc_node *node = told_place(id);
    if (node) {
        told_function(node, f);
        node->work.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = f,
                                                      .kern = kernel ? (CUkernel)kernel->handle
                                                                     : NULL,
                                                      .gridDimX = shape[0],
                                                      .gridDimY = shape[1],
                                                      .gridDimZ = shape[2],
                                                      .blockDimX = shape[3],
                                                      .blockDimY = shape[4],
                                                      .blockDimZ = shape[5],
                                                      .sharedMemBytes = shape[6]};
    }
    r = node ? gpc_node_keep_parameters(node, k, packed) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        memcpy(p, &node->work.kernel, size);
    gpc_graphs_unlock();
    return r;
}

static CUresult ask_event(CUgraphNode id, bool record, CUevent *to)
{
    uint64_t event;
    CUresult r = record ? gpc_wire_gp_node_record_told(id, &event)
                        : gpc_wire_gp_node_wait_told(id, &event);
    if (r == CUDA_SUCCESS && !gpc_handle_live(GP_HANDLE_EVENT, event))
        r = CUDA_ERROR_UNKNOWN;
    if (r == CUDA_SUCCESS)
        *to = (CUevent)event;
    return r;
}

/* One that leads nowhere (memset.c), by the address that it was given. */
static CUresult ask_set(CUgraphNode id, CUDA_MEMSET_NODE_PARAMS *p)
{
    CUresult r = gpc_wire_gp_node_memset_told(id, p);
    if (r == CUDA_SUCCESS && p->dst >= GP_NOWHERE)
        p->dst -= GP_NOWHERE;
    return r;
}

static CUresult ask_host(CUgraphNode id, CUDA_HOST_NODE_PARAMS *to)
{
    CUDA_HOST_NODE_PARAMS named;
    CUresult r = gpc_wire_gp_node_host_told(id, &named);
    if (r == CUDA_SUCCESS && !gpc_host_function_told(id, (uint64_t)(uintptr_t)named.userData, to))
        r = CUDA_ERROR_UNKNOWN;
    return r;
}

/* The list is kept as parameters are. */
static CUresult ask_batch(CUgraphNode id, CUDA_BATCH_MEM_OP_NODE_PARAMS *to)
{
    CUstreamBatchMemOpParams list[GP_MEMORY_OPERATIONS_MAX];
    uint32_t got = 0;
    CUresult r = gpc_wire_gp_node_batch_told(id, list, &got);
    if (r != CUDA_SUCCESS)
        return r;
    CUstreamBatchMemOpParams *own = malloc(got ? got : 1);
    if (!own)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(own, list, got);
    gpc_graphs_lock();
    struct gpc_node *node = told_place(id);
    if (node) {
        free(node->operations);
        node->operations = own;
        *to = (CUDA_BATCH_MEM_OP_NODE_PARAMS){
            .ctx = gpc_current(), .count = got / sizeof *own, .paramArray = own};
    }
    gpc_graphs_unlock();
    if (!node)
        free(own);
    return node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The worker tells both ends as numbers; what each is, by its type. */
static bool end_of(CUmemorytype type, CUdeviceptr *at, void **host, CUarray *array)
{
    uint64_t end = *at;
    *at = 0;
    switch (type) {
    case CU_MEMORYTYPE_ARRAY:
        *array = (CUarray)end;
        return gpc_handle_live(GP_HANDLE_ARRAY, end);
    case CU_MEMORYTYPE_HOST:
        *host = (void *)(uintptr_t)end;
        return true;
    default:
        *at = end;
        return type == CU_MEMORYTYPE_DEVICE;
    }
}

static CUresult ask_copy(CUgraphNode id, CUDA_MEMCPY3D *to)
{
    CUDA_MEMCPY3D p;
    void *from = NULL;
    CUresult r = gpc_wire_gp_node_copy_told(id, &p);
    if (r != CUDA_SUCCESS)
        return r;
    p.srcArray = p.dstArray = NULL;
    p.dstHost = NULL;
    if (!end_of(p.srcMemoryType, &p.srcDevice, &from, &p.srcArray) ||
        !end_of(p.dstMemoryType, &p.dstDevice, &p.dstHost, &p.dstArray))
        return CUDA_ERROR_UNKNOWN;
    p.srcHost = from;
    *to = p;
    return r;
}

/* Of a node that the worker alone knows. */
static CUresult ask(uint16_t op, CUgraphNode id, CUgraphNodeType type, void *to, size_t size)
{
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return ask_kernel(id, to, size);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return ask_copy(id, to);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return ask_set(id, to);
    case CU_GRAPH_NODE_TYPE_HOST:
        return ask_host(id, to);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return ask_event(id, type == CU_GRAPH_NODE_TYPE_EVENT_RECORD, to);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return ask_batch(id, to);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return gpc_node_ask_alloc(id, to);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return gpc_wire_gp_node_free_told(id, to);
    default:
        return gpc_refuse_because(op, "what such a node does");
    }
}

CUresult gpc_node_get(uint16_t op, CUgraphNode id, CUgraphNodeType type, void *to, size_t size)
{
    if (!to || !gpc_handle_live(GP_HANDLE_GRAPH_NODE, (uint64_t)id))
        return CUDA_ERROR_INVALID_VALUE;
    gpc_graphs_lock();
    const struct gpc_node *node = gpc_node_of(id);
    CUresult r = node && node->type != type ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (node && r == CUDA_SUCCESS)
        memcpy(to, &node->work, size);
    gpc_graphs_unlock();
    return node ? r : ask(op, id, type, to, size);
}
