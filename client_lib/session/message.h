/* One message to a worker, put together from its pieces. */
#ifndef GPC_MESSAGE_H
#define GPC_MESSAGE_H

#include <sys/uio.h>

#include "session.h"

/* The request `head`, and behind it what it carries, each piece aligned. Under submit_lock; flags
 * and result are the transport's `send`'s. */
int gpc_message_send(struct gpc_session *s, struct gp_header *head, uint32_t head_size,
                     const struct iovec *in, unsigned count, unsigned flags);
/* Before: what the program guards faults here, as with any call, and not in a system call or in a
 * thread of ours, by which a channel that lends may read it. */
void gpc_message_touch(const struct gpc_session *s, const struct iovec *in, unsigned count);

#endif
