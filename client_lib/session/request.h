/*
 * What a program asks of the GPUs it gets: variables of its environment, whose texts the
 * question to a server carries as they stand. The server reads them
 * (pool/gpupool_common/request.py) and says what is wrong with them. Which these are says
 * pool/gpupool_common/request_variables.py.
 */
#ifndef GPC_REQUEST_H
#define GPC_REQUEST_H

#include <stddef.h>

/* Write the lines "key: value\n" of all that are set. Their length, or -1 and `why`. */
int gpc_request_fields(char *out, size_t size, char *why, size_t why_size);

#endif
