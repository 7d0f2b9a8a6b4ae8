/*
 * Where a call is made. An explicit stream names the context, and with it the device,
 * whatever else is current: what is charged, limited and allocated for the call follows
 * that device. Found once, when a message is taken up, made current until it is done, and
 * handed down: nobody asks the driver again.
 */
#ifndef GPW_PLACE_H
#define GPW_PLACE_H

#include "session.h"

struct gpw_place {
    CUcontext context; /* NULL: there is none */
    int ordinal;       /* of its device in the session; -1: none */
    CUcontext before;
    bool moved;
};

/* What puts no work on a GPU and names no stream has none. */
void gpw_place_enter(struct gpw_session *s, const struct gp_header *h, struct gpw_place *p);
void gpw_place_leave(struct gpw_session *s, struct gpw_place *p);
/* Whether what was entered last is where calls are made now; false while one is made that was not
 * entered. Returns what it was. */
bool gpw_place_trust(struct gpw_session *s, bool trusted);
/* Whether there is a context for the call: without one nobody can be charged for it. */
bool gpw_place_known(struct gpw_session *s);
/* A stream or a context has ended: what its handle stood for is another's, or nobody's. */
void gpw_place_forget(struct gpw_session *s);

#endif
