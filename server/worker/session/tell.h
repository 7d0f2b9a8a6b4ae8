/*
 * Words for the server that started this worker, on what was its stdout: `joined` when the
 * client has greeted, `leaving` when the session is over.
 */
#ifndef GPW_TELL_H
#define GPW_TELL_H

#include "session.h"

/* Before stdout becomes the kernels'. */
int gpw_tell_open(struct gpw_session *s);
void gpw_tell(const struct gpw_session *s, const char *word);

#endif
