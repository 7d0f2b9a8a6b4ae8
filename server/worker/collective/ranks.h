/*
 * Ranks of other processes that have died. Ranks on one host reach each other over NVLink or shared
 * memory, where nothing breaks, so NCCL's kernels would wait for ever. The server knows when a
 * session is over: it is told of which communicators this one has ranks, by a key that all of
 * their ranks find by themselves, and says when another that had one of them is over
 * (gpupool_server/ranks.py). What then waits and comes no further is aborted.
 */
#ifndef GPW_RANKS_H
#define GPW_RANKS_H

#include "nccl.h"

/* The key of what is begun with this sealed unique id, or split off from another communicator, of
 * which its ranks name the same colour: all ranks of that make the same parts in the same order. */
void gpw_ranks_key(struct gp_communicator *c, const uint8_t *sealed);
void gpw_ranks_key_of_part(struct gp_communicator *c, struct gp_communicator *parent,
                           int32_t color);
/* Of what is left without some ranks, which do not take part and so count nothing. */
void gpw_ranks_key_of_rest(struct gp_communicator *c, const struct gp_communicator *parent,
                           const int32_t *excluded, uint32_t count);
/* Note whether this session has several of its ranks. */
void gpw_ranks_crowd(struct gpw_session *s, struct gp_communicator *c);
/* Tell the server that there is one; it is told again when that has failed, or is another. */
void gpw_ranks_tell(struct gpw_session *s, struct gp_communicator *c);
/* The program has ended it. */
void gpw_ranks_left(struct gpw_session *s, const struct gp_communicator *c);
/* A few times a second: hear what the server says, and note what waits for the dead as failed. */
void gpw_ranks_tick(struct gpw_session *s);
/* A line of the server's, on the thread that takes messages. */
void gpw_ranks_heard(struct gpw_session *s, const char *line);

#endif
