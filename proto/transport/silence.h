/*
 * How long a peer's machine may be silent before its connection counts as lost. Who is there
 * is asked by TCP: its probes are answered by the peer's kernel, so a process that stands in
 * a debugger is there.
 */
#ifndef GP_TRANSPORT_SILENCE_H
#define GP_TRANSPORT_SILENCE_H

#include "transport/transport.h"

struct gp_silence {
    int seconds;
    int idle, interval; /* of TCP's probes, in seconds */
};

/* What GPUPOOL_SILENCE says. -EINVAL: no such number; `out` then has what is usual. */
int gp_silence_read(struct gp_silence *out, struct gp_error *err);

#endif
