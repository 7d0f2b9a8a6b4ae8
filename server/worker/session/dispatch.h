/* The generated half of the worker: one message in, one call to the driver. */
#ifndef GPW_DISPATCH_H
#define GPW_DISPATCH_H

#include "session.h"

/* 0, or negative when the session is over. `h` is h->size readable bytes. */
int gpw_dispatch(struct gpw_session *s, const struct gp_header *h);

#endif
