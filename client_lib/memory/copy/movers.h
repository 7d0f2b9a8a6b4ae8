/*
 * Bytes that several threads copy: one core moves 7 to 11 GB/s, the bus five times that. Whoever
 * copies much lets movers begin its next pieces, and takes what nobody has begun itself. They hash
 * long images, too (images/image.c).
 */
#ifndef GPC_MOVERS_H
#define GPC_MOVERS_H

#include <stdbool.h>
#include <stddef.h>

/* More would only wait for memory: four cores have most of what a socket gives. */
#define GPC_MOVERS_MAX 3u

/* A copy of less is made sooner than it is handed over. */
#define GPC_MOVE_LEAST ((size_t)4 << 20)

/* Begin to copy. Both ends stay the mover's until gpc_move_finish has had what this returns. */
int gpc_move_begin(void *to, const void *from, size_t bytes);
/* The same for work of another kind, which shares itself out among those who do it: whoever comes to it
 * when nothing is left returns at once. It may fault where a copy may, and calls no movers. */
int gpc_move_begin_work(void (*work)(void *), void *argument);
/* Until it is done, by this thread if no other has begun. */
void gpc_move_finish(int move);

/* How many there are; they are started if they were not. */
unsigned gpc_movers(void);
/* How many threads beside the caller's there may be, by the cores this thread may use and by
 * GPUPOOL_COPY_THREADS. */
unsigned gpc_movers_allowed(void);

#endif
