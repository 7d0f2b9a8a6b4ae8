/*
 * Sending a message in pieces: the caller sends one, and a thread of each other lane its own, so
 * that their copies into the kernel, and their encryption, go on side by side. All are gone when
 * the call returns: the bytes are the caller's.
 */
#include <errno.h>
#include <poll.h>

#include "transport/tcp_channel.h"

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

static int bytes_write_sealed(struct tcp_lane *lane, const char *from, size_t size, bool relieves)
{
    int rc = 0;
    while (rc == 0 && size > 0) {
        size_t n = size < TLS_CHUNK ? size : TLS_CHUNK;
        rc = sealed_write(lane, relieves);
        if (rc == 0)
            rc = tcp_tls_seal(lane->tls, from, n);
        from += n;
        size -= n;
    }
    return rc;
}

static int list_write_sealed(struct tcp_lane *lane, bool relieves)
{
    /* The head goes with what follows it. */
    int rc = tcp_tls_seal(lane->tls, lane->list[0].iov_base, lane->list[0].iov_len);
    size_t first = TLS_CHUNK - lane->list[0].iov_len;
    if (first > lane->list[1].iov_len)
        first = lane->list[1].iov_len;
    if (rc == 0)
        rc = tcp_tls_seal(lane->tls, lane->list[1].iov_base, first);
    for (int i = 1; rc == 0 && i < lane->count; i++) {
        size_t gone = i == 1 ? first : 0;
        rc = bytes_write_sealed(lane, (const char *)lane->list[i].iov_base + gone,
                                lane->list[i].iov_len - gone, relieves);
    }
    return rc ? rc : sealed_write(lane, relieves);
}

static void piece_write(struct tcp_lane *lane, bool relieves)
{
    int none = 0;
    int rc = lane->tls ? list_write_sealed(lane, relieves)
                       : list_write(lane, lane->list, lane->count, relieves);
    if (rc)
        atomic_compare_exchange_strong(&lane->all->send_rc, &none, rc);
}

/* --- the other lanes' threads -------------------------------------------------------- */

static bool due_spin(struct tcp_lane *lane)
{
    int64_t end = gp_clock_ns() + gp_spin_limit_ns();
    while (!atomic_load(&lane->due) && gp_clock_ns() < end)
        gp_cpu_relax();
    return atomic_load(&lane->due);
}

static void due_sleep(struct tcp_lane *lane)
{
    struct tcp_lanes *l = lane->all;
    pthread_mutex_lock(&l->lock);
    while (!atomic_load(&lane->due) && !atomic_load(&l->stop))
        pthread_cond_wait(&l->sends, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

void *tcp_lane_sender(void *arg)
{
    struct tcp_lane *lane = arg;
    struct tcp_lanes *l = lane->all;
    for (;;) {
        if (!due_spin(lane))
            due_sleep(lane);
        if (!atomic_load(&lane->due))
            return NULL;
        piece_write(lane, false);
        atomic_store(&lane->due, false);
        if (atomic_fetch_sub(&l->working, 1) == 1) {
            pthread_mutex_lock(&l->lock);
            pthread_cond_broadcast(&l->arrived);
            pthread_mutex_unlock(&l->lock);
        }
    }
}

/* What has no thread, the caller sends itself. */
static void senders_start(struct tcp_lanes *l)
{
    for (unsigned i = 1; i < l->carry; i++)
        l->lane[i].has_sender = tcp_lanes_thread(&l->lane[i].sender, tcp_lane_sender,
                                                 &l->lane[i]) == 0;
    l->senders = true;
}

/* --- a message ------------------------------------------------------------------------- */

static void piece_make(struct tcp_lane *lane, const struct iovec *iov, int count, size_t size)
{
    struct tcp_lanes *l = lane->all;
    struct stripe_piece piece = stripe_piece_of(size, lane->number, l->carry);
    lane->opening.head = stripe_head_make(lane->number, size, l->sent);
    stripe_message_head(iov, count, lane->opening.message);
    lane->list[0] = (struct iovec){&lane->opening, sizeof lane->opening};
    lane->count = 1 + stripe_gather(iov, count, piece, lane->list + 1);
}

static void pieces_hand_out(struct tcp_lanes *l)
{
    unsigned lanes = l->carry, threads = 0;
    for (unsigned i = 1; i < lanes; i++)
        threads += l->lane[i].has_sender;
    atomic_store(&l->working, threads);
    for (unsigned i = 1; i < lanes; i++)
        if (l->lane[i].has_sender)
            atomic_store(&l->lane[i].due, true);
    pthread_mutex_lock(&l->lock);
    pthread_cond_broadcast(&l->sends);
    pthread_mutex_unlock(&l->lock);
}

static void pieces_wait(struct tcp_lanes *l)
{
    struct gp_relief *relief = &l->channel->relief;
    int64_t spin = gp_clock_ns() + gp_spin_limit_ns();
    while (atomic_load(&l->working) > 0 && gp_clock_ns() < spin)
        gp_cpu_relax();
    while (atomic_load(&l->working) > 0) {
        int pause = gp_relief_pause_ms(relief, ROOM_MS);
        pthread_mutex_lock(&l->lock);
        if (atomic_load(&l->working) > 0)
            tcp_lanes_sleep(l, gp_clock_ns() + pause * INT64_C(1000000));
        pthread_mutex_unlock(&l->lock);
        if (atomic_load(&l->working) > 0)
            gp_relief_give(relief);
    }
}

int tcp_lanes_send(struct tcp_lanes *l, const struct iovec *iov, int count, size_t size)
{
    unsigned lanes = l->carry;
    if (!l->senders)
        senders_start(l);
    for (unsigned i = 0; i < lanes; i++)
        piece_make(&l->lane[i], iov, count, size);
    pieces_hand_out(l);
    for (unsigned i = 0; i < lanes; i++)
        if (!l->lane[i].has_sender)
            piece_write(&l->lane[i], true);
    pieces_wait(l);
    l->sent++;
    return l->send_rc;
}
