/* Linking under way. */
#ifndef GPW_LINK_H
#define GPW_LINK_H

#include "session.h"

/* Before the driver destroys the context: its linkings end. */
void gpw_links_context_ended(struct gpw_session *s, CUcontext context);

#endif
