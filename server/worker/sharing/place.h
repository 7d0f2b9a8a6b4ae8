/*
 * Where a call is made. An explicit stream names the context, and with it the device,
 * whatever else is current: what is charged, limited and allocated for the call follows
 * that device. Found once, when a message is taken up, and made current until it is done.
 */
#ifndef GPW_PLACE_H
#define GPW_PLACE_H

#include "session.h"

struct gpw_place {
    CUcontext before;
    bool moved;
};

void gpw_place_enter(struct gpw_session *s, const struct gp_header *h, struct gpw_place *p);
void gpw_place_leave(struct gpw_session *s, struct gpw_place *p);
/* Whether there is a context for the call: without one nobody can be charged for it. */
bool gpw_place_known(struct gpw_session *s);
/* A stream or a context has ended: what its handle stood for is another's, or nobody's. */
void gpw_place_forget(struct gpw_session *s);

#endif
