/*
 * The end of a channel, by the door's connection. Who closes in order says how many batches it
 * has sent, and waits until its peer has them all: UCX's own connections may be cut behind that.
 * Who dies says nothing, and the kernel ends the connection.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/ucx_channel.h"

/* When the connection has ended without a word: how long UCX may still bring what was sent. */
#define LAST_WORDS_NS 100000000
/* And when it was said how much. */
#define ALL_WORDS_NS 1000000000
/* How often a thread that does not sleep looks at the connection. */
#define LOOK_INTERVAL_NS 3000000

bool ucx_fds_ours(struct gp_channel *ch)
{
    if (ch->why == -EBADF)
        return false;
    if (gp_fd_is(&ch->mark))
        return true;
    ucx_dead_set(ch, -EBADF, true);
    return false;
}

/* There is always room: each kind is said once. */
static void say(struct gp_channel *ch, enum ucx_note_kind kind, uint64_t batches)
{
    const struct ucx_note note = {.kind = kind, .batches = batches};
    if (send(ch->fd, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof note &&
        ch->ended_ns == 0)
        ch->ended_ns = gp_clock_ns();
}

void ucx_notes_say_sent(struct gp_channel *ch)
{
    if (ch->sent_said || ch->ended_ns)
        return;
    ch->sent_said = true;
    say(ch, UCX_NOTE_SENT, ch->debt.batches);
}

/* One that says what cannot be is no gpupool's. */
static int take_in(struct gp_channel *ch, const struct ucx_note *note)
{
    if (!ucx_note_ok(note))
        return -EPROTO;
    if (note->kind == UCX_NOTE_CAME) {
        if (!ch->sent_said || note->batches != ch->debt.batches)
            return -EPROTO;
        atomic_store(&ch->came_all, true);
        return 0;
    }
    if (ch->sent_known || note->batches < ch->came)
        return -EPROTO;
    ch->sent_known = true;
    ch->sent_count = note->batches;
    ch->ended_ns = gp_clock_ns();
    return 0;
}

static void hear(struct gp_channel *ch)
{
    for (;;) {
        ssize_t n = recv(ch->fd, (char *)&ch->heard + ch->heard_bytes,
                         sizeof ch->heard - ch->heard_bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOMEM))
            return;
        if (n <= 0) {
            ch->gone = true;
            if (ch->ended_ns == 0)
                ch->ended_ns = gp_clock_ns();
            return;
        }
        ch->heard_bytes += (size_t)n;
        if (ch->heard_bytes < sizeof ch->heard)
            continue;
        ch->heard_bytes = 0;
        if (take_in(ch, &ch->heard) != 0) {
            ucx_dead_set(ch, -EPROTO, true);
            return;
        }
    }
}

/* What follows from it. */
static void end_follow(struct gp_channel *ch)
{
    bool all = ch->sent_known && ch->came >= ch->sent_count;
    int64_t since = gp_clock_ns() - ch->ended_ns;
    if (all && !ch->came_said) {
        ch->came_said = true;
        say(ch, UCX_NOTE_CAME, ch->came);
    }
    if (!all && since < (ch->sent_known ? ALL_WORDS_NS : LAST_WORDS_NS))
        ucx_dead_set(ch, -EPIPE, false);
    else
        ucx_dead_set(ch, -EPIPE, true);
}

void ucx_notes_look(struct gp_channel *ch)
{
    int64_t now = gp_clock_coarse_ns();
    if (ch->ended_ns == 0 && !ch->sent_said && now - ch->looked_ns < LOOK_INTERVAL_NS)
        return;
    ch->looked_ns = now;
    if (!ch->gone)
        hear(ch);
    if (ch->ended_ns && !ch->recv_dead)
        end_follow(ch);
}
