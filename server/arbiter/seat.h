/*
 * A worker's seat at the board of one GPU: its page (page.h), and the bell that tells the
 * arbiter to look at it. What the page says is at hand costs a few loads; what has to be
 * asked costs a round trip to the arbiter, some microseconds.
 *
 * While there is no arbiter (the server starts a new one, which takes over the pages), or it does
 * not answer, a worker goes on: it may submit, and takes memory by what it was told last. What it
 * then has is in its page, where the arbiter finds it when it looks again.
 */
#ifndef GP_SEAT_H
#define GP_SEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "board.h"

struct gp_seat;

/* Take the seat of two descriptors that were handed in. 0 or a negative errno; -EPROTO: they
 * are no seat, or one of another release. */
int gp_seat_open(int page_fd, int bell_fd, struct gp_seat **seat);
/* Give back what this worker has of the board; the process ends then. */
void gp_seat_leave(struct gp_seat *s);
void gp_seat_close(struct gp_seat *s);

/* Memory (seat_memory.c). Take it before the driver is asked; false: over the limit. Mostly it
 * costs no question, since the arbiter has granted some ahead; giving back costs none ever. */
bool gp_seat_memory_take(struct gp_seat *s, uint64_t bytes);
/* Charge what is taken already, over the limit or not. */
void gp_seat_memory_charge(struct gp_seat *s, uint64_t bytes);
void gp_seat_memory_give(struct gp_seat *s, uint64_t bytes);
/* Whether so much may be taken. */
bool gp_seat_memory_fits(struct gp_seat *s, uint64_t bytes);
/* By how much the tenant has more than its limit; 0: it has not. */
uint64_t gp_seat_memory_over(struct gp_seat *s);
/* Bytes that this worker's tenant may still take, and its limit. The former is asked for where
 * the tenant has other workers. */
uint64_t gp_seat_memory_left(struct gp_seat *s);
uint64_t gp_seat_memory_limit(struct gp_seat *s);

/* The gate. True: the worker may submit now, and counts as busy until gp_seat_idle.
 * False: wait (gp_seat_wait) and ask again; meanwhile it counts as one that waits. */
bool gp_seat_enter(struct gp_seat *s);
/* Whether it does count as one. */
bool gp_seat_waits(const struct gp_seat *s);
/* Whether the tenant has just got the turn: the GPU has to change over to it, and only
 * gp_seat_started says when it has. What that took is charged to nobody. */
bool gp_seat_fresh(struct gp_seat *s);
void gp_seat_started(struct gp_seat *s);
/* Whether a busy worker's turn is over: it submits nothing more, lets its work run out and
 * says gp_seat_idle. Costs a few loads, as gp_seat_contended does. */
bool gp_seat_must_yield(struct gp_seat *s);
/* Whether work may go on without asking: there are no turns, or it is this worker's and nobody waits
 * for it to end. From any thread. */
bool gp_seat_goes_on(struct gp_seat *s);
/* Whether somebody waits for this worker to end, so that it should submit little ahead. */
bool gp_seat_contended(struct gp_seat *s);
/* The worker has begun this collective, in which it waits for ranks in other workers. */
void gp_seat_collective(struct gp_seat *s, uint32_t communicator, uint32_t number);
/* Whether another worker of its tenant has begun one of the same communicator that this one has
 * still to begin. */
bool gp_seat_behind(const struct gp_seat *s);
/* It has let work in whose end it does not see: that may go on when its turn is over. */
void gp_seat_lost_sight(struct gp_seat *s);
/* The worker has had nothing on the GPU for `idle_ns`. */
void gp_seat_idle(struct gp_seat *s, uint64_t idle_ns);
/* True: this copy to or from the host may be submitted. False: ask again in a millisecond. */
bool gp_seat_copy(struct gp_seat *s, enum gp_board_way way, uint64_t bytes);
/* Sleep until the turn may have come, at most `timeout_us`. */
void gp_seat_wait(struct gp_seat *s, int64_t timeout_us);
void gp_seat_count(struct gp_seat *s, uint64_t launches, uint64_t bytes);
/* What the worker has of the host's memory: to be shown, nothing is refused for it here. */
void gp_seat_host_set(struct gp_seat *s, uint64_t bytes);
/* The time slice that its channel groups should have now; 0: the driver's own. */
uint64_t gp_seat_slice_us(struct gp_seat *s);

#endif
