/*
 * What the driver keeps of the host's memory for graphs: a captured call is a node, with its
 * arguments, in the graph and again in what is instantiated of it. Estimated by the messages.
 */
#ifndef GPW_GRAPH_BUDGET_H
#define GPW_GRAPH_BUDGET_H

#include "session.h"

/* Before a message is dispatched. False: it is refused, and the session ended. */
bool gpw_graphs_admit(struct gpw_session *s, const struct gp_header *h);
/* After it. */
void gpw_graphs_passed(struct gpw_session *s, const struct gp_header *h);

#endif
