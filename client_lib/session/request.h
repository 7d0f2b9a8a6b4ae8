/*
 * What a program asks of the GPUs it gets: the environment, as fields of the hello.
 * Python does the same (pool/gpupool/request.py); both are held to
 * tests/python/request_vectors.toml, down to the words of the errors. Nothing here is a
 * limit: the server checks every field against the tenant's quota.
 */
#ifndef GPC_REQUEST_H
#define GPC_REQUEST_H

#include <stddef.h>

/* Write the lines "key: value\n" of the request. Their length, or -1 and `why`. */
int gpc_request_fields(char *out, size_t size, char *why, size_t why_size);

#endif
