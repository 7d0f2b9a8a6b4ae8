/*
 * What is charged for graphs. Of the host's memory: a captured call is a node, with its
 * arguments, in the graph and again in what is instantiated of it, as long as its message. Of
 * the GPU: a launch counts for the device of its stream, so a graph with work of another one,
 * which would be charged to nobody there, is not launched.
 */
#ifndef GPW_GRAPH_BUDGET_H
#define GPW_GRAPH_BUDGET_H

#include "session.h"

/* Before a message is dispatched. False: it is refused, and has its answer. */
bool gpw_graphs_admit(struct gpw_session *s, const struct gp_header *h);
/* After it. */
void gpw_graphs_passed(struct gpw_session *s, const struct gp_header *h);

/* The driver's node leaves its graph, which is charged for it no more; it has its id still. */
void gpw_graph_shrinks(struct gpw_session *s, uint64_t real);

/* The capture that ends with this message has put its work into a graph that was there. */
void gpw_graph_captured(struct gpw_session *s, uint64_t id);

/* A graph built by hand, or what is instantiated of one, by its id: it has work for the device
 * of the current context; it has work wherever another one has it. */
void gpw_graph_works_here(struct gpw_session *s, uint64_t id);
void gpw_graph_works_as(struct gpw_session *s, uint64_t id, uint64_t other);

#endif
