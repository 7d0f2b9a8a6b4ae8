/* A lane's reader: piece after piece, to where the whole message is lent from. */
#include <errno.h>
#include <poll.h>

#include "transport/tcp_channel.h"

/* How long a reader looks for a piece of a message that nobody has spoken of yet. */
#define AHEAD_NS 100000000

static bool ended(const struct tcp_lanes *l)
{
    int dead = l->channel->dead;
    return atomic_load(&l->stop) || dead == -EPROTO || dead == -EBADF;
}

static bool has_room(const struct tcp_lanes *l, uint64_t number)
{
    return number < l->taken + LANES_SLOTS;
}

/* Whether the lane carries, and there is room for a message that is due, or may be. */
static bool may_read(const struct tcp_lane *lane, uint64_t number, bool ahead)
{
    const struct tcp_lanes *l = lane->all;
    return lane->number < l->carry && has_room(l, number) && (ahead || number < l->seen);
}

/* Until it may read: 0, -ECANCELED. */
static int turn_wait(struct tcp_lane *lane, uint64_t number, bool ahead)
{
    struct tcp_lanes *l = lane->all;
    pthread_mutex_lock(&l->lock);
    while (!ended(l) && !may_read(lane, number, ahead)) {
        bool idle = has_room(l, number);
        l->idle += idle;
        pthread_cond_wait(&l->wake, &l->lock);
        l->idle -= idle;
    }
    pthread_mutex_unlock(&l->lock);
    return ended(l) ? -ECANCELED : 0;
}

/* What is there, without waiting: bytes, -EAGAIN, -EPIPE, -EPROTO, -EBADF. */
static ssize_t lane_take(struct tcp_lane *lane, void *to, size_t size)
{
    size_t room;
    if (!lane->tls)
        return tcp_socket_recv(&lane->socket, to, size);
    for (;;) {
        ssize_t n = lane->sealed_left ? tcp_tls_open(lane->tls, to, size) : -EAGAIN;
        if (n != -EAGAIN)
            return n;
        lane->sealed_left = false;
        void *sealed = tcp_tls_space(lane->tls, &room);
        n = tcp_socket_recv(&lane->socket, sealed, room);
        if (n < 0)
            return n;
        tcp_tls_filled(lane->tls, (size_t)n);
        lane->sealed_left = true;
    }
}

/* Read all of it, which `*got` counts. -EAGAIN: not a byte of it came for a while, only if it is
 * `ahead`; -EFAULT: what comes next cannot be written there. */
static int lane_read(struct tcp_lane *lane, void *to, size_t size, bool ahead, size_t *got)
{
    *got = 0;
    while (*got < size) {
        ssize_t n = lane_take(lane, (char *)to + *got, size - *got);
        if (n > 0) {
            *got += (size_t)n;
            continue;
        }
        if (n != -EAGAIN)
            return (int)n;
        int64_t until = gp_clock_ns() + AHEAD_NS;
        int rc = tcp_socket_wait(&lane->socket, POLLIN, until);
        if (rc || ended(lane->all))
            return rc ? rc : -ECANCELED;
        if (ahead && *got == 0 && gp_clock_ns() >= until)
            return -EAGAIN;
    }
    return 0;
}

/* The next part of a piece that lies together, here or where it belongs. */
static int part_read(struct tcp_lane *lane, struct lanes_slot *slot, size_t end, size_t *at,
                     struct gp_landing *where)
{
    size_t begin = where->begin, behind = begin + where->size, got = 0;
    bool lands = *at >= begin && *at < behind;
    size_t until = lands ? behind : *at < begin ? begin : end;
    void *to = lands ? (char *)where->to + (*at - begin) : (void *)(slot->block->bytes + *at);
    if (until > end || where->size == 0)
        until = end;
    int rc = lands && lane->tls && !tcp_landing_is_writable(to, until - *at) ? -EFAULT : 0;
    if (rc == 0)
        rc = lane_read(lane, to, until - *at, false, &got);
    *at += got;
    if (rc != -EFAULT || !lands)
        return rc == -EFAULT ? -EPIPE : rc;
    /* The program has it protected, and its own thread faults as with any call. */
    slot->fell[lane->number] = *at;
    where->size = 0;
    return 0;
}

static int bytes_read(struct tcp_lane *lane, uint64_t number, size_t size,
                      const unsigned char *message)
{
    struct tcp_lanes *l = lane->all;
    struct lanes_slot *slot = &l->slot[number % LANES_SLOTS];
    struct stripe_piece piece = stripe_piece_of(size, lane->number, l->carry);
    struct gp_landing where;
    size_t at = piece.begin, end = piece.begin + piece.size;
    int rc = 0;
    tcp_landing_begin(l, number, size, message, &where);
    bool lands = where.size > 0;
    while (rc == 0 && at < end)
        rc = part_read(lane, slot, end, &at, &where);
    if (lands)
        tcp_landing_end(l);
    return rc;
}

static int piece_read(struct tcp_lane *lane, uint64_t number)
{
    struct tcp_lanes *l = lane->all;
    struct lanes_slot *slot = &l->slot[number % LANES_SLOTS];
    struct stripe_opening opening;
    unsigned lanes = l->carry;
    size_t size, got;
    bool ahead = number > 0; /* for the first it has waited */
    int rc;
    while ((rc = lane_read(lane, &opening, sizeof opening, ahead, &got)) == -EAGAIN)
        if ((rc = turn_wait(lane, number, false)) != 0)
            return rc;
    if (rc == 0)
        rc = stripe_head_check(&opening.head, lane->number, number, &size);
    if (rc)
        return rc;
    rc = bytes_read(lane, number, size, opening.message);
    if (rc)
        return rc;
    slot->sizes[lane->number] = size;
    if (atomic_fetch_add(&slot->come, 1) + 1 == lanes) {
        pthread_mutex_lock(&l->lock);
        pthread_cond_broadcast(&l->arrived);
        pthread_mutex_unlock(&l->lock);
    }
    return 0;
}

/* It brings nothing more: who waits for something of it is told. */
static void lane_broken(struct tcp_lane *lane, uint64_t number, int why)
{
    struct tcp_lanes *l = lane->all;
    pthread_mutex_lock(&l->lock);
    tcp_lanes_break(l, number, why);
    pthread_mutex_unlock(&l->lock);
    if (why != -EPIPE)
        tcp_channel_kill(l->channel, why);
}

void *tcp_lane_reader(void *arg)
{
    struct tcp_lane *lane = arg;
    uint64_t number = 0;
    for (;;) {
        int rc = turn_wait(lane, number, number > 0);
        if (rc == 0)
            rc = piece_read(lane, number);
        if (rc == 0) {
            number++;
            continue;
        }
        if (rc != -ECANCELED && !atomic_load(&lane->all->stop))
            lane_broken(lane, number, rc);
        return NULL;
    }
}
