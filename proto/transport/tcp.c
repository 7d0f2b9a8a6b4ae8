#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/tcp_channel.h"

/* What a close may spend on sending the rest. */
#define CLOSE_MS 1000

_Static_assert(GATHER_BYTES <= TLS_CHUNK, "what is gathered is sealed at once");

bool tcp_is_forked(const struct gp_channel *ch)
{
    return ch->generation != gp_fork_generation();
}

/* --- the end ------------------------------------------------------------- */

void tcp_channel_kill(struct gp_channel *ch, int why)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&ch->dead, &none, why))
        return;
    if (why == -EPROTO && tcp_socket_is_ours(&ch->socket))
        shutdown(ch->socket.fd, SHUT_RDWR);
}

/* --- sending: with the turnstile held -------------------------------------- */

static size_t gathered(const struct gp_channel *ch)
{
    return ch->gather_used - ch->gather_at;
}

static void waiting_note(struct gp_channel *ch)
{
    bool sealed = ch->tls && tcp_tls_sealed(ch->tls).iov_len > 0;
    atomic_store(&ch->waiting, sealed || gathered(ch) > 0);
}

/* Until the socket takes more: 0, -EAGAIN at the deadline, -EPIPE, -EBADF. */
static int room_wait(struct gp_channel *ch, int64_t deadline)
{
    int left = gp_deadline_left_ms(deadline, 1000);
    if (ch->dead)
        return ch->dead;
    if (left == 0)
        return -EAGAIN;
    int pause = gp_relief_pause_ms(&ch->relief, left);
    int rc = tcp_socket_wait(&ch->socket, POLLOUT, gp_clock_ns() + pause * INT64_C(1000000));
    if (rc == 0 && deadline == INT64_MAX)
        gp_relief_give(&ch->relief);
    return rc;
}

/* Send a list to its end; at the deadline what is left of it is in the list. */
static int list_send(struct gp_channel *ch, struct iovec **list, int *count, int64_t deadline)
{
    while (*count > 0) {
        ssize_t n = tcp_socket_send(&ch->socket, *list, *count);
        if (n >= 0)
            tcp_list_advance(list, count, (size_t)n);
        else if (n != -EAGAIN)
            return (int)n;
        else {
            int rc = room_wait(ch, deadline);
            if (rc)
                return rc;
        }
    }
    return 0;
}

static int sealed_send(struct gp_channel *ch, int64_t deadline)
{
    struct iovec sealed = tcp_tls_sealed(ch->tls), *list = &sealed;
    size_t before = sealed.iov_len;
    int count = before > 0;
    int rc = list_send(ch, &list, &count, deadline);
    tcp_tls_sent(ch->tls, before - (count ? sealed.iov_len : 0));
    return rc;
}

static int bytes_seal(struct gp_channel *ch, const void *from, size_t size, int64_t deadline)
{
    int rc = sealed_send(ch, deadline);
    if (rc)
        return rc;
    return tcp_tls_seal(ch->tls, from, size) == (ssize_t)size ? 0 : -EPROTO;
}

/* What the socket does not take until the deadline stays. */
static int gather_send(struct gp_channel *ch, int64_t deadline)
{
    int rc = 0;
    if (!ch->tls) {
        struct iovec rest = {ch->gather + ch->gather_at, gathered(ch)}, *list = &rest;
        int count = rest.iov_len > 0;
        rc = list_send(ch, &list, &count, deadline);
        ch->gather_at = count ? ch->gather_used - rest.iov_len : ch->gather_used;
    } else {
        if (gathered(ch) > 0)
            rc = bytes_seal(ch, ch->gather + ch->gather_at, gathered(ch), deadline);
        if (rc == 0) {
            ch->gather_at = ch->gather_used;
            rc = sealed_send(ch, deadline);
        }
    }
    if (ch->gather_at == ch->gather_used)
        ch->gather_at = ch->gather_used = 0;
    waiting_note(ch);
    return rc;
}

/* A message too long to be gathered goes as it lies there. */
static int long_send_plain(struct gp_channel *ch, const struct iovec *iov, int count, size_t size)
{
    static const unsigned char zero[8];
    struct gp_batch_entry entry = {.size = (uint32_t)size, .kind = GP_BATCH_MESSAGE};
    struct iovec pieces[GP_GATHER_MAX + 2] = {{&entry, sizeof entry}}, *list = pieces;
    memcpy(pieces + 1, iov, (size_t)count * sizeof *iov);
    pieces[count + 1] = (struct iovec){(void *)zero, gp_align8(size) - size};
    int left = count + 2;
    return list_send(ch, &list, &left, INT64_MAX);
}

/* Bytes that nothing was gathered before: whole chunks are sealed where they lie. */
static int stream_add(struct gp_channel *ch, const unsigned char *from, size_t size)
{
    int rc = 0;
    while (rc == 0 && size > 0) {
        size_t room = GATHER_BYTES - ch->gather_used, n = size < room ? size : room;
        if (ch->gather_used == 0 && size >= TLS_CHUNK) {
            n = TLS_CHUNK;
            rc = bytes_seal(ch, from, n, INT64_MAX);
        } else {
            memcpy(ch->gather + ch->gather_used, from, n);
            ch->gather_used += n;
            if (ch->gather_used == GATHER_BYTES)
                rc = gather_send(ch, INT64_MAX);
        }
        from += n;
        size -= n;
    }
    return rc;
}

static int long_send_sealed(struct gp_channel *ch, const struct iovec *iov, int count, size_t size)
{
    static const unsigned char zero[8];
    struct gp_batch_entry entry = {.size = (uint32_t)size, .kind = GP_BATCH_MESSAGE};
    int rc = stream_add(ch, (const void *)&entry, sizeof entry);
    for (int i = 0; rc == 0 && i < count; i++)
        rc = stream_add(ch, iov[i].iov_base, iov[i].iov_len);
    if (rc == 0)
        rc = stream_add(ch, zero, gp_align8(size) - size);
    return rc ? rc : gather_send(ch, INT64_MAX);
}

static int note_gather(struct gp_channel *ch, uint32_t kind, size_t value)
{
    struct stripe_note note = {.value = (uint32_t)value, .kind = kind};
    int rc = ch->gather_used + sizeof note > GATHER_BYTES ? gather_send(ch, INT64_MAX) : 0;
    if (rc)
        return rc;
    memcpy(ch->gather + ch->gather_used, &note, sizeof note);
    ch->gather_used += sizeof note;
    return 0;
}

/* The note goes while the lanes' threads begin. The peer's may be asleep until it comes, and have no
 * room for a whole message: nobody waits for them before. */
static int long_send_striped(struct gp_channel *ch, const struct iovec *iov, int count, size_t size,
                             bool lent)
{
    int rc = tcp_lanes_hand(ch->lanes, iov, count, size, &lent);
    if (rc)
        return rc;
    rc = note_gather(ch, STRIPE_NOTE_MESSAGE, size);
    if (rc == 0)
        rc = gather_send(ch, INT64_MAX);
    if (rc) /* the lanes hear of it, and let go of the bytes */
        tcp_channel_kill(ch, rc == -EBADF || rc == -EPROTO ? rc : -EPIPE);
    int left = tcp_lanes_see_off(ch->lanes, lent && rc == 0);
    return rc ? rc : left;
}

static int send_locked(struct gp_channel *ch, const struct iovec *iov, int count, size_t size,
                       unsigned flags)
{
    if (ch->dead)
        return ch->dead;
    size_t room = gp_batch_room(size);
    int rc = 0;
    if (size >= STRIPE_LEAST && ch->lanes && ch->lanes->carry > 0)
        return long_send_striped(ch, iov, count, size, flags & GP_SEND_LENT);
    if (ch->gather_used + room > GATHER_BYTES)
        rc = gather_send(ch, INT64_MAX);
    if (rc)
        return rc;
    if (room > GATHER_BYTES)
        return ch->tls ? long_send_sealed(ch, iov, count, size)
                       : long_send_plain(ch, iov, count, size);
    bool first = !ch->waiting;
    gp_batch_put(ch->gather + ch->gather_used, iov, count, size);
    ch->gather_used += room;
    if (!(flags & GP_SEND_LATER))
        return gather_send(ch, INT64_MAX);
    if (first) {
        atomic_store(&ch->waiting, true);
        tcp_keeper_nudge(ch);
    }
    return 0;
}

/* What a sender may return: a dead channel says -EPIPE, whatever killed it, unless the
 * program did. */
static int send_result(struct gp_channel *ch, int rc)
{
    if (rc == 0)
        return 0;
    tcp_channel_kill(ch, rc == -EBADF || rc == -EPROTO ? rc : -EPIPE);
    return rc == -EBADF ? rc : -EPIPE;
}

static int tcp_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    size_t size;
    int rc = gp_gather_size(iov, count, &size);
    if (rc == 0 && tcp_is_forked(ch))
        rc = -EPIPE;
    if (rc)
        return rc; /* of the caller's, not of the channel's */
    gp_turnstile_enter(&ch->sending);
    rc = send_result(ch, send_locked(ch, iov, count, size, flags));
    gp_turnstile_leave(&ch->sending);
    return rc;
}

static int tcp_flush(struct gp_channel *ch)
{
    if (tcp_is_forked(ch))
        return -EPIPE;
    int rc = ch->dead ? ch->dead : tcp_socket_glance(&ch->socket);
    if (rc || !ch->waiting)
        return send_result(ch, rc);
    gp_turnstile_enter(&ch->sending);
    rc = send_result(ch, gather_send(ch, INT64_MAX));
    gp_turnstile_leave(&ch->sending);
    return rc;
}

static uint64_t tcp_lent(const struct gp_channel *ch)
{
    return ch->lanes && !tcp_is_forked(ch) ? ch->lanes->sent : 0;
}

static uint64_t tcp_returned(const struct gp_channel *ch)
{
    return ch->lanes && !tcp_is_forked(ch) ? tcp_lanes_returned(ch->lanes) : 0;
}

static int tcp_take_back(struct gp_channel *ch)
{
    if (tcp_is_forked(ch))
        return -EPIPE;
    if (!ch->lanes)
        return 0;
    if (tcp_returned(ch) == tcp_lent(ch))
        return send_result(ch, ch->lanes->send_rc);
    gp_turnstile_enter(&ch->sending);
    int rc = send_result(ch, tcp_lanes_see_off(ch->lanes, false));
    gp_turnstile_leave(&ch->sending);
    return rc;
}

static void channel_settle(struct gp_channel *ch, int64_t deadline)
{
    if (ch->lanes)
        tcp_lanes_settle(ch->lanes, deadline);
    tcp_socket_settle(&ch->socket, false, deadline);
}

static void tcp_leave(struct gp_channel *ch)
{
    if (!tcp_is_forked(ch) && tcp_socket_is_ours(&ch->socket))
        channel_settle(ch, gp_deadline_us((int64_t)CLOSE_MS * 1000));
}

static void tcp_relieve(struct gp_channel *ch, gp_relief_fn *relief, void *owner)
{
    gp_relief_set(&ch->relief, relief, owner);
}

int tcp_flush_try(struct gp_channel *ch)
{
    if (!gp_turnstile_try(&ch->sending))
        return -EAGAIN; /* somebody is sending; the keeper looks again soon */
    int rc = ch->dead ? ch->dead : gather_send(ch, 0);
    if (rc != -EAGAIN)
        rc = send_result(ch, rc);
    gp_turnstile_leave(&ch->sending);
    return rc;
}

int tcp_lanes_tell(struct gp_channel *ch, unsigned lanes)
{
    if (!gp_turnstile_try(&ch->sending))
        return -EAGAIN;
    bool room = ch->gather_used + sizeof(struct stripe_note) <= GATHER_BYTES;
    int rc = ch->dead ? ch->dead : room ? note_gather(ch, STRIPE_NOTE_LANES, lanes) : -EAGAIN;
    if (rc == 0) {
        atomic_store(&ch->lanes->carry, lanes);
        atomic_store(&ch->waiting, true);
        tcp_keeper_nudge(ch);
    }
    gp_turnstile_leave(&ch->sending);
    return rc;
}

/* --- life ---------------------------------------------------------------- */

static void channel_free(struct gp_channel *ch)
{
    tcp_tls_free(ch->tls);
    gp_turnstile_destroy(&ch->sending);
    free(ch->gather);
    free(ch->frames.bytes);
    free(ch);
}

int tcp_channel_new(int fd, struct tcp_tls *tls, const struct gp_silence *silence, bool accepted,
                    struct gp_channel **out)
{
    struct gp_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return -ENOMEM;
    tcp_socket_init(&ch->socket, fd, silence, accepted);
    ch->generation = gp_fork_generation();
    gp_turnstile_init(&ch->sending);
    gp_spin_init(&ch->spin);
    ch->gather = aligned_alloc(64, GATHER_BYTES);
    ch->frames.bytes = aligned_alloc(64, (FRAMES_ROOM + 63) & ~(size_t)63);
    int rc = ch->gather && ch->frames.bytes ? 0 : -ENOMEM;
    if (rc == 0)
        rc = tcp_keeper_start(ch);
    if (rc) {
        channel_free(ch);
        return rc;
    }
    ch->tls = tls;
    ch->sealed_left = tls != NULL; /* what came behind the handshake */
    *out = ch;
    return 0;
}

static void tcp_close(struct gp_channel *ch)
{
    if (!ch)
        return;
    bool ours = tcp_socket_is_ours(&ch->socket);
    if (tcp_is_forked(ch)) { /* its copy alone: the connection is the parent's */
        tcp_lanes_close(ch->lanes, 0, true);
        if (ours)
            close(ch->socket.fd);
        return;
    }
    int64_t deadline = gp_deadline_us((int64_t)CLOSE_MS * 1000);
    if (ch->lanes) /* what is lent is sent, or the caller has it back now */
        tcp_lanes_empty(ch->lanes, deadline);
    tcp_lanes_end_opening(ch->lanes); /* it may have something for the keeper */
    tcp_keeper_stop(ch);
    gp_turnstile_enter(&ch->sending);
    if (!ch->dead && ours)
        gather_send(ch, deadline);
    gp_turnstile_leave(&ch->sending);
    tcp_lanes_close(ch->lanes, deadline, false);
    if (ours && tcp_socket_is_ours(&ch->socket)) {
        tcp_socket_finish(&ch->socket, deadline);
        close(ch->socket.fd);
    }
    channel_free(ch);
}

static const char *const tcp_schemes[] = {TCP_TLS_SCHEME, TCP_PLAIN_SCHEME, NULL};

const struct gp_transport gp_transport_tcp = {
    .abi = GP_TRANSPORT_ABI,
    .name = "tcp",
    .schemes = tcp_schemes,
    .caps = 0,
    .listen = tcp_listen,
    .listener_url = tcp_listener_url,
    .accept = tcp_accept,
    .listener_close = tcp_listener_close,
    .connect = tcp_connect,
    .send = tcp_send,
    .lent = tcp_lent,
    .returned = tcp_returned,
    .take_back = tcp_take_back,
    .flush = tcp_flush,
    .leave = tcp_leave,
    .relieve = tcp_relieve,
    .recv = tcp_recv,
    .release = tcp_release,
    .keep = tcp_keep,
    .let_go = tcp_let_go,
    .land = tcp_land,
    .landed = tcp_landed,
    .ground = tcp_ground,
    .close = tcp_close,
};
