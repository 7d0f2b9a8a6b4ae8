/* What the GPU does for this session, when the client has asked for records of it. */
#ifndef GPW_ACTIVITY_H
#define GPW_ACTIVITY_H

#include "session.h"

/* From the loop's idle step: bring what is complete, so that little is lost with the session. */
void gpw_activity_bring(struct gpw_session *s);

#endif
