/* Batches of memory operations: what the client says of each is checked before the driver sees it. */
#ifndef GPW_BATCH_H
#define GPW_BATCH_H

#include "session.h"

/* In a stream; `old`: by the driver's function of CUDA 8. */
CUresult gpw_batch(struct gpw_session *s, CUstream stream, uint32_t count,
                   const CUstreamBatchMemOpParams *list, uint32_t flags, bool old);
/* As a node of a graph, made or changed: as in graph_node.h. */
CUresult gpw_node_batch(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                        CUgraphNode node, uint32_t count, const CUstreamBatchMemOpParams *list);

#endif
