#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "transport/shm_channel.h"

/* How long a sleeper trusts that a living peer would wake it. A peer that was
 * killed wakes nobody, so this bounds how long that goes unnoticed. */
#define SLEEP_SLICE_MS 100
/* How often a thread that does not sleep looks whether the peer lives. */
#define LOOK_INTERVAL_NS 10000000

/* --- waiting ------------------------------------------------------------- */

static void futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t ns)
{
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &ts, NULL, 0);
}

/* Wake who sleeps on `word`, if somebody says so. The caller has just published
 * with a sequentially consistent store; the load pairs with sleeper_announce. */
static void sleeper_wake(_Atomic uint32_t *word)
{
    if (atomic_load_explicit(word, memory_order_seq_cst) == 0)
        return;
    if (atomic_exchange_explicit(word, 0, memory_order_seq_cst) != 0)
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleeper_announce(_Atomic uint32_t *word)
{
    /* Pairs with sleeper_wake: the caller looks at the ring after this, the
     * waker after having changed the ring; one of them sees the other. */
    atomic_store_explicit(word, 1, memory_order_seq_cst);
}

static void sleeper_withdraw(_Atomic uint32_t *word)
{
    atomic_store_explicit(word, 0, memory_order_relaxed);
}

static int dead_reason(const struct gp_channel *ch)
{
    return atomic_load_explicit(&ch->dead, memory_order_relaxed);
}

void shm_channel_kill(struct gp_channel *ch, int why)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&ch->dead, &none, why))
        return;
    struct gp_ring_shared *out = ch->writer.shared, *in = ch->reader.shared;
    atomic_store(&out->writer_closed, 1);
    atomic_store(&in->reader_closed, 1);
    /* Both words of both rings: the peer's threads, and our own. */
    sleeper_wake(&out->reader_sleeps);
    sleeper_wake(&in->writer_sleeps);
    sleeper_wake(&in->reader_sleeps);
    sleeper_wake(&out->writer_sleeps);
    if (gp_fd_is(&ch->mark))
        shutdown(ch->socket, SHUT_RDWR);
}

/* A peer that is gone may be so because it saw our socket being closed. */
static int end_reason(const struct gp_channel *ch, int rc)
{
    return rc == -EPIPE && (dead_reason(ch) == -EBADF || !gp_fd_is(&ch->mark)) ? -EBADF : rc;
}

/* Ask the kernel whether the peer lives, and take in what waits on the socket. */
static int peer_look(struct gp_channel *ch)
{
    struct pollfd fds[2] = {
        {.fd = ch->socket, .events = POLLIN | POLLRDHUP},
        {.fd = ch->peer_pidfd, .events = POLLIN},
    };
    atomic_store_explicit(&ch->looked_ns, gp_clock_coarse_ns(), memory_order_relaxed);
    if (!gp_fd_is(&ch->mark))
        return -EBADF;
    if (poll(fds, 2, 0) <= 0)
        return 0;
    int rc = 0;
    if (fds[0].revents & POLLIN)
        rc = shm_arrivals_read(ch);
    if (rc == 0 && (fds[0].revents & (POLLHUP | POLLRDHUP | POLLERR)))
        rc = -EPIPE;
    if (rc == 0 && fds[1].revents)
        rc = -EPIPE;
    return rc;
}

/* The same, but at most once per interval, so that it costs a busy thread only
 * the reading of a coarse clock. */
static int peer_glance(struct gp_channel *ch)
{
    int64_t last = atomic_load_explicit(&ch->looked_ns, memory_order_relaxed);
    return gp_clock_coarse_ns() - last < LOOK_INTERVAL_NS ? 0 : peer_look(ch);
}

/* --- sending ------------------------------------------------------------- */

static bool reader_closed(const struct gp_channel *ch)
{
    /* Relaxed: says only that nobody will read on. */
    return atomic_load_explicit(&ch->writer.shared->reader_closed, memory_order_relaxed) != 0;
}

/* Spin until there is room, then say that we sleep and look once more. */
static int room_wait_step(struct gp_channel *ch, size_t size, void **at)
{
    int64_t start = gp_clock_ns();
    int rc;
    for (unsigned turn = 1;; turn++) {
        rc = gp_ring_reserve(&ch->writer, size, at);
        if (rc != -EAGAIN || reader_closed(ch)) {
            gp_spin_learn(&ch->spin_send, gp_clock_ns() - start);
            return rc;
        }
        gp_cpu_relax();
        if (turn % 32 == 0 && gp_clock_ns() - start >= ch->spin_send.budget_ns)
            break;
    }
    gp_spin_learn(&ch->spin_send, INT64_MAX);
    _Atomic uint32_t *word = &ch->writer.shared->writer_sleeps;
    sleeper_announce(word);
    rc = gp_ring_reserve(&ch->writer, size, at);
    if (rc == -EAGAIN && !reader_closed(ch) && !dead_reason(ch)) {
        futex_wait(word, 1, (int64_t)gp_relief_pause_ms(&ch->relief, SLEEP_SLICE_MS) * 1000000);
        rc = gp_ring_reserve(&ch->writer, size, at);
    }
    sleeper_withdraw(word);
    return rc;
}

static int room_wait(struct gp_channel *ch, size_t size, void **at)
{
    for (;;) {
        int rc = room_wait_step(ch, size, at);
        if (rc != -EAGAIN)
            return rc;
        if (dead_reason(ch) || reader_closed(ch))
            return -EPIPE;
        rc = peer_look(ch);
        if (rc)
            return rc;
        gp_relief_give(&ch->relief);
    }
}

/* With the turnstile held. */
static int send_locked(struct gp_channel *ch, const struct iovec *iov, int count, size_t size)
{
    if (dead_reason(ch))
        return -EPIPE;
    int rc = reader_closed(ch) ? -EPIPE : peer_glance(ch);
    if (rc)
        return rc;
    void *at;
    rc = gp_ring_reserve(&ch->writer, size, &at);
    if (rc == -EAGAIN)
        rc = room_wait(ch, size, &at);
    if (rc)
        return rc;
    gp_gather_copy(at, iov, count);
    gp_ring_publish(&ch->writer);
    sleeper_wake(&ch->writer.shared->reader_sleeps);
    return 0;
}

/* Messages are visible to a spinning reader at once, so GP_SEND_LATER has
 * nothing to save here. */
static int shm_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    (void)flags;
    size_t size;
    int rc = gp_gather_size(iov, count, &size);
    if (rc)
        return rc;
    if (ch->generation != gp_fork_generation())
        return -EPIPE;
    gp_turnstile_enter(&ch->sending);
    rc = end_reason(ch, send_locked(ch, iov, count, size));
    if (rc)
        shm_channel_kill(ch, rc);
    gp_turnstile_leave(&ch->sending);
    return rc == 0 || rc == -EBADF ? rc : -EPIPE;
}

static int shm_flush(struct gp_channel *ch)
{
    if (ch->generation != gp_fork_generation())
        return -EPIPE;
    return dead_reason(ch) || reader_closed(ch) || peer_glance(ch) ? -EPIPE : 0;
}

static void shm_relieve(struct gp_channel *ch, gp_relief_fn *relief, void *owner)
{
    gp_relief_set(&ch->relief, relief, owner);
}

/* --- receiving ----------------------------------------------------------- */

static bool writer_closed(const struct gp_channel *ch)
{
    /* Acquire, pairs with the store in shm_channel_kill: what was published
     * before the peer closed is visible in the look at the ring that follows. */
    return atomic_load_explicit(&ch->reader.shared->writer_closed, memory_order_acquire) != 0;
}

/* The peer is gone; what it had published before still counts. */
static int recv_last(struct gp_channel *ch, int why, const void **message, size_t *size)
{
    int rc = gp_ring_peek(&ch->reader, message, size);
    return rc == -EAGAIN ? why : rc;
}

static int message_wait_spin(struct gp_channel *ch, int64_t deadline, const void **message,
                             size_t *size)
{
    int64_t start = gp_clock_ns();
    int64_t end = start + ch->spin_recv.budget_ns;
    if (end > deadline)
        end = deadline;
    for (unsigned turn = 1;; turn++) {
        int rc = gp_ring_peek(&ch->reader, message, size);
        if (rc != -EAGAIN || writer_closed(ch))
            return rc;
        gp_cpu_relax();
        if (turn % 32 == 0 && gp_clock_ns() >= end)
            return -EAGAIN;
    }
}

static int message_wait_sleep(struct gp_channel *ch, int64_t deadline, const void **message,
                              size_t *size)
{
    _Atomic uint32_t *word = &ch->reader.shared->reader_sleeps;
    sleeper_announce(word);
    int rc = gp_ring_peek(&ch->reader, message, size);
    if (rc == -EAGAIN && !writer_closed(ch) && !dead_reason(ch)) {
        int64_t ns = (int64_t)SLEEP_SLICE_MS * 1000000;
        if (deadline != INT64_MAX && deadline - gp_clock_ns() < ns)
            ns = deadline - gp_clock_ns();
        if (ns > 0)
            futex_wait(word, 1, ns);
        rc = gp_ring_peek(&ch->reader, message, size);
    }
    sleeper_withdraw(word);
    return rc;
}

static int message_wait(struct gp_channel *ch, int64_t timeout_us, const void **message,
                        size_t *size)
{
    int64_t deadline = gp_deadline_us(timeout_us), begin = gp_clock_ns();
    bool naps = gp_spin_naps(timeout_us);
    for (;;) {
        int rc = naps ? -EAGAIN : message_wait_spin(ch, deadline, message, size);
        if (rc == -EAGAIN)
            rc = message_wait_sleep(ch, deadline, message, size);
        if (!naps)
            gp_spin_learn(&ch->spin_recv, rc == 0 ? gp_clock_ns() - begin : INT64_MAX);
        if (rc != -EAGAIN)
            return rc;
        if (dead_reason(ch) || writer_closed(ch))
            return recv_last(ch, -EPIPE, message, size);
        rc = peer_look(ch);
        if (rc)
            return recv_last(ch, rc, message, size);
        if (deadline != INT64_MAX && gp_clock_ns() >= deadline)
            return -EAGAIN;
    }
}

/* One look, and now and then a glance at the peer. */
static int message_poll(struct gp_channel *ch, const void **message, size_t *size)
{
    int rc = gp_ring_peek(&ch->reader, message, size);
    if (rc != -EAGAIN)
        return rc;
    if (dead_reason(ch) || writer_closed(ch))
        return recv_last(ch, -EPIPE, message, size);
    rc = peer_glance(ch);
    return rc ? recv_last(ch, rc, message, size) : -EAGAIN;
}

/*
 * The peer can still write to what we look at. Decoders must not see a length
 * change between check and use, so they get a copy; large data goes by share, not
 * by message.
 */
static int message_take(struct gp_channel *ch, const void **message, size_t size)
{
    if (!ch->copy) {
        ch->copy = aligned_alloc(64, (GP_MESSAGE_MAX + 63) & ~(size_t)63);
        if (!ch->copy)
            return -ENOMEM;
    }
    memcpy(ch->copy, *message, size);
    *message = ch->copy;
    return 0;
}

static int shm_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size)
{
    const void *at;
    size_t bytes;
    if (ch->generation != gp_fork_generation())
        return -EPIPE;
    if (dead_reason(ch) == -EPROTO)
        return -EPROTO;
    int rc = message_poll(ch, &at, &bytes);
    if (rc == -EAGAIN && timeout_us != 0)
        rc = message_wait(ch, timeout_us, &at, &bytes);
    if (rc == 0)
        rc = message_take(ch, &at, bytes);
    if (rc) {
        rc = end_reason(ch, rc);
        if (rc == -EPIPE || rc == -EPROTO || rc == -EBADF)
            shm_channel_kill(ch, rc);
        return rc;
    }
    *message = at;
    *size = bytes;
    return 0;
}

static void shm_release(struct gp_channel *ch)
{
    if (ch->generation != gp_fork_generation())
        return;
    if (gp_ring_consume(&ch->reader))
        sleeper_wake(&ch->reader.shared->writer_sleeps);
}

/* --- life ---------------------------------------------------------------- */

int shm_channel_new(unsigned char *memory, int sock, bool accepted, struct gp_channel **out)
{
    struct gp_channel *ch = aligned_alloc(64, (sizeof *ch + 63) & ~(size_t)63);
    if (!ch)
        return -ENOMEM;
    memset(ch, 0, sizeof *ch);
    ch->memory = memory;
    ch->socket = sock;
    gp_fd_note(&ch->mark, accepted ? -1 : sock);
    ch->generation = gp_fork_generation();
    ch->peer_pidfd = -1;
    ch->next_id = accepted ? 2 : 1;

    struct gp_ring_shared *first = (void *)memory;
    struct gp_ring_shared *second = (void *)(memory + SHM_CONTROL / 2);
    unsigned char *bytes = memory + SHM_CONTROL;
    if (accepted) {
        gp_ring_reader_init(&ch->reader, first, bytes, SHM_RING);
        gp_ring_writer_init(&ch->writer, second, bytes + SHM_RING, SHM_RING);
    } else {
        gp_ring_writer_init(&ch->writer, first, bytes, SHM_RING);
        gp_ring_reader_init(&ch->reader, second, bytes + SHM_RING, SHM_RING);
    }
    gp_turnstile_init(&ch->sending);
    pthread_mutex_init(&ch->share_lock, NULL);
    gp_spin_init(&ch->spin_send);
    gp_spin_init(&ch->spin_recv);
    *out = ch;
    return 0;
}

static void shm_close(struct gp_channel *ch)
{
    if (!ch)
        return;
    /* A forked child closes its copies and leaves its parent's channel alone. */
    if (ch->generation == gp_fork_generation())
        shm_channel_kill(ch, -EPIPE);
    shm_arrivals_drop(ch);
    if (gp_fd_is(&ch->mark))
        close(ch->socket);
    if (ch->peer_pidfd >= 0)
        close(ch->peer_pidfd);
    munmap(ch->memory, SHM_BYTES);
    gp_turnstile_destroy(&ch->sending);
    pthread_mutex_destroy(&ch->share_lock);
    free(ch->copy);
    free(ch);
}

static const char *const shm_schemes[] = {"shm://", "unix://", NULL};

const struct gp_transport gp_transport_shm = {
    .abi = GP_TRANSPORT_ABI,
    .name = "shm",
    .schemes = shm_schemes,
    .caps = GP_CAP_SHARE,
    .listen = shm_listen,
    .listener_url = shm_listener_url,
    .accept = shm_accept,
    .listener_close = shm_listener_close,
    .connect = shm_connect,
    .send = shm_send,
    .flush = shm_flush,
    .relieve = shm_relieve,
    .recv = shm_recv,
    .release = shm_release,
    .share = shm_share,
    .accept_share = shm_accept_share,
    .unshare = shm_unshare,
    .close = shm_close,
    .ask = shm_ask,
};
