/* Graphs as drawings. The client writes the file: it is the application's, not the GPU host's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "graph_node.h"
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

/* --- what a node does, in its label ----------------------------------------------------------- */

static void draw_name(FILE *file, const CUDA_KERNEL_NODE_PARAMS *p)
{
    const struct gpc_kernel *k = gpc_kernel_of(p->func ? p->func : (CUfunction)(void *)p->kern);
    fprintf(file, "\\n%s\\n%ux%ux%u of %ux%ux%u", k && k->name ? k->name : "", p->gridDimX,
            p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ);
}

static void draw_kernel(FILE *file, const union gpc_node_work *w)
{
    const CUDA_KERNEL_NODE_PARAMS *p = &w->kernel;
    fprintf(file, "\\nfunction %p, shared memory %u", p->func ? (void *)p->func : (void *)p->kern,
            p->sharedMemBytes);
}

static void draw_end(FILE *file, const char *what, CUmemorytype type, const void *host,
                     CUdeviceptr at, CUarray array)
{
    const void *where = type == CU_MEMORYTYPE_HOST    ? host
                        : type == CU_MEMORYTYPE_ARRAY ? (const void *)array
                                                      : (const void *)(uintptr_t)at;
    fprintf(file, "\\n%s %s %p", what,
            type == CU_MEMORYTYPE_HOST    ? "host"
            : type == CU_MEMORYTYPE_ARRAY ? "array"
                                          : "device",
            where);
}

static void draw_copy(FILE *file, const union gpc_node_work *w)
{
    const CUDA_MEMCPY3D *p = &w->copy;
    draw_end(file, "from", p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray);
    fprintf(file, " + %zu, %zu, %zu, pitch %zu", p->srcXInBytes, p->srcY, p->srcZ, p->srcPitch);
    draw_end(file, "to", p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray);
    fprintf(file, " + %zu, %zu, %zu, pitch %zu", p->dstXInBytes, p->dstY, p->dstZ, p->dstPitch);
    fprintf(file, "\\n%zux%zux%zu", p->WidthInBytes, p->Height, p->Depth);
}

static void draw_memset(FILE *file, const union gpc_node_work *w)
{
    const CUDA_MEMSET_NODE_PARAMS *p = &w->memset;
    fprintf(file, "\\n%#llx, pitch %zu\\n%zux%zu of %u bytes: %#x", p->dst, p->pitch, p->width,
            p->height, p->elementSize, p->value);
}

static void draw_host(FILE *file, const union gpc_node_work *w)
{
    void *function;
    memcpy(&function, &w->host.fn, sizeof function);
    fprintf(file, "\\nfunction %p of %p", function, w->host.userData);
}

static void draw_event(FILE *file, const union gpc_node_work *w)
{
    fprintf(file, "\\nevent %p", (void *)w->event);
}

static void draw_alloc(FILE *file, const union gpc_node_work *w)
{
    fprintf(file, "\\n%#llx: %zu bytes", w->alloc.dptr, w->alloc.bytesize);
}

static void draw_freed(FILE *file, const union gpc_node_work *w)
{
    fprintf(file, "\\n%#llx", w->freed);
}

static void draw_batch(FILE *file, const union gpc_node_work *w)
{
    fprintf(file, "\\n%u operations", w->batch.count);
}

#define OF(member) sizeof(((union gpc_node_work *)NULL)->member)

/* By type: the flag that asks for it, and the bytes that cuGraph…NodeGetParams gives. */
static const struct {
    unsigned flag;
    size_t size;
    void (*draw)(FILE *file, const union gpc_node_work *work);
} works[] = {
    [CU_GRAPH_NODE_TYPE_KERNEL] = {CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS, OF(kernel),
                                   draw_kernel},
    [CU_GRAPH_NODE_TYPE_MEMCPY] = {CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS, OF(copy),
                                   draw_copy},
    [CU_GRAPH_NODE_TYPE_MEMSET] = {CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS, OF(memset),
                                   draw_memset},
    [CU_GRAPH_NODE_TYPE_HOST] = {CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS, OF(host), draw_host},
    [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = {CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS, OF(event),
                                       draw_event},
    [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = {CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS, OF(event),
                                         draw_event},
    [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = {CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS, OF(alloc),
                                      draw_alloc},
    [CU_GRAPH_NODE_TYPE_MEM_FREE] = {CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS, OF(freed),
                                     draw_freed},
    [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = {CU_GRAPH_DEBUG_DOT_FLAGS_BATCH_MEM_OP_NODE_PARAMS,
                                         OF(batch), draw_batch},
};

static bool asked(unsigned flags, unsigned flag)
{
    return flag && flags & (flag | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE);
}

/* Of a captured launch as well, which is asked for. */
static void draw_launch(FILE *file, CUgraphNode id)
{
    union gpc_node_work work;
    if (gpc_node_get(GP_OP_cuGraphDebugDotPrint, id, CU_GRAPH_NODE_TYPE_KERNEL, &work,
                     OF(kernel)) == CUDA_SUCCESS)
        draw_name(file, &work.kernel);
}

/* What is not told, such as copies of captured host memory, is left out. */
static void draw_work(FILE *file, CUgraphNode id, CUgraphNodeType type, unsigned flags)
{
    union gpc_node_work work;
    size_t known = sizeof works / sizeof works[0];
    if ((size_t)type >= known || !asked(flags, works[type].flag))
        return;
    if (gpc_node_get(GP_OP_cuGraphDebugDotPrint, id, type, &work, works[type].size) == CUDA_SUCCESS)
        works[type].draw(file, &work);
}

static CUresult draw_node(FILE *file, CUgraphNode id, unsigned flags)
{
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    gpc_graphs_lock();
    const struct gpc_node *node = gpc_node_of(id);
    if (node)
        type = node->type;
    gpc_graphs_unlock();
    CUresult r = node ? CUDA_SUCCESS : gpc_wire_cuGraphNodeGetType(id, &type);
    if (r != CUDA_SUCCESS)
        return r;
    fprintf(file, "  \"%p\" [label=\"%s", (void *)id, type_name(type));
    if (asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES))
        fprintf(file, " %p", (void *)id);
    if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        draw_launch(file, id);
    draw_work(file, id, type, flags);
    fprintf(file, "\"];\n");
    return r;
}

/* --- the drawing ----------------------------------------------------------------------------- */

static CUresult draw_nodes(FILE *file, CUgraph graph, unsigned flags)
{
    size_t count = 0;
    CUresult r = gpc_graph_list(graph, false, NULL, &count);
    CUgraphNode *nodes = calloc(count + 1, sizeof *nodes);
    if (r == CUDA_SUCCESS && !nodes)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && count)
        r = gpc_graph_list(graph, false, nodes, &count);
    for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++)
        r = draw_node(file, nodes[i], flags);
    free(nodes);
    return r;
}

/* The ports say what of a kernel an edge waits for. */
static void draw_edge(FILE *file, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data,
                      unsigned flags)
{
    fprintf(file, "  \"%p\" -> \"%p\" [style=%s", (void *)from, (void *)to,
            data->type ? "dashed" : "solid");
    if (asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_EXTRA_TOPO_INFO))
        fprintf(file, ", label=\"%u to %u, type %u\"", data->from_port, data->to_port, data->type);
    fprintf(file, "];\n");
}

static CUresult draw_edges(FILE *file, CUgraph graph, unsigned flags)
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
        draw_edge(file, e.from[i], e.to[i], &e.data[i], flags);
    free(e.from);
    free(e.to);
    free(e.data);
    return r;
}

GPC_EXPORT CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
    CUresult r = gpc_enter(GP_OP_cuGraphDebugDotPrint, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!path || !gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)hGraph))
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "we");
    if (!file)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph graph_1 {\n");
    r = draw_nodes(file, hGraph, flags);
    if (r == CUDA_SUCCESS)
        r = draw_edges(file, hGraph, flags);
    fprintf(file, "}\n");
    if (fclose(file) != 0 && r == CUDA_SUCCESS)
        r = CUDA_ERROR_OPERATING_SYSTEM;
    return gpc_leave(r);
}
