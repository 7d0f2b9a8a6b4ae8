#include "fake_lent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport/transport.h"
#include "wire.h"

/* As many as tcp hands to its lanes before the first of them has left, and what is long to it. */
#define AHEAD 4u
#define LONG 512u
#define BLOCKS 4u
#define PAGE 4096

static struct {
    struct iovec of[AHEAD];
    uint64_t sums[AHEAD];
    uint64_t sent, returned;
} lent;

static struct {
    void *memory;
    bool kept;
} block[BLOCKS];
static unsigned at; /* the block of the message at hand */

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_worker: %s\n", what);
    abort();
}

/* --- lent ---------------------------------------------------------------------------------- */

static uint64_t sum(struct iovec piece)
{
    const unsigned char *byte = piece.iov_base;
    uint64_t sum = piece.iov_len;
    for (size_t i = 0; i < piece.iov_len; i++)
        sum = sum * 31 + byte[i];
    return sum;
}

static void oldest_read(void)
{
    unsigned i = lent.returned % AHEAD;
    if (sum(lent.of[i]) != lent.sums[i])
        fail("bytes that are being sent have been changed");
    lent.returned++;
}

void fake_lend(const struct iovec *iov, int count)
{
    int most = 0;
    for (int i = 1; i < count; i++)
        most = iov[i].iov_len > iov[most].iov_len ? i : most;
    if (iov[most].iov_len < LONG)
        return;
    if (lent.sent - lent.returned == AHEAD)
        oldest_read();
    lent.of[lent.sent % AHEAD] = iov[most];
    lent.sums[lent.sent++ % AHEAD] = sum(iov[most]);
}

void fake_lent_read(void)
{
    while (lent.returned < lent.sent)
        oldest_read();
}

uint64_t fake_lent(const struct gp_channel *c)
{
    (void)c;
    return lent.sent;
}

uint64_t fake_returned(const struct gp_channel *c)
{
    (void)c;
    return lent.returned;
}

/* --- kept ---------------------------------------------------------------------------------- */

void fake_kept_open(void)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        if (!(block[i].memory = aligned_alloc(PAGE, GP_MESSAGE_MAX)))
            fail("no memory for messages");
}

void *fake_kept_room(void)
{
    for (at = 0; block[at].kept; at++) {
    }
    return block[at].memory;
}

/* One is left for the next message. */
int fake_keep(struct gp_channel *c, const void *within)
{
    unsigned kept = 0;
    (void)c;
    for (unsigned i = 0; i < BLOCKS; i++)
        kept += block[i].kept;
    if ((uintptr_t)within - (uintptr_t)block[at].memory >= GP_MESSAGE_MAX)
        fail("a message is kept that is not at hand");
    if (kept == BLOCKS - 1)
        return -EAGAIN;
    block[at].kept = true;
    return 0;
}

void fake_let_go(struct gp_channel *c, const void *within)
{
    (void)c;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (block[i].kept && (uintptr_t)within - (uintptr_t)block[i].memory < GP_MESSAGE_MAX) {
            block[i].kept = false;
            return;
        }
    fail("a message is let go of that is not kept");
}
