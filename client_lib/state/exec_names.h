/*
 * Instantiated graphs that kernels launch. A kernel knows one by the driver's handle alone, so the
 * program has that one, and the client finds its own number by it.
 */
#ifndef GPC_EXEC_NAMES_H
#define GPC_EXEC_NAMES_H

#include <stdbool.h>
#include <stdint.h>

/* A live number has this name from now on; what had it before on the same host is gone. False for a
 * name that is none, could be a number, or is that of a live one on another host; or without
 * memory. */
bool gpc_exec_name(uint64_t id, uint64_t name);
/* The number of what a program names: itself, unless it is a name of a live one. */
uint64_t gpc_exec_number(uint64_t named);

#endif
