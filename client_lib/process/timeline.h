/*
 * GPUPOOL_TIMELINE=FILE: what the process did when, as a trace of events in JSON that
 * Perfetto and chrome://tracing open: calls, and within them the messages that were sent and
 * the waits; and what its GPUs did, where their hosts have CUPTI.
 *
 * A process takes a piece of the file at a time, blank at first, and writes each event into it
 * when the event is over: through a mapping, so that an event costs no system call and none is
 * lost however the process ends. Processes that have the variable in common (children, other
 * ranks) take pieces of the same file. The array of events stays without its closing bracket, as
 * the format allows.
 */
#ifndef GPC_TIMELINE_H
#define GPC_TIMELINE_H

#include <cuda.h>
#include <stdint.h>

#include "activity_record.h"

/* What there is no more of in one file, unless GPUPOOL_TIMELINE_BYTES says so. */
#define GPC_TIMELINE_BYTES ((uint64_t)256 << 20)

/* Each for an event that began at `began_ns` and is over now; where GPC_OBSERVED. */
void gpc_timeline_call(const char *name, uint64_t began_ns, CUresult result);
void gpc_timeline_message(uint16_t op, uint64_t seq, uint32_t bytes, uint64_t began_ns);
void gpc_timeline_wait(const char *what, uint64_t began_ns);
/* What a GPU did, on a track of its stream's. */
void gpc_timeline_activity(const struct gp_activity_record *r, const char *name);

#endif
