/* Looking, without sleeping, for what the GPU writes: as long as that has been worth it lately. */
#ifndef GPC_SPIN_H
#define GPC_SPIN_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct gpc_call;

/* Whether threads of this context may: no program that has asked to sleep. */
bool gpc_spin_may(CUcontext context);
/* Whether this thread looks for anything at all before it sleeps: lately its waits were short. */
bool gpc_spin_likely(void);
/* Until it is over, or the call (NULL: there is none) is answered, or the time is up; then the wait
 * ends otherwise, and gpc_spin_waited says how long it took in all. */
bool gpc_spin(bool (*is_over)(const void *what), const void *what, const struct gpc_call *call);
void gpc_spin_waited(uint64_t waited_ns);
/* A wait that is longer than that: sleep until the call is answered, but around the times that such
 * waits of this thread took lately look, if there are processors to spare. What sleeps is woken late,
 * and the worker, too, sleeps. True: it is over; false: the call is answered, or lost.
 *
 * `is_over` is NULL where nothing but the answer tells: for that only a program looks that has asked
 * to spin. To ask the kernel again and again is in the way of those that send and receive. */
bool gpc_spin_await(bool (*is_over)(const void *what), const void *what,
                    const struct gpc_call *call);

#endif
