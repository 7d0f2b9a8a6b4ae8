/*
 * The gate before the GPU. What a message puts there waits until it is this tenant's
 * turn on the board of the device (../arbiter/seat.h); answers, waits and everything
 * else go on meanwhile. Without boards the gate is open.
 */
#ifndef GPW_GATE_H
#define GPW_GATE_H

#include "place.h"
#include "session.h"

struct gp_seat;

/* Take the seat at the board of the session's device `ordinal`, of which the server has handed
 * in the page and the bell (../arbiter/seat.h). 0, or -1 with a log line. */
int gpw_gate_open(struct gpw_session *s, uint32_t ordinal, int page_fd, int bell_fd);
/* The seat at a device's board; NULL where there is none. */
struct gp_seat *gpw_gate_seat(struct gpw_session *s, uint32_t ordinal);
void gpw_gate_close(struct gpw_session *s);

/* Whether the message may be dispatched now, in its place. */
bool gpw_gate_admit(struct gpw_session *s, const struct gp_header *h,
                    const struct gpw_place *place);
/* It has been. */
void gpw_gate_passed(struct gpw_session *s, const struct gp_header *h,
                     const struct gpw_place *place);
/* What was let in comes to a stream of this context later, put there by a thread that is not ours:
 * until then it counts as work under way. Returns whose gate that is for gpw_gate_launched, which
 * says that it is there; without a stream: that is gone. */
int gpw_gate_launching(struct gpw_session *s, CUcontext context);
void gpw_gate_launched(struct gpw_session *s, int ordinal, CUcontext context,
                       const CUstream *stream);
/* The session begins this collective, in which other processes' ranks take part. */
void gpw_gate_collective(struct gpw_session *s, uint32_t communicator, uint32_t number);
/* A stream that is blocked may go on, to work that has been let in before: so it is again. */
bool gpw_gate_resume(struct gpw_session *s, CUcontext context, CUstream stream);
/* Look which work is over. Between messages; does not block. */
void gpw_gate_poll(struct gpw_session *s);
/* Sleep before a closed gate, at most `most_us`. */
void gpw_gate_wait(struct gpw_session *s, int64_t most_us);
/* How long the loop may sleep without a look at the gate, at most `most_us`. */
int64_t gpw_gate_patience(struct gpw_session *s, int64_t most_us);
/* Whether this session has work on any GPU. */
bool gpw_gate_busy(struct gpw_session *s);
/* Whether somebody waits for such work to end. */
bool gpw_gate_contended(struct gpw_session *s);
/* A few times a second: follow changed slices. */
void gpw_gate_tick(struct gpw_session *s);
/* A stream is about to be destroyed. */
void gpw_gate_stream_ending(struct gpw_session *s, const struct gp_header *h);
/* A context is about to end; its work is over. */
void gpw_gate_context_ended(struct gpw_session *s, CUcontext context);

#endif
