/*
 * Which stream captures are under way, and which threads began them: for the worker's
 * driver all threads of this process are one, so what CUDA says about the thread that
 * captures is known here alone.
 */
#ifndef GPC_CAPTURES_H
#define GPC_CAPTURES_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct gpc_thread;

/* Before a capture is begun over there; one of these two, or the next, behind that. */
void gpc_captures_begin(void);
void gpc_captures_begin_not(void);
/* `stream` as it travels. Begun by the calling thread. */
CUresult gpc_captures_begun(uint64_t stream, CUstreamCaptureMode mode);
/* The same into a graph that is there; `id` is the capture's, of the stream's host. */
CUresult gpc_captures_begun_to(uint64_t stream, CUstreamCaptureMode mode, CUgraph graph,
                               uint64_t id);
/* The graph that the capture was begun to, NULL if it makes its own; by its first stream. */
CUgraph gpc_captures_graph(uint64_t stream);
/* The same by its number on a host; also one that the application was told of. NULL: neither. */
CUgraph gpc_captures_graph_of(uint64_t id, uint32_t session);
/* The application is told of a capture's graph: by the handle that it has, or by this one. */
CUgraph gpc_captures_hand(uint64_t id, CUgraph named);
/* Whether it was told of any on this host. */
bool gpc_captures_told(uint32_t session);
/* Its capture is over; or, of captures that all have gone with their streams, one by one until
 * NULL. */
void gpc_captures_forget(CUgraph graph);
CUgraph gpc_captures_lost(void);
void gpc_captures_ended(uint64_t stream);
/* Whether the calling thread may end it and gets its graph: only the one that began it, in
 * most modes. */
CUresult gpc_captures_may_end(uint64_t stream);
/* In which mode a call of this thread has to be made by the worker: relaxed unless CUDA
 * forbids the thread what might disturb a capture. */
CUstreamCaptureMode gpc_captures_mode(const struct gpc_thread *thread);

/* How often a capture was begun, or tried to. Who asks the worker something while none is active,
 * and finds the same before and behind that, was answered while nothing captured. */
uint64_t gpc_captures_sent_for(void);

#endif
