/* Receiving: by the thread that asks, from the socket, or what the lanes have read. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "transport/tcp_channel.h"

/* What the socket has, without waiting: 0 something, -EAGAIN, -EPIPE, -EBADF. */
static int socket_take(struct gp_channel *ch)
{
    size_t room;
    void *to = ch->tls ? tcp_tls_space(ch->tls, &room) : tcp_frames_space(&ch->frames, &room);
    ssize_t n = tcp_socket_recv(&ch->socket, to, room);
    if (n < 0)
        return (int)n;
    if (ch->tls)
        tcp_tls_filled(ch->tls, (size_t)n);
    else
        tcp_frames_filled(&ch->frames, (size_t)n);
    ch->sealed_left = ch->tls != NULL;
    return 0;
}

/* Open what was taken from the socket: 0 something, -EAGAIN, -EPROTO. */
static int sealed_open(struct gp_channel *ch)
{
    size_t room;
    if (!ch->sealed_left)
        return -EAGAIN;
    void *to = tcp_frames_space(&ch->frames, &room);
    ssize_t n = tcp_tls_open(ch->tls, to, room);
    ch->sealed_left = n == (ssize_t)room;
    if (n < 0)
        return (int)n;
    tcp_frames_filled(&ch->frames, (size_t)n);
    return 0;
}

/* The message that is due on the lanes: nothing behind its note is looked at before. */
static int striped_next(struct gp_channel *ch, const void **message, size_t *size)
{
    int rc = tcp_lanes_take(ch->lanes, ch->noted, message);
    if (rc)
        return rc;
    *size = ch->noted;
    ch->noted = 0;
    ch->striped = true;
    return 0;
}

/* What is next in the stream: 0 a message, lent; -EAGAIN there is none whole, or one is due. */
static int stream_next(struct gp_channel *ch, const void **message, size_t *size)
{
    struct stripe_note note;
    int rc;
    while ((rc = tcp_frames_note(&ch->frames, &note)) == 0) {
        rc = ch->lanes ? tcp_lanes_noted(ch->lanes, &note) : -EPROTO;
        if (rc)
            return rc;
        if (note.kind == STRIPE_NOTE_MESSAGE) {
            ch->noted = note.value;
            return striped_next(ch, message, size);
        }
    }
    return rc == -EAGAIN ? tcp_frames_next(&ch->frames, message, size) : rc;
}

/* The next message of what was taken from the socket. */
static int message_next(struct gp_channel *ch, const void **message, size_t *size)
{
    int rc;
    if (ch->noted)
        return striped_next(ch, message, size);
    while ((rc = stream_next(ch, message, size)) == -EAGAIN && !ch->noted)
        if ((rc = sealed_open(ch)) != 0)
            break;
    return rc;
}

/* The next message without waiting; -EPIPE once all that came has been taken. */
static int message_take(struct gp_channel *ch, const void **message, size_t *size)
{
    for (;;) {
        int rc = message_next(ch, message, size);
        if (rc != -EAGAIN || ch->noted)
            return rc;
        rc = ch->ended ? -EPIPE : socket_take(ch);
        if (rc == -EPIPE)
            ch->ended = true;
        if (rc)
            return rc;
    }
}

static int message_spin(struct gp_channel *ch, int64_t deadline, const void **message, size_t *size)
{
    int64_t end = gp_clock_ns() + ch->spin.budget_ns;
    if (end > deadline)
        end = deadline;
    int rc = -EAGAIN;
    do
        if (ch->noted || tcp_socket_may_recv(&ch->socket))
            rc = message_take(ch, message, size);
    while (rc == -EAGAIN && gp_clock_ns() < end);
    return rc;
}

/* Sleep until something may have come. */
static int arrival_wait(struct gp_channel *ch, int64_t deadline)
{
    if (!ch->noted)
        return tcp_socket_wait(&ch->socket, POLLIN, deadline);
    tcp_lanes_wait(ch->lanes, deadline);
    int dead = ch->dead;
    return dead == -EPROTO || dead == -EBADF ? dead : 0;
}

static int message_wait(struct gp_channel *ch, int64_t timeout_us, const void **message,
                        size_t *size)
{
    bool polls = timeout_us == 0;
    int rc = polls || ch->ended ? message_take(ch, message, size) : message_next(ch, message, size);
    if (rc != -EAGAIN)
        return rc;
    /* Whoever waits for an answer wants the question to have gone. */
    if (ch->waiting && !ch->dead)
        tcp_flush_try(ch);
    if (polls)
        return -EAGAIN;
    int64_t deadline = gp_deadline_us(timeout_us), begin = gp_clock_ns();
    bool naps = gp_spin_naps(timeout_us);
    rc = naps ? -EAGAIN : message_spin(ch, deadline, message, size);
    while (rc == -EAGAIN && (deadline == INT64_MAX || gp_clock_ns() < deadline)) {
        rc = arrival_wait(ch, deadline);
        if (rc == 0)
            rc = message_take(ch, message, size);
    }
    if (!naps)
        gp_spin_learn(&ch->spin, rc == 0 ? gp_clock_ns() - begin : INT64_MAX);
    return rc;
}

int tcp_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size)
{
    if (tcp_is_forked(ch))
        return -EPIPE;
    int dead = ch->dead;
    if (dead == -EPROTO || dead == -EBADF)
        return dead;
    int rc = message_wait(ch, timeout_us, message, size);
    if (rc != -EPIPE && rc != -EPROTO && rc != -EBADF)
        return rc;
    tcp_channel_kill(ch, rc);
    return ch->dead == -EPROTO ? -EPROTO : rc; /* a lane may have ended the socket */
}

void tcp_release(struct gp_channel *ch)
{
    if (tcp_is_forked(ch))
        return;
    if (!ch->striped) {
        tcp_frames_release(&ch->frames);
        return;
    }
    ch->striped = false;
    tcp_lanes_release(ch->lanes);
}

int tcp_keep(struct gp_channel *ch, const void *within)
{
    return ch->striped && !tcp_is_forked(ch) ? tcp_lanes_keep(ch->lanes, within) : -EAGAIN;
}

void tcp_let_go(struct gp_channel *ch, const void *within)
{
    if (ch->lanes && !tcp_is_forked(ch))
        tcp_lanes_let_go(ch->lanes, within);
}

void tcp_land(struct gp_channel *ch, gp_land_fn *ask, void *owner)
{
    if (ch->lanes && !tcp_is_forked(ch))
        tcp_lanes_land(ch->lanes, ask, owner);
}

bool tcp_landed(const struct gp_channel *ch)
{
    return ch->striped && tcp_lanes_landed(ch->lanes);
}

void tcp_ground(struct gp_channel *ch)
{
    if (tcp_is_forked(ch))
        return; /* its threads are the parent's */
    tcp_channel_kill(ch, -EPIPE);
    tcp_socket_shut(&ch->socket, SHUT_RDWR);
    if (ch->lanes)
        tcp_lanes_ground(ch->lanes);
}
