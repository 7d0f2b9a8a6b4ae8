/*
 * How long a peer's machine may be silent before its connection counts as lost. Who is there
 * is asked by TCP: its probes are answered by the peer's kernel, so a process that stands in
 * a debugger is there.
 */
#ifndef GP_TRANSPORT_SILENCE_H
#define GP_TRANSPORT_SILENCE_H

#include <stdbool.h>

#include "transport/transport.h"

struct gp_silence {
    int seconds;
    int idle, interval; /* of TCP's probes, in seconds */
};

/* What GPUPOOL_SILENCE says. -EINVAL: no such number; `out` then has what is usual. */
int gp_silence_read(struct gp_silence *out, struct gp_error *err);
/* Have TCP ask the peer's kernel of this connection, or of those that a listener takes. */
void gp_silence_set(int fd, const struct gp_silence *silence);
/*
 * Something has been under way for a while, its machine has said nothing for too long, and
 * two questions of the kernel's are unanswered: segments sent again, or probes of a peer that
 * has no room. The time alone tells nothing: such a peer answers, but is asked ever more
 * rarely.
 */
bool gp_silence_is_over(int fd, int64_t silence_ms);

#endif
