/* One message to a worker, put together from its pieces. */
#ifndef GPC_MESSAGE_H
#define GPC_MESSAGE_H

#include <sys/uio.h>

#include "session.h"

/* The request `head`, and behind it what it carries, each piece aligned. Under submit_lock; flags
 * and result are the transport's `send`'s. */
int gpc_message_send(struct gpc_session *s, struct gp_header *head, uint32_t head_size,
                     const struct iovec *in, unsigned count, unsigned flags);

#endif
