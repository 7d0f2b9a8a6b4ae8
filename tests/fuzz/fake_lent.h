/*
 * What the client's channel has of the worker's, and the worker of the channel's: bytes that are
 * being sent, which must stay as they are until they are returned, and messages that are kept
 * beyond their release, of which none may be let go of that is not.
 */
#ifndef FUZZ_FAKE_LENT_H
#define FUZZ_FAKE_LENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct gp_channel;

/* Once. */
void fake_kept_open(void);
/* Memory for the next message, GP_MESSAGE_MAX bytes: none that is kept. */
void *fake_kept_room(void);
int fake_keep(struct gp_channel *c, const void *within);
void fake_let_go(struct gp_channel *c, const void *within);

/* A message whose longest piece is lent is sent: as channels do, this one waits behind a few. */
void fake_lend(const struct iovec *iov, int count);
/* The client reads all that is on its way. */
void fake_lent_read(void);
uint64_t fake_lent(const struct gp_channel *c);
uint64_t fake_returned(const struct gp_channel *c);

#endif
