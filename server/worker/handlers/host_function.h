/* Host functions that streams of this session have still to pass. */
#ifndef GPW_HOST_FUNCTION_H
#define GPW_HOST_FUNCTION_H

#include <stdbool.h>

/* Whether any stream comes to one, those in running graphs included. */
bool gpw_host_functions_pending(void);

#endif
