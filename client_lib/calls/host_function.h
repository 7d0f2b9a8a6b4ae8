/* Host functions that streams have still to reach. */
#ifndef GPC_HOST_FUNCTION_H
#define GPC_HOST_FUNCTION_H

#include <cuda.h>
#include <stdbool.h>

struct gpc_route;
struct gpc_session;

/* How many are submitted and have not finished running. */
unsigned gpc_host_functions_outstanding(void);

/* Whether there have been any on the context's host. */
bool gpc_host_functions_used(CUcontext ctx);

/* Capture a function of the library's own into a graph. The application does not see
 * its node. `arg` is the graph's after success: `let_go` is called with it, on the same thread, when
 * no graph has the function any more. */
CUresult gpc_host_function_capture(struct gpc_route *on, CUstream stream, CUhostFn function,
                                   CUhostFn let_go, void *arg);

/* A function as a node: to make in a graph, or to change, in an instantiated graph if that is
 * given. `let_go`: as above, NULL for the application's. */
CUresult gpc_host_function_node(const CUDA_HOST_NODE_PARAMS *p, CUhostFn let_go, CUgraph graph,
                                CUgraphNode *made, CUgraphExec exec, CUgraphNode node);

/* What such a function is, by its name; false: there is none. */
bool gpc_host_function_told(CUgraphNode node, uint64_t cookie, CUDA_HOST_NODE_PARAMS *p);

/* A graph keeps something `count` times: `gone` is called once, with `arg`, when nothing on the GPU
 * host keeps it any more; `cookie` names it. Or the graph keeps it less often. */
CUresult gpc_graph_keeps(CUgraph graph, uint32_t count, CUhostFn gone, void *arg, uint64_t *cookie);

#endif
