#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "transport/ucx_channel.h"

/* A receiver tells its peer what it has consumed this often. */
#define CREDIT_BYTES (UCX_WINDOW_BYTES / 4)
#define CREDIT_BATCHES (UCX_WINDOW_BATCHES / 4)

static bool is_forked(const struct gp_channel *ch)
{
    return ch->generation != gp_fork_generation();
}

/* --- sending: with the turnstile held -------------------------------------------- */

/* Whether there is credit for `size` bytes, and a buffer of the kind, which is taken. */
static int room_take(struct gp_channel *ch, size_t size, struct ucx_buffers *of,
                     struct ucx_buffer **out)
{
    int rc = -EAGAIN;
    pthread_mutex_lock(&ch->ucx);
    if (!ucx_fds_ours(ch))
        rc = -EBADF;
    else if (ch->send_dead)
        rc = -EPIPE;
    else if (ucx_debt_allows(&ch->debt, size) && (!of || (*out = ucx_engine_buffer(ch, of))))
        rc = 0;
    else if (of && of->count == 0)
        rc = -ENOMEM;
    pthread_mutex_unlock(&ch->ucx);
    return rc;
}

/* The same, waiting: -EAGAIN at the deadline. */
static int room_wait(struct gp_channel *ch, size_t size, struct ucx_buffers *of,
                     struct ucx_buffer **out, int64_t deadline)
{
    int rc;
    while ((rc = room_take(ch, size, of, out)) == -EAGAIN) {
        ucx_channel_move(ch);
        atomic_store(&ch->sender.sleeps, true);
        rc = room_take(ch, size, of, out);
        int left = gp_deadline_left_ms(deadline, 1000);
        if (rc == -EAGAIN && left > 0)
            ucx_channel_sleep(ch, &ch->sender, gp_relief_pause_ms(&ch->relief, left));
        atomic_store(&ch->sender.sleeps, false);
        if (rc != -EAGAIN || left == 0)
            return rc;
        if (deadline == INT64_MAX)
            gp_relief_give(&ch->relief);
    }
    return rc;
}

static int buffer_post(struct gp_channel *ch, struct ucx_buffer *b, size_t size)
{
    pthread_mutex_lock(&ch->ucx);
    int rc = ucx_fds_ours(ch) ? 0 : -EBADF;
    if (rc == 0 && ch->send_dead)
        rc = -EPIPE;
    if (rc == 0) {
        rc = ucx_engine_post(ch, b, size);
        ucx_engine_progress(ch);
    } else {
        ucx_engine_buffer_free(b);
    }
    bool left = ch->under_way > 0;
    pthread_mutex_unlock(&ch->ucx);
    if (left)
        ucx_keeper_nudge(ch);
    return rc;
}

static int gather_send(struct gp_channel *ch, int64_t deadline)
{
    size_t size = ch->gather_used;
    if (size == 0)
        return 0;
    int rc = room_wait(ch, size, NULL, NULL, deadline);
    if (rc)
        return rc;
    struct ucx_buffer *b = ch->gather;
    ch->gather = NULL;
    ch->gather_used = 0;
    return buffer_post(ch, b, size);
}

static int gather_begin(struct gp_channel *ch)
{
    return ch->gather ? 0 : room_wait(ch, 0, &ch->small, &ch->gather, INT64_MAX);
}

/* A message too long to be gathered: a batch of its own. */
static int long_send(struct gp_channel *ch, const struct iovec *iov, int count, size_t size)
{
    struct ucx_buffer *b = NULL;
    size_t room = gp_batch_room(size);
    int rc = room_wait(ch, room, &ch->large, &b, INT64_MAX);
    if (rc)
        return rc;
    gp_batch_put(b->bytes, iov, count, size);
    return buffer_post(ch, b, room);
}

static int send_locked(struct gp_channel *ch, const struct iovec *iov, int count, size_t size,
                       unsigned flags)
{
    size_t room = gp_batch_room(size);
    int rc = ch->send_dead ? -EPIPE : 0;
    if (rc == 0 && ch->gather_used + room > GATHER_BYTES)
        rc = gather_send(ch, INT64_MAX);
    if (rc == 0 && room > GATHER_BYTES)
        return long_send(ch, iov, count, size);
    if (rc == 0)
        rc = gather_begin(ch);
    if (rc)
        return rc;
    bool first = ch->gather_used == 0;
    gp_batch_put(ch->gather->bytes + ch->gather_used, iov, count, size);
    ch->gather_used += room;
    if (!(flags & GP_SEND_LATER))
        return gather_send(ch, INT64_MAX);
    if (first)
        ucx_keeper_nudge(ch);
    return 0;
}

/* What a sender may return: a dead channel says -EPIPE, whatever killed it, unless the program
 * did. */
static int send_result(struct gp_channel *ch, int rc)
{
    if (rc == 0)
        return 0;
    ucx_dead_set(ch, rc == -EBADF ? rc : -EPIPE, rc == -EBADF);
    return ch->why == -EBADF ? -EBADF : -EPIPE;
}

static int ucx_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    size_t size;
    int rc = gp_gather_size(iov, count, &size);
    if (rc || is_forked(ch))
        return rc ? rc : -EPIPE; /* of the caller's, not of the channel's */
    gp_turnstile_enter(&ch->sending);
    rc = send_result(ch, send_locked(ch, iov, count, size, flags));
    gp_turnstile_leave(&ch->sending);
    return rc;
}

static int ucx_flush(struct gp_channel *ch)
{
    if (is_forked(ch))
        return -EPIPE;
    if (gp_clock_coarse_ns() != ch->flushed_ns) { /* not for each of many calls */
        ch->flushed_ns = gp_clock_coarse_ns();
        ucx_channel_move(ch);
    }
    if (!ch->send_dead && ch->gather_used == 0)
        return 0;
    gp_turnstile_enter(&ch->sending);
    int rc = send_result(ch, ch->send_dead ? -EPIPE : gather_send(ch, INT64_MAX));
    gp_turnstile_leave(&ch->sending);
    return rc;
}

int ucx_flush_try(struct gp_channel *ch)
{
    if (!gp_turnstile_try(&ch->sending))
        return -EAGAIN; /* somebody is sending; the keeper looks again soon */
    int rc = ch->send_dead ? -EPIPE : gather_send(ch, 0);
    if (rc != -EAGAIN)
        rc = send_result(ch, rc);
    gp_turnstile_leave(&ch->sending);
    return rc;
}

static void ucx_relieve(struct gp_channel *ch, gp_relief_fn *relief, void *owner)
{
    gp_relief_set(&ch->relief, relief, owner);
}

/* --- receiving ------------------------------------------------------------------- */

static void slot_free(struct ucx_slot *s)
{
    if (s->buffer)
        ucx_engine_buffer_free(s->buffer);
    else
        free(s->bytes);
    s->buffer = NULL;
    s->bytes = NULL;
    atomic_store(&s->full, false);
}

/* The batch has been read to its end. */
static void slot_end(struct gp_channel *ch)
{
    struct ucx_slot *s = ch->reading;
    ch->reading = NULL;
    pthread_mutex_lock(&ch->ucx);
    ch->got_bytes += s->size;
    ucx_window_consume(&ch->window, s->size);
    slot_free(s);
    if (!ch->send_dead &&
        (ch->got_bytes - ch->told_bytes >= CREDIT_BYTES ||
         ch->window.consumed - ch->told_batches >= CREDIT_BATCHES) &&
        ucx_fds_ours(ch))
        ucx_engine_credit(ch);
    pthread_mutex_unlock(&ch->ucx);
}

/* The next message without waiting; -EPIPE once all that came has been taken. */
static int message_take(struct gp_channel *ch, const void **message, size_t *size)
{
    for (;;) {
        if (ch->reading) {
            int rc = gp_batch_next(&ch->reader, message, size);
            if (rc != -EAGAIN)
                return rc;
            slot_end(ch);
        }
        bool dead = ch->recv_dead; /* looked at first: what came before it is taken */
        struct ucx_slot *s = &ch->slots[ch->window.consumed % UCX_WINDOW_BATCHES];
        if (!atomic_load(&s->full))
            return dead ? -EPIPE : -EAGAIN;
        ch->reading = s;
        ch->reader = (struct gp_batch_reader){.bytes = s->bytes, .size = s->size};
    }
}

static int message_spin(struct gp_channel *ch, int64_t deadline, const void **message, size_t *size)
{
    int64_t end = gp_clock_ns() + ch->spin.budget_ns;
    if (end > deadline)
        end = deadline;
    int rc;
    do {
        ucx_channel_move(ch);
        rc = message_take(ch, message, size);
    } while (rc == -EAGAIN && gp_clock_ns() < end);
    gp_spin_learn(&ch->spin, rc == 0);
    return rc;
}

static int message_wait(struct gp_channel *ch, int64_t timeout_us, const void **message,
                        size_t *size)
{
    int rc = message_take(ch, message, size);
    if (rc != -EAGAIN)
        return rc;
    /* Whoever waits for an answer wants the question to have gone. */
    if (ch->gather_used > 0 && !ch->send_dead)
        (void)ucx_flush_try(ch);
    if (timeout_us == 0) {
        ucx_channel_move(ch);
        return message_take(ch, message, size);
    }
    int64_t deadline = gp_deadline_us(timeout_us);
    for (;;) {
        rc = message_spin(ch, deadline, message, size);
        if (rc != -EAGAIN)
            return rc;
        int left = gp_deadline_left_ms(deadline, 1000);
        if (left == 0)
            return -EAGAIN;
        atomic_store(&ch->receiver.sleeps, true);
        rc = message_take(ch, message, size);
        if (rc == -EAGAIN)
            ucx_channel_sleep(ch, &ch->receiver, left);
        atomic_store(&ch->receiver.sleeps, false);
        if (rc != -EAGAIN)
            return rc;
    }
}

static int ucx_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size)
{
    if (is_forked(ch))
        return -EPIPE;
    int why = ch->why;
    if (why == -EPROTO || why == -EBADF)
        return why;
    int rc = message_wait(ch, timeout_us, message, size);
    if (rc == -EPROTO)
        ucx_dead_set(ch, rc, true);
    why = ch->why;
    return rc == -EPIPE && (why == -EPROTO || why == -EBADF) ? why : rc;
}

static void ucx_release(struct gp_channel *ch)
{
    if (!is_forked(ch) && ch->reading && ch->reader.at == ch->reader.size)
        slot_end(ch);
}

/* --- life -------------------------------------------------------------------------- */

static struct ucx_sleeper *sleeper_of(struct gp_channel *ch, int i)
{
    return i == 0 ? &ch->sender : i == 1 ? &ch->receiver : &ch->keeper;
}

static void channel_free(struct gp_channel *ch)
{
    for (int i = 0; i < 3; i++)
        if (sleeper_of(ch, i)->fd >= 0 && ch->why != -EBADF)
            close(sleeper_of(ch, i)->fd);
    gp_turnstile_destroy(&ch->sending);
    pthread_mutex_destroy(&ch->ucx);
    free(ch);
}

static int sleepers_open(struct gp_channel *ch)
{
    int rc = 0;
    for (int i = 0; i < 3; i++) {
        struct ucx_sleeper *s = sleeper_of(ch, i);
        s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (s->fd < 0)
            rc = -errno;
    }
    return rc;
}

int ucx_channel_new(int fd, const struct gp_silence *silence, bool accepted,
                    struct gp_channel **out, struct gp_error *err)
{
    struct gp_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return -ENOMEM;
    ch->generation = gp_fork_generation();
    ch->fd = fd;
    ch->silence_ms = (int64_t)silence->seconds * 1000;
    gp_silence_set(fd, silence);
    gp_fd_note(&ch->mark, accepted ? -1 : fd);
    pthread_mutex_init(&ch->ucx, NULL);
    gp_turnstile_init(&ch->sending);
    gp_spin_init(&ch->spin);
    for (unsigned i = 0; i < UCX_WINDOW_BATCHES; i++)
        ch->slots[i].channel = ch;
    int rc = sleepers_open(ch);
    if (rc == 0 && getrandom(&ch->window.tag, sizeof ch->window.tag, 0) != sizeof ch->window.tag)
        rc = -EIO;
    ch->debt.tag = ch->window.tag; /* all that the peer sends begins with it */
    if (rc == 0)
        rc = ucx_library_open(&ch->api, err);
    if (rc == 0)
        rc = ucx_engine_open(ch, err);
    if (rc)
        ucx_channel_drop(ch);
    else
        *out = ch;
    return rc;
}

int ucx_channel_start(struct gp_channel *ch)
{
    return ucx_keeper_start(ch);
}

void ucx_channel_drop(struct gp_channel *ch)
{
    ucx_engine_close(ch);
    channel_free(ch);
}

/* Until the peer has all that was sent, or the deadline. */
static void channel_settle(struct gp_channel *ch, int64_t deadline)
{
    bool said = false;
    gp_turnstile_enter(&ch->sending);
    if (!ch->send_dead)
        (void)gather_send(ch, deadline);
    while (!ch->came_all && !ch->gone && ch->why != -EPROTO) {
        ucx_channel_move(ch);
        pthread_mutex_lock(&ch->ucx);
        if (ch->why != -EBADF)
            ucx_notes_say_sent(ch);
        said = ch->sent_said;
        pthread_mutex_unlock(&ch->ucx);
        int left = gp_deadline_left_ms(deadline, 1000);
        if (left == 0 || !said || ch->why == -EBADF)
            break;
        atomic_store(&ch->sender.sleeps, true);
        if (!ch->came_all)
            ucx_channel_sleep(ch, &ch->sender, left < 20 ? left : 20);
        atomic_store(&ch->sender.sleeps, false);
    }
    gp_turnstile_leave(&ch->sending);
}

static void ucx_leave(struct gp_channel *ch)
{
    if (!is_forked(ch) && !ch->send_dead)
        channel_settle(ch, gp_deadline_us((int64_t)CLOSE_MS * 1000));
}

static void ucx_close(struct gp_channel *ch)
{
    if (!ch)
        return;
    if (is_forked(ch)) { /* its copy alone: the connection is the parent's */
        if (gp_fd_is(&ch->mark))
            close(ch->fd);
        return;
    }
    ucx_keeper_stop(ch);
    channel_settle(ch, gp_deadline_us((int64_t)CLOSE_MS * 1000));
    if (!ucx_fds_ours(ch))
        return; /* UCX's descriptors are somebody else's now: nothing of it can be called */
    for (unsigned i = 0; i < UCX_WINDOW_BATCHES; i++)
        if (ch->slots[i].full)
            slot_free(&ch->slots[i]);
    ucx_engine_close(ch);
    for (unsigned i = 0; i < UCX_WINDOW_BATCHES; i++)
        if (!ch->slots[i].buffer) /* what was on its way until now */
            free(ch->slots[i].bytes);
    close(ch->fd);
    channel_free(ch);
}

static int ucx_ready(struct gp_error *err)
{
    const struct ucx_api *api;
    return ucx_library_open(&api, err);
}

static const char *const ucx_schemes[] = {UCX_SCHEME, NULL};

const struct gp_transport gp_transport_ucx = {
    .abi = GP_TRANSPORT_ABI,
    .name = "ucx",
    .schemes = ucx_schemes,
    .caps = 0,
    .listen = ucx_listen,
    .listener_url = ucx_listener_url,
    .accept = ucx_accept,
    .listener_close = ucx_listener_close,
    .connect = ucx_connect,
    .send = ucx_send,
    .flush = ucx_flush,
    .leave = ucx_leave,
    .relieve = ucx_relieve,
    .recv = ucx_recv,
    .release = ucx_release,
    .close = ucx_close,
    .ready = ucx_ready,
};
