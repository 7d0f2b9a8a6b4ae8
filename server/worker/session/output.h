/*
 * What kernels print. The driver writes it to this process's standard output,
 * which is a file in memory; it is taken from there to the client.
 */
#ifndef GPW_OUTPUT_H
#define GPW_OUTPUT_H

#include <stdint.h>
#include <sys/types.h>

#define GPW_OUTPUT_PIECE 65536
struct gpw_output {
    int file; /* not a pipe: the driver prints on the thread that would have to drain it */
    off_t taken;
    char piece[GPW_OUTPUT_PIECE];
};

/* Redirect standard output (after the `ready` line). 0 or -1. */
int gpw_output_open(struct gpw_output *o);
/* The next piece of text, 0 when there is none; valid until the next call. */
uint32_t gpw_output_take(struct gpw_output *o, const char **text);

/* What kernels print and nobody waits for does not grow without end: it is left out. */
void gpw_output_bound(struct gpw_output *o);

#endif
