/* Memory that messages of the lanes lie in, and keeping it beyond their release. */
#include <errno.h>
#include <stdlib.h>

#include "transport/tcp_channel.h"

#define PAGE 4096
_Static_assert(GP_MESSAGE_MAX % PAGE == 0, "a message's memory is whole pages");

static bool lies_in(const struct lanes_block *b, const void *p)
{
    uintptr_t at = (uintptr_t)p, begin = (uintptr_t)b->bytes;
    return b->bytes && at >= begin && at - begin < GP_MESSAGE_MAX;
}

/* The first that is free: those before are in the caches, and pinned. */
bool tcp_lanes_block(struct tcp_lanes *l, struct lanes_slot *slot)
{
    struct lanes_block *b = l->block;
    while (b < l->block + LANES_BLOCKS && (b->in_slot || b->kept))
        b++;
    if (b == l->block + LANES_BLOCKS)
        return false;
    if (!b->bytes)
        b->bytes = aligned_alloc(PAGE, GP_MESSAGE_MAX);
    if (!b->bytes)
        return false;
    b->in_slot = true;
    slot->block = b;
    return true;
}

/* Its slot gets other memory, which the lanes see with its release. */
int tcp_lanes_keep(struct tcp_lanes *l, const void *within)
{
    struct lanes_slot *slot = &l->slot[l->taken % LANES_SLOTS];
    struct lanes_block *b = slot->block;
    if (!lies_in(b, within) || !tcp_lanes_block(l, slot))
        return -EAGAIN;
    b->kept = true;
    b->in_slot = false;
    return 0;
}

void tcp_lanes_let_go(struct tcp_lanes *l, const void *within)
{
    for (unsigned i = 0; i < LANES_BLOCKS; i++)
        if (l->block[i].kept && lies_in(&l->block[i], within))
            l->block[i].kept = false;
}
