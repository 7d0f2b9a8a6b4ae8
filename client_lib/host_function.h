/* Host functions that streams have still to reach. */
#ifndef GPC_HOST_FUNCTION_H
#define GPC_HOST_FUNCTION_H

/* How many are submitted and have not finished running. */
unsigned gpc_host_functions_outstanding(void);

#endif
