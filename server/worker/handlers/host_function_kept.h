/* A host function, and how long a graph has it; for host_function.c and host_function_kept.c. */
#ifndef GPW_HOST_FUNCTION_KEPT_H
#define GPW_HOST_FUNCTION_KEPT_H

#include <pthread.h>

#include "session.h"

enum stage { WAITING, REACHED, TOLD, DONE };

struct host_function {
    struct gpw_wait wait;
    struct gpw_host_functions *all;
    uint64_t cookie;
    bool in_graph; /* comes again with every launch of the graph, until it is gone */
    bool always;   /* a callback, which is called after an error of the GPU's as well */
    bool lost;     /* such an error keeps the driver from it */
    bool aside;    /* no stream comes to it: the driver does when nothing keeps it any more */
    CUcontext context;
    enum stage stage; /* under `lock` */
    CUresult stream_result;
    bool gone;        /* of a graph: nothing of the driver's comes to it any more */
    bool abandoned;   /* the loop has let go: whoever is last frees */
    unsigned running; /* threads of the driver's that are inside */
    /* What a graph keeps: the driver's object, and how often that graph alone does. */
    CUuserObject object;
    uint64_t graph, graph_birth;
    uint32_t held;
    /* Or which node of an instantiated graph has it, and when that has let it go. */
    uint64_t exec, exec_birth, node;
    bool dropped;
    uint64_t dropped_in;
    struct host_function *next;
};

struct gpw_host_functions {
    struct gpw_session *session; /* for its budget, on any thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct host_function *list;
    bool in_graphs; /* some graph has had one */
    /* Launches of graphs that are under way, by the epoch in which they began: this one or the one
     * before, for the next begins when that has none any more. */
    uint64_t epoch;
    unsigned running[2];
};

/* Nothing of the driver's comes to it any more. On a thread of the driver's. */
void CUDA_CB gpw_function_gone(void *arg);

/* Before a graph has the function: it may be over with it at any time after that. */
void gpw_function_kept(struct gpw_session *s, struct host_function *f, CUgraph graph);
/* The driver would not take the function. */
void gpw_function_never_had(struct gpw_session *s, struct host_function *f);
/* Give it to a node of an instantiated graph, `graph` being the node's. */
CUresult gpw_function_of_exec(struct gpw_session *s, CUgraph graph, CUgraphExec exec,
                              CUgraphNode node, CUhostFn fn, struct host_function *f);
/* Look whether such a graph has let it go, and no launch can come to it any more. */
void gpw_exec_look(struct gpw_session *s, struct host_function *f);

#endif
