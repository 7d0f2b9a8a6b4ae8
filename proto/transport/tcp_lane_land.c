/*
 * Where the bulk of messages goes. Who receives says it by the head that stands before each piece:
 * the first lane to bring one of a message asks, for all lanes. A peer may write anything there, so
 * the heads of a message must have been its own, and no more is written than was named.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp_channel.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; before it nothing that is encrypted lands */
#endif

void tcp_lanes_land(struct tcp_lanes *l, gp_land_fn *ask, void *owner)
{
    pthread_mutex_lock(&l->landing.lock);
    l->landing.ask = ask;
    l->landing.owner = owner;
    pthread_mutex_unlock(&l->landing.lock);
}

static void ask(struct tcp_lanes *l, struct lanes_slot *slot, size_t size,
                const unsigned char *message)
{
    struct gp_landing *to = &slot->landing;
    memcpy(slot->head, message, sizeof slot->head);
    memset(slot->fell, 0, sizeof slot->fell);
    *to = (struct gp_landing){NULL, 0, 0};
    if (!l->landing.ask(l->landing.owner, slot->head, size, to) || to->begin == 0 ||
        to->begin > size || to->size > size - to->begin)
        *to = (struct gp_landing){NULL, 0, 0};
}

void tcp_landing_begin(struct tcp_lanes *l, uint64_t number, size_t size,
                       const unsigned char *message, struct gp_landing *where)
{
    struct lanes_slot *slot = &l->slot[number % LANES_SLOTS];
    pthread_mutex_lock(&l->landing.lock);
    if (slot->asked != number + 1) {
        slot->landing = (struct gp_landing){NULL, 0, 0};
        if (l->landing.ask)
            ask(l, slot, size, message);
    }
    slot->asked = number + 1;
    *where = l->landing.ask ? slot->landing : (struct gp_landing){NULL, 0, 0};
    l->landing.busy += where->size > 0;
    pthread_mutex_unlock(&l->landing.lock);
}

void tcp_landing_end(struct tcp_lanes *l)
{
    pthread_mutex_lock(&l->landing.lock);
    if (--l->landing.busy == 0)
        pthread_cond_broadcast(&l->landing.over);
    pthread_mutex_unlock(&l->landing.lock);
}

bool tcp_landing_is_writable(void *to, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)to & ~(page - 1);
    size_t whole = ((uintptr_t)to + size - begin + page - 1) & ~(page - 1);
    return madvise((void *)begin, whole, MADV_POPULATE_WRITE) == 0;
}

static void fallen_bring(struct lanes_slot *slot, size_t from, size_t until)
{
    size_t end = slot->landing.begin + slot->landing.size;
    if (until > end)
        until = end;
    if (from < until)
        memcpy((char *)slot->landing.to + (from - slot->landing.begin), slot->block->bytes + from,
               until - from);
}

int tcp_landing_finish(struct tcp_lanes *l, struct lanes_slot *slot, size_t size)
{
    if (slot->landing.size == 0)
        return 0;
    size_t known = slot->landing.begin < GP_MESSAGE_HEAD ? slot->landing.begin : GP_MESSAGE_HEAD;
    if (memcmp(slot->head, slot->block->bytes, known) != 0)
        return -EPROTO;
    pthread_mutex_lock(&l->landing.lock);
    bool grounded = l->landing.ask == NULL; /* a part of it may lie where it did not belong */
    l->landing.busy += !grounded;
    pthread_mutex_unlock(&l->landing.lock);
    if (grounded)
        return -EPIPE;
    for (unsigned i = 0; i < l->carry; i++) {
        struct stripe_piece piece = stripe_piece_of(size, i, l->carry);
        if (slot->fell[i])
            fallen_bring(slot, slot->fell[i], piece.begin + piece.size);
    }
    tcp_landing_end(l);
    return 0;
}

bool tcp_lanes_landed(const struct tcp_lanes *l)
{
    return l->slot[l->taken % LANES_SLOTS].landing.size > 0;
}

/* A lane that is in a piece sees the end of its socket. */
void tcp_lanes_ground(struct tcp_lanes *l)
{
    pthread_mutex_lock(&l->landing.lock);
    l->landing.ask = NULL;
    while (l->landing.busy > 0) {
        for (unsigned i = 0; i < l->carry; i++)
            tcp_socket_shut(&l->lane[i].socket, SHUT_RDWR);
        pthread_cond_wait(&l->landing.over, &l->landing.lock);
    }
    pthread_mutex_unlock(&l->landing.lock);
}
