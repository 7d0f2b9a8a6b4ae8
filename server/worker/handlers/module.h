/* Images as they arrive, until they are loaded. */
#ifndef GPW_MODULE_H
#define GPW_MODULE_H

#include "session.h"

/* 0 or -1. */
int gpw_modules_open(struct gpw_session *s);
void gpw_modules_close(struct gpw_session *s);

#endif
