/*
 * Sending a message in pieces: a thread of each lane sends its own, so that their copies into the
 * kernel, and their encryption, go on side by side. A few messages may be handed to them, one behind
 * the other; of one that is not lent all pieces are gone when the call returns.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "transport/tcp_channel.h"
#include "wire/own_thread.h"

/* How long a sender that has no room does not look at anything else. */
#define ROOM_MS 100

static int room_wait(struct tcp_lane *lane, bool relieves)
{
    struct tcp_lanes *l = lane->all;
    struct gp_channel *ch = l->channel;
    int failed = l->send_rc, dead = ch->dead;
    if (failed || dead || atomic_load(&l->stop))
        return failed ? failed : dead ? dead : -EPIPE;
    int pause = relieves ? gp_relief_pause_ms(&ch->relief, ROOM_MS) : ROOM_MS;
    int rc = tcp_socket_wait(&lane->socket, POLLOUT, gp_clock_ns() + pause * INT64_C(1000000));
    if (rc == 0 && relieves)
        gp_relief_give(&ch->relief);
    return rc;
}

static int list_write(struct tcp_lane *lane, struct iovec *list, int count, bool relieves)
{
    while (count > 0) {
        ssize_t n = tcp_socket_send(&lane->socket, list, count);
        if (n >= 0) {
            tcp_list_advance(&list, &count, (size_t)n);
            continue;
        }
        int rc = n == -EAGAIN ? room_wait(lane, relieves) : (int)n;
        if (rc)
            return rc;
    }
    return 0;
}

static int sealed_write(struct tcp_lane *lane, bool relieves)
{
    struct iovec sealed = tcp_tls_sealed(lane->tls);
    size_t size = sealed.iov_len;
    int rc = size > 0 ? list_write(lane, &sealed, 1, relieves) : 0;
    tcp_tls_sent(lane->tls, size);
    return rc;
}

/* The opening is a record of its own, as it is read for itself; what follows is cut where the
 * program's pieces begin, which is where a peer that has them land does. */
static int list_write_sealed(struct tcp_lane *lane, struct iovec *list, int count, bool relieves)
{
    while (count > 0) {
        ssize_t n = tcp_tls_seal(lane->tls, list->iov_base, list->iov_len);
        int rc = n < 0 ? (int)n : n == 0 ? sealed_write(lane, relieves) : 0;
        if (rc)
            return rc;
        if (n > 0)
            tcp_list_advance(&list, &count, (size_t)n);
    }
    return sealed_write(lane, relieves);
}

/* The lane's piece of the message that is next; nothing more is sent once one has failed. */
static void piece_write(struct tcp_lane *lane, bool relieves)
{
    struct tcp_lanes *l = lane->all;
    uint64_t number = lane->left;
    struct lanes_piece *p = &l->handed[number % LANES_AHEAD].piece[lane->number];
    int none = 0, rc = l->send_rc;
    if (rc == 0)
        rc = lane->tls ? list_write_sealed(lane, p->list, p->count, relieves)
                       : list_write(lane, p->list, p->count, relieves);
    if (rc && atomic_compare_exchange_strong(&l->send_rc, &none, rc))
        tcp_channel_kill(l->channel, rc == -EBADF || rc == -EPROTO ? rc : -EPIPE);
    atomic_store(&lane->left, number + 1);
    if (atomic_load(&l->awaited) == 0 || tcp_lanes_returned(l) <= number) /* another's is last */
        return;
    pthread_mutex_lock(&l->lock);
    pthread_cond_broadcast(&l->gone);
    pthread_mutex_unlock(&l->lock);
}

/* --- the lanes' threads ---------------------------------------------------------------- */

static bool is_due(const struct tcp_lane *lane)
{
    return lane->all->sent > lane->left;
}

static bool due_spin(const struct tcp_lane *lane)
{
    int64_t end = gp_clock_ns() + gp_spin_limit_ns();
    while (!is_due(lane) && gp_clock_ns() < end)
        gp_cpu_relax();
    return is_due(lane);
}

static void due_sleep(struct tcp_lane *lane)
{
    struct tcp_lanes *l = lane->all;
    pthread_mutex_lock(&l->lock);
    while (!is_due(lane) && !atomic_load(&l->stop))
        pthread_cond_wait(&l->sends, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

void *tcp_lane_sender(void *arg)
{
    struct tcp_lane *lane = arg;
    for (;;) {
        if (!due_spin(lane))
            due_sleep(lane);
        if (!is_due(lane))
            return NULL;
        piece_write(lane, false);
    }
}

/* What has no thread, the caller sends itself. */
static void senders_start(struct tcp_lanes *l)
{
    for (unsigned i = 0; i < l->carry; i++)
        l->lane[i].has_sender = gp_thread_create(&l->lane[i].sender, "send", NULL, tcp_lane_sender,
                                                 &l->lane[i]) == 0;
    l->senders = true;
}

/* --- a message ------------------------------------------------------------------------- */

uint64_t tcp_lanes_returned(const struct tcp_lanes *l)
{
    uint64_t least = l->sent;
    for (unsigned i = 0; i < l->carry; i++) {
        uint64_t left = l->lane[i].left;
        least = left < least ? left : least;
    }
    return least;
}

/* Until so many messages have left; with the channel's sending lock, and its relief. */
static void gone_wait(struct tcp_lanes *l, uint64_t count)
{
    struct gp_relief *relief = &l->channel->relief;
    int64_t spin = gp_clock_ns() + gp_spin_limit_ns();
    while (tcp_lanes_returned(l) < count && gp_clock_ns() < spin)
        gp_cpu_relax();
    while (tcp_lanes_returned(l) < count) {
        int pause = gp_relief_pause_ms(relief, ROOM_MS);
        pthread_mutex_lock(&l->lock);
        atomic_fetch_add(&l->awaited, 1);
        if (tcp_lanes_returned(l) < count)
            tcp_lanes_sleep(l, &l->gone, gp_clock_ns() + pause * INT64_C(1000000));
        atomic_fetch_sub(&l->awaited, 1);
        pthread_mutex_unlock(&l->lock);
        if (tcp_lanes_returned(l) < count)
            gp_relief_give(relief);
    }
}

static int longest(const struct iovec *iov, int count)
{
    int most = 0;
    for (int i = 1; i < count; i++)
        if (iov[i].iov_len > iov[most].iov_len)
            most = i;
    return most;
}

/* A list whose pieces but the longest lie in memory of the message's own: false, there are more
 * bytes than that has. */
static bool small_copy(struct lanes_handed *m, const struct iovec *iov, int count,
                       struct iovec *list)
{
    int most = longest(iov, count);
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        list[i] = iov[i];
        if (i == most || iov[i].iov_len == 0)
            continue;
        if (iov[i].iov_len > sizeof m->small - used)
            return false;
        list[i].iov_base = memcpy(m->small + used, iov[i].iov_base, iov[i].iov_len);
        used += iov[i].iov_len;
    }
    return true;
}

static void piece_make(struct tcp_lane *lane, struct lanes_piece *p, const struct iovec *iov,
                       int count, size_t size)
{
    struct tcp_lanes *l = lane->all;
    struct stripe_piece piece = stripe_piece_of(size, lane->number, l->carry);
    p->opening.head = stripe_head_make(lane->number, size, l->sent);
    stripe_message_head(iov, count, p->opening.message);
    p->list[0] = (struct iovec){&p->opening, sizeof p->opening};
    p->count = 1 + stripe_gather(iov, count, piece, p->list + 1);
}

int tcp_lanes_hand(struct tcp_lanes *l, const struct iovec *iov, int count, size_t size, bool *lent)
{
    struct iovec list[GP_GATHER_MAX];
    struct lanes_handed *m = &l->handed[l->sent % LANES_AHEAD];
    if (!l->senders)
        senders_start(l);
    if (l->sent - tcp_lanes_returned(l) == LANES_AHEAD) /* not to sleep for each */
        gone_wait(l, l->sent - LANES_AHEAD / 2);
    if (l->send_rc)
        return l->send_rc;
    *lent = *lent && small_copy(m, iov, count, list);
    for (unsigned i = 0; i < l->carry; i++)
        piece_make(&l->lane[i], &m->piece[i], *lent ? list : iov, count, size);
    pthread_mutex_lock(&l->lock);
    atomic_fetch_add(&l->sent, 1);
    pthread_cond_broadcast(&l->sends);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

int tcp_lanes_see_off(struct tcp_lanes *l, bool lent)
{
    for (unsigned i = 0; i < l->carry; i++)
        while (!l->lane[i].has_sender && is_due(&l->lane[i]))
            piece_write(&l->lane[i], true);
    if (!lent || l->send_rc) /* behind an error nothing is lent any more */
        gone_wait(l, l->sent);
    return l->send_rc;
}

void tcp_lanes_empty(struct tcp_lanes *l, int64_t deadline)
{
    pthread_mutex_lock(&l->lock);
    atomic_fetch_add(&l->awaited, 1);
    while (tcp_lanes_returned(l) < l->sent && gp_clock_ns() < deadline)
        tcp_lanes_sleep(l, &l->gone, deadline);
    atomic_fetch_sub(&l->awaited, 1);
    pthread_mutex_unlock(&l->lock);
}
