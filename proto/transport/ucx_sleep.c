/* Moving a channel, sleeping until it moves, waking who sleeps; and the end, which wakes all. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/ucx_channel.h"

/* How long a sleeper does not look whether its descriptors are still there: what is closed
 * never wakes anybody. */
#define SLICE_MS 500

void ucx_wake(struct gp_channel *ch, struct ucx_sleeper *who)
{
    uint64_t one = 1;
    if (!atomic_exchange(&who->sleeps, false) || !gp_fd_is(&ch->mark))
        return;
    while (write(who->fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* What came before -EPIPE may still be received; the first reason stays. */
void ucx_dead_set(struct gp_channel *ch, int why, bool receives)
{
    int none = 0;
    bool news = !atomic_exchange(&ch->send_dead, true);
    atomic_compare_exchange_strong(&ch->why, &none, why);
    if (receives)
        news |= !atomic_exchange(&ch->recv_dead, true);
    if (!news || why == -EBADF)
        return;
    if (why == -EPROTO && gp_fd_is(&ch->mark)) /* its peer need not wait for more */
        shutdown(ch->fd, SHUT_RDWR);
    ucx_wake(ch, &ch->sender);
    ucx_wake(ch, &ch->receiver);
    ucx_wake(ch, &ch->keeper);
}

void ucx_channel_move(struct gp_channel *ch)
{
    pthread_mutex_lock(&ch->ucx);
    if (ucx_fds_ours(ch)) {
        ucx_engine_progress(ch);
        ucx_notes_look(ch);
    }
    pthread_mutex_unlock(&ch->ucx);
}

static bool sleep_arm(struct gp_channel *ch, int *connection)
{
    pthread_mutex_lock(&ch->ucx);
    bool armed = ucx_fds_ours(ch) && ucx_engine_arm(ch);
    *connection = ch->gone ? -1 : ch->fd;
    pthread_mutex_unlock(&ch->ucx);
    return armed;
}

void ucx_channel_sleep(struct gp_channel *ch, struct ucx_sleeper *me, int most_ms)
{
    struct pollfd fds[] = {{.fd = me->fd, .events = POLLIN},
                           {.fd = -1, .events = POLLIN},
                           {.fd = ch->worker_fd, .events = POLLIN}};
    uint64_t count;
    if (!sleep_arm(ch, &fds[1].fd))
        return;
    /* A connection that ends leaves little time for what is on its way: it is looked for. */
    int most = ch->ended_ns && !ch->recv_dead ? 10 : SLICE_MS;
    int n = poll(fds, 3, most_ms < most ? most_ms : most);
    if (!ucx_fds_ours(ch))
        return;
    if (fds[0].revents && read(me->fd, &count, sizeof count) < 0)
        return; /* somebody else's wake was read along */
    if (fds[1].revents)
        atomic_store(&ch->looked_ns, 0);
    if (n == 0 && gp_silence_is_over(ch->fd, ch->silence_ms)) {
        pthread_mutex_lock(&ch->ucx);
        if (ch->ended_ns == 0)
            ch->ended_ns = gp_clock_ns();
        pthread_mutex_unlock(&ch->ucx);
    }
}
