/* Graphs as drawings. The client writes the file: it is the application's, not the GPU host's. */
#include <stdio.h>
#include <stdlib.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "module.h"
#include "shared.h"

static const char *const type_names[] = {
    [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",
    [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
    [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",
    [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
    [CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH",
    [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
    [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "EVENT_WAIT",
    [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
    [CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL] = "EXT_SEMAS_SIGNAL",
    [CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT] = "EXT_SEMAS_WAIT",
    [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",
    [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
    [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
    [CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

static const char *type_name(CUgraphNodeType type)
{
    size_t known = sizeof type_names / sizeof type_names[0];
    return (size_t)type < known && type_names[type] ? type_names[type] : "UNKNOWN";
}

static void draw_kernel(FILE *file, const CUDA_KERNEL_NODE_PARAMS *p)
{
    CUfunction f = p->func ? p->func : (CUfunction)(void *)p->kern;
    const struct gpc_kernel *k = gpc_kernel_of(f);
    fprintf(file, "\\n%s\\n%ux%ux%u of %ux%ux%u", k && k->name ? k->name : "", p->gridDimX,
            p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ);
}

static CUresult draw_node(FILE *file, CUgraphNode id)
{
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUDA_KERNEL_NODE_PARAMS kernel = {0};
    gpc_graphs_lock();
    const struct gpc_node *node = gpc_node_of(id);
    if (node)
        type = node->type;
    if (node && type == CU_GRAPH_NODE_TYPE_KERNEL)
        kernel = node->work.kernel;
    gpc_graphs_unlock();
    CUresult r = node ? CUDA_SUCCESS : gpc_wire_cuGraphNodeGetType(id, &type);
    if (r != CUDA_SUCCESS)
        return r;
    fprintf(file, "  \"%p\" [label=\"%s", (void *)id, type_name(type));
    if (kernel.gridDimX)
        draw_kernel(file, &kernel);
    fprintf(file, "\"];\n");
    return r;
}

static CUresult draw_nodes(FILE *file, CUgraph graph)
{
    size_t count = 0;
    CUresult r = gpc_graph_list(graph, false, NULL, &count);
    CUgraphNode *nodes = calloc(count + 1, sizeof *nodes);
    if (r == CUDA_SUCCESS && !nodes)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && count)
        r = gpc_graph_list(graph, false, nodes, &count);
    for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++)
        r = draw_node(file, nodes[i]);
    free(nodes);
    return r;
}

static CUresult draw_edges(FILE *file, CUgraph graph)
{
    size_t count = 0;
    CUresult r = gpc_graph_edges(graph, &(struct gpc_edges){NULL, NULL, NULL}, &count);
    struct gpc_edges e = {calloc(count + 1, sizeof *e.from), calloc(count + 1, sizeof *e.to),
                          calloc(count + 1, sizeof *e.data)};
    if (r == CUDA_SUCCESS && (!e.from || !e.to || !e.data))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && count)
        r = gpc_graph_edges(graph, &e, &count);
    for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++)
        fprintf(file, "  \"%p\" -> \"%p\"%s;\n", (void *)e.from[i], (void *)e.to[i],
                e.data[i].type ? " [style=dashed]" : "");
    free(e.from);
    free(e.to);
    free(e.data);
    return r;
}

GPC_EXPORT CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
    (void)flags;
    CUresult r = gpc_enter(GP_OP_cuGraphDebugDotPrint, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!path || !gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)hGraph))
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "we");
    if (!file)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph graph_1 {\n");
    r = draw_nodes(file, hGraph);
    if (r == CUDA_SUCCESS)
        r = draw_edges(file, hGraph);
    fprintf(file, "}\n");
    if (fclose(file) != 0 && r == CUDA_SUCCESS)
        r = CUDA_ERROR_OPERATING_SYSTEM;
    return gpc_leave(r);
}
