/* What nodes of graphs do: as they were given it, or as the worker says. */
#include <stdlib.h>
#include <string.h>

#include "gpc_wire.h"
#include "graph_node.h"
#include "handle.h"
#include "module.h"
#include "shared.h"

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
    gpc_graphs_lock();
    struct gpc_node *node = told_place(id);
    if (node) {
        told_function(node, (CUfunction)function);
        node->work.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = (CUfunction)function,
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

/* Of a node that the worker alone knows. */
static CUresult ask(uint16_t op, CUgraphNode id, CUgraphNodeType type, void *to, size_t size)
{
    CUDA_MEMSET_NODE_PARAMS p;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        return ask_kernel(id, to, size);
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return gpc_node_ask_alloc(id, to);
    if (type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return gpc_wire_gp_node_free_told(id, to);
    if (type != CU_GRAPH_NODE_TYPE_MEMSET)
        return gpc_refuse_because(op, "what a node does that a capture or a clone has made");
    CUresult r = gpc_wire_gp_node_memset_told(id, &p);
    if (r == CUDA_SUCCESS)
        memcpy(to, &p, size);
    return r;
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
