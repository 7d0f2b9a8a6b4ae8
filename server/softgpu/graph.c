/* Graphs as structure: nodes, edges, copies. graph_node.c makes the typed nodes. */
#include "softgpu.h"

#include <stdio.h>

CUgraph sg_graph_new(void)
{
    CUgraph graph = calloc(1, sizeof(*graph));
    if (graph && !sg_handle_add(graph, SG_GRAPH)) {
        free(graph);
        return NULL;
    }
    return graph;
}

static void node_free(CUgraphNode node)
{
    sg_handle_remove(node);
    if (node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        sg_condition_node_gone(node);
    if (node->op)
        sg_block_node_gone(node->op, node->graph);
    sg_op_unref(node->op);
    if (node->child)
        sg_graph_free(node->child);
    free(node->depends);
    free(node);
}

void sg_graph_free(CUgraph graph)
{
    for (size_t i = 0; i < graph->node_count; i++)
        node_free(graph->nodes[i]);
    sg_handle_remove(graph);
    sg_conditions_of_graph_gone(graph);
    sg_kept_release(&graph->kept);
    free(graph->nodes);
    free(graph);
}

static bool is_edge(const struct sg_edge *edge, CUgraphNode from, const CUgraphEdgeData *data)
{
    return edge->node == from && (!data || memcmp(&edge->data, data, sizeof(*data)) == 0);
}

bool sg_graph_linked(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data)
{
    for (size_t i = 0; i < to->depend_count; i++)
        if (is_edge(&to->depends[i], from, data))
            return true;
    return false;
}

CUresult sg_graph_link(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data)
{
    const CUgraphEdgeData own = data ? *data : (CUgraphEdgeData){0};
    if (sg_graph_linked(from, to, &own))
        return CUDA_SUCCESS;
    struct sg_edge *more = realloc(to->depends, (to->depend_count + 1) * sizeof(*more));
    if (!more)
        return CUDA_ERROR_OUT_OF_MEMORY;
    to->depends = more;
    to->depends[to->depend_count++] = (struct sg_edge){from, own};
    return CUDA_SUCCESS;
}

void sg_graph_unlink(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data)
{
    size_t keep = 0;
    for (size_t i = 0; i < to->depend_count; i++)
        if (!is_edge(&to->depends[i], from, data))
            to->depends[keep++] = to->depends[i];
    to->depend_count = keep;
}

bool sg_edge_is_legal(CUgraphNode from, const CUgraphEdgeData *data)
{
    static const unsigned char none[sizeof(data->reserved)];
    if (!data)
        return true;
    if (data->type > CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC || data->to_port ||
        data->from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER ||
        memcmp(data->reserved, none, sizeof(none)) != 0)
        return false;
    return from->type == CU_GRAPH_NODE_TYPE_KERNEL || (!data->type && !data->from_port);
}

CUresult sg_edges_check(CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *data,
                        size_t count)
{
    if (count && !from)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!sg_handle_is(from[i], SG_NODE) || from[i]->graph != graph ||
            !sg_edge_is_legal(from[i], data ? &data[i] : NULL))
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t k = 0; k < i; k++)
            if (from[k] == from[i])
                return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult append(CUgraph graph, CUgraphNode node)
{
    if (graph->node_count == graph->node_room) {
        size_t room = graph->node_room ? graph->node_room * 2 : 16;
        CUgraphNode *more = realloc(graph->nodes, room * sizeof(*more));
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->nodes = more;
        graph->node_room = room;
    }
    if (!sg_handle_add(node, SG_NODE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->nodes[graph->node_count++] = node;
    return CUDA_SUCCESS;
}

CUresult sg_graph_add(CUgraph graph, struct sg_op *op, CUgraphNodeType type,
                      const CUgraphNode *depends, size_t count, CUgraphNode *out)
{
    CUresult result = CUDA_SUCCESS;
    CUgraphNode node = calloc(1, sizeof(*node));
    if (!node) {
        sg_op_unref(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->graph = graph;
    node->op = op;
    node->type = type;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = sg_graph_link(depends[i], node, NULL);
    if (result == CUDA_SUCCESS)
        result = append(graph, node);
    if (result != CUDA_SUCCESS) {
        node_free(node);
        return result;
    }
    *out = node;
    return CUDA_SUCCESS;
}

void sg_node_replace(CUgraphNode node, struct sg_op *op)
{
    sg_op_unref(node->op);
    node->op = op;
}

void sg_graph_drop(CUgraphNode node)
{
    CUgraph graph = node->graph;
    size_t keep = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        sg_graph_unlink(node, graph->nodes[i], NULL);
        if (graph->nodes[i] != node)
            graph->nodes[keep++] = graph->nodes[i];
    }
    graph->node_count = keep;
    node_free(node);
}

static CUresult copy_nodes(CUgraph graph, CUgraph copy)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode from = graph->nodes[i], to;
        SG_TRY(sg_graph_add(copy, from->op ? sg_op_ref(from->op) : NULL, from->type, NULL, 0, &to));
        to->origin = from;
        from->order = i;
        if (from->child)
            SG_TRY(sg_graph_copy(from->child, &to->child));
        if (to->child)
            to->child->owned = true;
        if (from->body_count)
            SG_TRY(sg_condition_copy(from, to));
    }
    for (size_t i = 0; i < graph->node_count; i++)
        for (size_t k = 0; k < graph->nodes[i]->depend_count; k++) {
            const struct sg_edge *edge = &graph->nodes[i]->depends[k];
            SG_TRY(sg_graph_link(copy->nodes[edge->node->order], copy->nodes[i], &edge->data));
        }
    return CUDA_SUCCESS;
}

CUresult sg_graph_copy(CUgraph graph, CUgraph *out)
{
    CUgraph copy = sg_graph_new();
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    copy->origin = graph;
    CUresult result = copy_nodes(graph, copy);
    if (result == CUDA_SUCCESS)
        result = sg_kept_copy(&copy->kept, graph->kept);
    if (result != CUDA_SUCCESS) {
        sg_graph_free(copy);
        return result;
    }
    *out = copy;
    return CUDA_SUCCESS;
}

/* A node may move to place `done` when all it depends on lies before it; order is
 * 1 for nodes already placed. Quadratic at worst, linear for captured graphs. */
CUresult sg_graph_sort(CUgraph graph)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        graph->nodes[i]->order = 0;
        if (graph->nodes[i]->child)
            SG_TRY(sg_graph_sort(graph->nodes[i]->child));
        for (unsigned k = 0; k < graph->nodes[i]->body_count; k++)
            SG_TRY(sg_graph_sort(graph->nodes[i]->bodies[k]));
    }
    for (size_t done = 0; done < graph->node_count; done++) {
        size_t pick = done;
        for (; pick < graph->node_count; pick++) {
            CUgraphNode node = graph->nodes[pick];
            size_t ready = 0;
            while (ready < node->depend_count && node->depends[ready].node->order)
                ready++;
            if (ready == node->depend_count)
                break;
        }
        if (pick == graph->node_count)
            return CUDA_ERROR_INVALID_VALUE;
        CUgraphNode node = graph->nodes[pick];
        memmove(graph->nodes + done + 1, graph->nodes + done, (pick - done) * sizeof(node));
        graph->nodes[done] = node;
        node->order = 1;
    }
    return CUDA_SUCCESS;
}

/* ---- entry points ---- */
CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    SG_LOCKED;
    SG_READY();
    if (!phGraph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = sg_graph_new();
    return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    SG_GRAPH_CHECK(hGraph);
    if (hGraph->owned)
        return CUDA_ERROR_INVALID_VALUE;
    sg_graph_free(hGraph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    SG_GRAPH_CHECK(originalGraph);
    if (!phGraphClone)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_graph_has_memory(originalGraph) ? CUDA_ERROR_NOT_SUPPORTED
                                              : sg_graph_copy(originalGraph, phGraphClone);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph)
{
    SG_GRAPH_CHECK(hClonedGraph);
    if (!phNode)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < hClonedGraph->node_count; i++)
        if (hClonedGraph->nodes[i]->origin == hOriginalNode) {
            *phNode = hClonedGraph->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    SG_NODE_CHECK(hNode);
    CUgraph graph = hNode->graph;
    if ((graph->owned && !graph->is_body) || graph->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_graph_has_memory(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (hNode->type == CU_GRAPH_NODE_TYPE_KERNEL && hNode->op->kernel.updates)
        return CUDA_ERROR_INVALID_VALUE;
    sg_graph_drop(hNode);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    SG_NODE_CHECK(hNode);
    if (!type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = hNode->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
    (void)flags;
    SG_GRAPH_CHECK(hGraph);
    FILE *file = path ? fopen(path, "we") : NULL;
    if (!file)
        return path ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
    fprintf(file, "digraph graph_1 {\n");
    for (size_t i = 0; i < hGraph->node_count; i++) {
        hGraph->nodes[i]->order = i;
        fprintf(file, "  node_%zu [label=\"%zu type %d\"];\n", i, i, (int)hGraph->nodes[i]->type);
    }
    for (size_t i = 0; i < hGraph->node_count; i++)
        for (size_t k = 0; k < hGraph->nodes[i]->depend_count; k++)
            fprintf(file, "  node_%zu -> node_%zu;\n", hGraph->nodes[i]->depends[k].node->order, i);
    fprintf(file, "}\n");
    return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
