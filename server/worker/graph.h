/* Nodes that stand in the client's graphs and are not the application's. */
#ifndef GPW_GRAPH_H
#define GPW_GRAPH_H

#include "session.h"

/* The node captured last into `stream` is in no list that the client asks for. */
CUresult gpw_graph_hide_last(struct gpw_session *s, CUstream stream);

#endif
