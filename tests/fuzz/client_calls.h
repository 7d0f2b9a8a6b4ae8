/* Calls of the client library that are not generated (calls.h): what a caller promises of their
 * pointers is more than a type says. */
#ifndef FUZZ_CLIENT_CALLS_H
#define FUZZ_CLIENT_CALLS_H

#include "calls.h"

/* By numbers from here on. */
#define CLIENT_CALLS_FIRST 60000u
extern const struct call_entry client_calls[];
extern const unsigned client_call_count;

/* The contexts of both devices, a kernel, memory, a stream: what every program makes. */
CUresult client_calls_furnish(struct calls *c);

#endif
