/* Nodes and edges of graphs: listed, added, removed. */
#include "softgpu.h"

/* Lists in CUDA's way: without an array the count, with one as many as fit and
 * the rest NULL. */
struct list {
    CUgraphNode *into, *also;
    CUgraphEdgeData *data;
    size_t room, count;
    bool lossy; /* an edge has data that nobody asked for */
};

static void put(struct list *list, CUgraphNode node, CUgraphNode second,
                const CUgraphEdgeData *data)
{
    const CUgraphEdgeData none = {0};
    size_t i = list->count++;
    if (!list->into || i >= list->room)
        return;
    list->into[i] = node;
    if (list->also)
        list->also[i] = second;
    if (list->data)
        list->data[i] = *data;
    else
        list->lossy |= memcmp(data, &none, sizeof(none)) != 0;
}

static CUresult list_end(const struct list *list, size_t *count)
{
    if (!list->into) {
        *count = list->count;
        return CUDA_SUCCESS;
    }
    if (list->lossy)
        return CUDA_ERROR_LOSSY_QUERY;
    for (size_t i = list->count; i < list->room; i++) {
        list->into[i] = NULL;
        if (list->also)
            list->also[i] = NULL;
    }
    *count = list->count < list->room ? list->count : list->room;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph graph, bool roots, CUgraphNode *nodes, size_t *count)
{
    const CUgraphEdgeData none = {0};
    SG_GRAPH_CHECK(graph);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {.into = nodes, .room = *count};
    for (size_t i = 0; i < graph->node_count; i++)
        if (!roots || !graph->nodes[i]->depend_count)
            put(&list, graph->nodes[i], NULL, &none);
    return list_end(&list, count);
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    return list_nodes(hGraph, false, nodes, numNodes);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    return list_nodes(hGraph, true, rootNodes, numRootNodes);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edgeData, size_t *numEdges)
{
    SG_GRAPH_CHECK(hGraph);
    if (!numEdges || !from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {from, to, edgeData, *numEdges, 0, false};
    for (size_t i = 0; i < hGraph->node_count; i++)
        for (size_t k = 0; k < hGraph->nodes[i]->depend_count; k++) {
            const struct sg_edge *edge = &hGraph->nodes[i]->depends[k];
            put(&list, edge->node, hGraph->nodes[i], &edge->data);
        }
    return list_end(&list, numEdges);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                       CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    SG_NODE_CHECK(hNode);
    if (!numDependencies)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {dependencies, NULL, edgeData, *numDependencies, 0, false};
    for (size_t i = 0; i < hNode->depend_count; i++)
        put(&list, hNode->depends[i].node, NULL, &hNode->depends[i].data);
    return list_end(&list, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                         CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
    SG_NODE_CHECK(hNode);
    if (!numDependentNodes)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {dependentNodes, NULL, edgeData, *numDependentNodes, 0, false};
    for (size_t i = 0; i < hNode->graph->node_count; i++) {
        CUgraphNode behind = hNode->graph->nodes[i];
        for (size_t k = 0; k < behind->depend_count; k++)
            if (behind->depends[k].node == hNode)
                put(&list, behind, NULL, &behind->depends[k].data);
    }
    return list_end(&list, numDependentNodes);
}

/* Edges to add must not be there, edges to remove must; whose data is not said, with any. */
static CUresult edges_check(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                            const CUgraphEdgeData *data, size_t count, bool there)
{
    const CUgraphEdgeData none = {0};
    if (count && (!from || !to))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const CUgraphEdgeData *own = data ? &data[i] : there ? NULL : &none;
        if (!sg_handle_is(from[i], SG_NODE) || !sg_handle_is(to[i], SG_NODE) ||
            from[i]->graph != graph || to[i]->graph != graph || from[i] == to[i] ||
            !sg_edge_is_legal(from[i], own) || sg_graph_linked(from[i], to[i], own) != there)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    SG_GRAPH_CHECK(hGraph);
    SG_TRY(edges_check(hGraph, from, to, edgeData, numDependencies, false));
    for (size_t i = 0; i < numDependencies; i++)
        SG_TRY(sg_graph_link(from[i], to[i], edgeData ? &edgeData[i] : NULL));
    return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                      const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                      size_t numDependencies)
{
    SG_GRAPH_CHECK(hGraph);
    if (sg_graph_has_memory(hGraph))
        return CUDA_ERROR_NOT_SUPPORTED;
    SG_TRY(edges_check(hGraph, from, to, edgeData, numDependencies, true));
    for (size_t i = 0; i < numDependencies; i++)
        sg_graph_unlink(from[i], to[i], edgeData ? &edgeData[i] : NULL);
    return CUDA_SUCCESS;
}

/* ---- the forms of CUDA 10 ---- */
CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                    size_t *numDependencies)
{
    return cuGraphNodeGetDependencies_v2(hNode, dependencies, NULL, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                      size_t *numDependentNodes)
{
    return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, NULL, numDependentNodes);
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t numDependencies)
{
    return cuGraphAddDependencies_v2(hGraph, from, to, NULL, numDependencies);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies)
{
    return cuGraphRemoveDependencies_v2(hGraph, from, to, NULL, numDependencies);
}
