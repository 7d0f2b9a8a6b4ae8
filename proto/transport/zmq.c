#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/zmq_channel.h"

/* What a close may spend on sending the rest. */
#define CLOSE_MS 1000
/* How long a sleeper does not look whether its descriptors are still there. */
#define SLICE_MS 500
/* A receiver tells its peer what it has consumed this often. */
#define CREDIT_BYTES (LINK_WINDOW_BYTES / 4)
#define CREDIT_BATCHES (LINK_WINDOW_BATCHES / 4)

/* --- the end ------------------------------------------------------------- */

bool gpz_fds_ours(struct gp_channel *ch)
{
    if (!atomic_load(&ch->robbed) && !gp_fd_is(&ch->mark))
        atomic_store(&ch->robbed, true);
    return !atomic_load(&ch->robbed);
}

static void dead_set(struct gp_channel *ch, _Atomic bool *flag, int fd)
{
    uint64_t one = 1;
    if (atomic_exchange(flag, true) || !gpz_fds_ours(ch))
        return;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void gpz_send_dead_set(struct gp_channel *ch)
{
    dead_set(ch, &ch->send_dead, ch->send_dead_fd);
}

void gpz_recv_dead_set(struct gp_channel *ch)
{
    dead_set(ch, &ch->recv_dead, ch->recv_dead_fd);
}

/* Sleep until the socket behind `fd` or the end has news. Not in ZeroMQ, which ends the
 * process when descriptors have been closed meanwhile; and not for long, because what is
 * closed never wakes anybody. */
static void news_wait(int fd, int dead_fd, int64_t deadline)
{
    struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = dead_fd, .events = POLLIN}};
    gp_poll_until(fds, 2, deadline, SLICE_MS);
}

static int channel_garbled(struct gp_channel *ch)
{
    atomic_store(&ch->garbled, true);
    gpz_send_dead_set(ch);
    gpz_recv_dead_set(ch);
    return -EPROTO;
}

static bool is_forked(const struct gp_channel *ch)
{
    return ch->generation != gp_fork_generation();
}

/* --- sending ------------------------------------------------------------- */

/* Read what the peer says it has consumed. */
static int credit_read(struct gp_channel *ch)
{
    struct link_credit c;
    for (;;) {
        int n = zmq_recv(ch->send_socket, &c, sizeof c, ZMQ_DONTWAIT);
        if (n < 0)
            return 0;
        /* It only rises, and to no more than was sent. */
        if (n != (int)sizeof c || c.bytes > ch->sent_bytes || c.bytes < ch->credited_bytes ||
            c.batches > ch->sent_batches || c.batches < ch->credited_batches)
            return -EPROTO;
        ch->credited_bytes = c.bytes;
        ch->credited_batches = c.batches;
    }
}

static bool credit_left(const struct gp_channel *ch, size_t size)
{
    uint64_t bytes = ch->sent_bytes - ch->credited_bytes;
    return bytes + size <= LINK_WINDOW_BYTES &&
           ch->sent_batches - ch->credited_batches < LINK_WINDOW_BATCHES;
}

/* Wait until `size` more bytes may go: 0, -EAGAIN at the deadline, -EPIPE, -EPROTO. */
static int credit_wait(struct gp_channel *ch, size_t size, int64_t deadline)
{
    while (!credit_left(ch, size)) {
        if (!gpz_fds_ours(ch))
            return -EBADF;
        int rc = credit_read(ch);
        if (rc)
            return rc;
        if (credit_left(ch, size))
            return 0;
        if (ch->send_dead)
            return -EPIPE;
        int left = gp_deadline_left_ms(deadline, 1000);
        if (left == 0)
            return -EAGAIN;
        news_wait(ch->send_fd, ch->send_dead_fd,
                  gp_clock_ns() + gp_relief_pause_ms(&ch->relief, left) * INT64_C(1000000));
        if (deadline == INT64_MAX)
            gp_relief_give(&ch->relief);
    }
    return 0;
}

/* Send one batch; takes `msg` over. */
static int batch_send(struct gp_channel *ch, zmq_msg_t *msg, int64_t deadline)
{
    size_t size = zmq_msg_size(msg);
    int rc = credit_wait(ch, size, deadline);
    if (rc == 0 && !gpz_fds_ours(ch))
        rc = -EBADF;
    /* The socket has no limit of its own, so it refuses only without a peer. */
    if (rc == 0 && zmq_msg_send(msg, ch->send_socket, ZMQ_DONTWAIT) < 0)
        rc = zmq_errno() == EAGAIN ? -EPIPE : link_errno();
    if (rc) {
        zmq_msg_close(msg); /* frees memory, no more */
        return rc;
    }
    ch->sent_bytes += size;
    ch->sent_batches++;
    return 0;
}

/* With the turnstile held. What was gathered stays so when there is no credit. */
static int gather_send(struct gp_channel *ch, int64_t deadline)
{
    size_t used = ch->gather_used;
    if (used == 0)
        return 0;
    int rc = credit_wait(ch, used, deadline);
    if (rc)
        return rc;
    zmq_msg_t msg;
    if (zmq_msg_init_size(&msg, used) != 0)
        return -ENOMEM;
    memcpy(zmq_msg_data(&msg), ch->gather, used);
    rc = batch_send(ch, &msg, deadline);
    if (rc == 0)
        ch->gather_used = 0;
    return rc;
}

/* A message too long to be gathered is a batch of its own. */
static int long_send(struct gp_channel *ch, const struct iovec *iov, int count, size_t size)
{
    zmq_msg_t msg;
    if (zmq_msg_init_size(&msg, gp_batch_room(size)) != 0)
        return -ENOMEM;
    gp_batch_put(zmq_msg_data(&msg), iov, count, size);
    return batch_send(ch, &msg, INT64_MAX);
}

static int gather_add(struct gp_channel *ch, const struct iovec *iov, int count, size_t size)
{
    size_t used = ch->gather_used;
    gp_batch_put(ch->gather + used, iov, count, size);
    atomic_store_explicit(&ch->gather_used, used + gp_batch_room(size), memory_order_seq_cst);
    return 0;
}

static int send_locked(struct gp_channel *ch, const struct iovec *iov, int count, size_t size,
                       unsigned flags)
{
    if (ch->send_dead)
        return -EPIPE;
    size_t room = gp_batch_room(size);
    int rc = 0;
    if (ch->gather_used + room > GATHER_BYTES)
        rc = gather_send(ch, INT64_MAX);
    if (rc)
        return rc;
    if (room > GATHER_BYTES)
        return long_send(ch, iov, count, size);
    bool first = ch->gather_used == 0;
    rc = gather_add(ch, iov, count, size);
    if (rc == 0 && !(flags & GP_SEND_LATER))
        return gather_send(ch, INT64_MAX);
    if (first)
        gpz_keeper_nudge(ch);
    return rc;
}

/* What a sender may return: a dead channel says -EPIPE, whatever killed it. */
static int send_result(struct gp_channel *ch, int rc)
{
    if (rc == 0 || rc == -ENOMEM)
        return rc;
    if (rc == -EPROTO)
        channel_garbled(ch);
    gpz_send_dead_set(ch);
    return gpz_fds_ours(ch) ? -EPIPE : -EBADF;
}

static int gpz_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    size_t size;
    int rc = gp_gather_size(iov, count, &size);
    if (rc)
        return rc;
    if (is_forked(ch))
        return -EPIPE;
    gp_turnstile_enter(&ch->sending);
    rc = send_result(ch, send_locked(ch, iov, count, size, flags));
    gp_turnstile_leave(&ch->sending);
    return rc;
}

static int gpz_flush(struct gp_channel *ch)
{
    if (is_forked(ch) || ch->send_dead)
        return ch->robbed ? -EBADF : -EPIPE;
    if (ch->gather_used == 0)
        return 0;
    gp_turnstile_enter(&ch->sending);
    int rc = send_result(ch, gather_send(ch, INT64_MAX));
    gp_turnstile_leave(&ch->sending);
    return rc;
}

static void gpz_relieve(struct gp_channel *ch, gp_relief_fn *relief, void *owner)
{
    gp_relief_set(&ch->relief, relief, owner);
}

void gpz_flush_try(struct gp_channel *ch)
{
    if (!gp_turnstile_try(&ch->sending))
        return; /* somebody is sending; the keeper looks again soon */
    int rc = gather_send(ch, 0);
    if (rc != -EAGAIN)
        send_result(ch, rc);
    gp_turnstile_leave(&ch->sending);
}

/* --- receiving ----------------------------------------------------------- */

static void credit_give(struct gp_channel *ch)
{
    struct link_credit c = {.bytes = ch->got_bytes, .batches = ch->got_batches};
    if (c.bytes - ch->told_bytes < CREDIT_BYTES && c.batches - ch->told_batches < CREDIT_BATCHES)
        return;
    if (!gpz_fds_ours(ch)) /* asked last: that is a system call */
        return;
    /* One that is lost is made up for by the next, which counts from the start. */
    if (zmq_send(ch->recv_socket, &c, sizeof c, ZMQ_DONTWAIT) < 0)
        return;
    ch->told_bytes = c.bytes;
    ch->told_batches = c.batches;
}

static void batch_done(struct gp_channel *ch)
{
    ch->got_bytes += ch->reader.size;
    ch->got_batches++;
    zmq_msg_close(&ch->batch);
    ch->batch_held = false;
    credit_give(ch);
}

/* ZeroMQ hands out small messages at any address inside its own buffer. */
static int batch_align(struct gp_channel *ch, const unsigned char **bytes, size_t size)
{
    if (((uintptr_t)*bytes & 7) == 0)
        return 0;
    if (!ch->aligned) {
        ch->aligned = aligned_alloc(64, (GP_BATCH_MAX + 63) & ~(size_t)63);
        if (!ch->aligned)
            return -ENOMEM;
    }
    memcpy(ch->aligned, *bytes, size);
    *bytes = ch->aligned;
    return 0;
}

/* The next batch, without waiting: 0, -EAGAIN, -EPROTO, -ENOMEM. */
static int batch_recv(struct gp_channel *ch)
{
    if (!gpz_fds_ours(ch))
        return -EBADF;
    zmq_msg_init(&ch->batch);
    if (zmq_msg_recv(&ch->batch, ch->recv_socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&ch->batch);
        return -EAGAIN;
    }
    const unsigned char *bytes = zmq_msg_data(&ch->batch);
    size_t size = zmq_msg_size(&ch->batch);
    int rc = size > GP_BATCH_MAX || zmq_msg_more(&ch->batch) ? -EPROTO : 0;
    if (rc == 0)
        rc = batch_align(ch, &bytes, size);
    if (rc) {
        zmq_msg_close(&ch->batch);
        return rc;
    }
    ch->reader = (struct gp_batch_reader){.bytes = bytes, .size = size};
    ch->batch_held = true;
    return 0;
}

/* Sleep until a batch or the end may be there. */
static void recv_sleep(struct gp_channel *ch, int64_t deadline)
{
    news_wait(ch->recv_fd, ch->recv_dead_fd, deadline);
}

static int batch_spin(struct gp_channel *ch, int64_t deadline)
{
    int64_t end = gp_clock_ns() + ch->spin.budget_ns;
    if (end > deadline)
        end = deadline;
    int rc;
    do
        rc = batch_recv(ch);
    while (rc == -EAGAIN && !ch->recv_dead && gp_clock_ns() < end);
    return rc;
}

static int batch_wait(struct gp_channel *ch, int64_t timeout_us)
{
    bool dead = ch->recv_dead;
    int rc = batch_recv(ch); /* after the look at the flag: the last words count */
    if (rc != -EAGAIN || dead)
        return rc == -EAGAIN ? -EPIPE : rc;
    /* Whoever waits for an answer wants the question to have gone. */
    if (ch->gather_used > 0 && !ch->send_dead)
        gpz_flush_try(ch);
    if (timeout_us == 0)
        return -EAGAIN;
    int64_t deadline = gp_deadline_us(timeout_us), begin = gp_clock_ns();
    for (;;) {
        rc = batch_spin(ch, deadline);
        if (rc == -EAGAIN) {
            recv_sleep(ch, deadline);
            dead = ch->recv_dead;
            rc = batch_recv(ch);
        }
        gp_spin_learn(&ch->spin, rc == 0 ? gp_clock_ns() - begin : INT64_MAX);
        if (rc != -EAGAIN || dead)
            return rc == -EAGAIN ? -EPIPE : rc;
        if (deadline != INT64_MAX && gp_clock_ns() >= deadline)
            return -EAGAIN;
    }
}

static int gpz_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size)
{
    if (is_forked(ch))
        return -EPIPE;
    if (ch->garbled)
        return -EPROTO;
    int rc = ch->batch_held ? 0 : batch_wait(ch, timeout_us);
    if (rc == 0)
        rc = gp_batch_next(&ch->reader, message, size);
    if (rc == -EPROTO)
        return channel_garbled(ch);
    if (rc == -EPIPE || rc == -EBADF)
        gpz_send_dead_set(ch);
    return rc;
}

static void gpz_release(struct gp_channel *ch)
{
    if (!is_forked(ch) && ch->batch_held && ch->reader.at == ch->reader.size)
        batch_done(ch);
}

/* --- life ---------------------------------------------------------------- */

static void channel_free(struct gp_channel *ch)
{
    int fds[] = {ch->send_dead_fd, ch->recv_dead_fd, ch->keeper_wake_fd, ch->mark.fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (ch->batch_held)
        zmq_msg_close(&ch->batch);
    gp_turnstile_destroy(&ch->sending);
    free(ch->gather);
    free(ch->aligned);
    free(ch);
}

static int socket_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof fd;
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

int gpz_channel_new(void *ctx, const struct link *up, const struct link *down, bool accepted,
                    int mark, struct gp_channel **out)
{
    struct gp_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return -ENOMEM;
    ch->ctx = ctx;
    ch->generation = gp_fork_generation();
    ch->up = *up;
    ch->down = *down;
    ch->send_socket = accepted ? down->socket : up->socket;
    ch->recv_socket = accepted ? up->socket : down->socket;
    ch->send_fd = socket_fd(ch->send_socket);
    ch->recv_fd = socket_fd(ch->recv_socket);
    gp_fd_note(&ch->mark, mark);
    gp_turnstile_init(&ch->sending);
    gp_spin_init(&ch->spin);
    ch->gather = aligned_alloc(64, GATHER_BYTES);
    ch->send_dead_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ch->recv_dead_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ch->keeper_wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = ch->gather ? 0 : -ENOMEM;
    if (ch->send_dead_fd < 0 || ch->recv_dead_fd < 0 || ch->keeper_wake_fd < 0)
        rc = -EMFILE;
    if (rc == 0)
        rc = gpz_keeper_start(ch);
    if (rc) {
        ch->mark.fd = -1; /* still the caller's */
        channel_free(ch);
        return rc;
    }
    *out = ch;
    return 0;
}

static void gpz_close(struct gp_channel *ch)
{
    /* In a forked child libzmq's threads are missing: leave all as it is. */
    if (!ch || is_forked(ch))
        return;
    /* Without its descriptors nothing of ZeroMQ can be ended: leave it as well. */
    if (!gpz_fds_ours(ch))
        return;
    int64_t deadline = gp_deadline_us((int64_t)CLOSE_MS * 1000);
    gp_turnstile_enter(&ch->sending);
    if (!ch->send_dead)
        gather_send(ch, deadline);
    gp_turnstile_leave(&ch->sending);
    gpz_keeper_stop(ch);
    int linger = ch->send_dead ? 0 : gp_deadline_left_ms(deadline, CLOSE_MS);
    if (ch->batch_held) {
        zmq_msg_close(&ch->batch);
        ch->batch_held = false;
    }
    link_close(&ch->up, ch->send_socket == ch->up.socket ? linger : 0);
    link_close(&ch->down, ch->send_socket == ch->down.socket ? linger : 0);
    link_context_end(ch->ctx);
    channel_free(ch);
}

/* Whoever sends or receives returns. */
static void gpz_ground(struct gp_channel *ch)
{
    if (is_forked(ch))
        return;
    gpz_send_dead_set(ch);
    gpz_recv_dead_set(ch);
}

static const char *const zmq_schemes[] = {"tcp://", "ipc://", NULL};

__attribute__((visibility("default"))) extern const struct gp_transport gp_transport_zmq;
const struct gp_transport gp_transport_zmq = {
    .abi = GP_TRANSPORT_ABI,
    .name = "zmq",
    .schemes = zmq_schemes,
    .caps = 0,
    .listen = gpz_listen,
    .listener_url = gpz_listener_url,
    .accept = gpz_accept,
    .listener_close = gpz_listener_close,
    .connect = gpz_connect,
    .send = gpz_send,
    .flush = gpz_flush,
    .relieve = gpz_relieve,
    .recv = gpz_recv,
    .release = gpz_release,
    .ground = gpz_ground,
    .close = gpz_close,
    .ask = gpz_ask,
};
