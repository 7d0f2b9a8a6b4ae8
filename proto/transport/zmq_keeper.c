#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "transport/zmq_channel.h"
#include "wire/own_thread.h"

/* When one connection has ended and the other not: how long the other may still
 * bring what the peer sent last. */
#define LAST_WORDS_NS 1000000000
/* Ticks without anything to flush after which the keeper goes to sleep. Until
 * then a burst of gathered messages costs its sender no system call. */
#define IDLE_TICKS 20

static int monitor_fd(void *monitor)
{
    int fd = -1;
    size_t length = sizeof fd;
    return zmq_getsockopt(monitor, ZMQ_FD, &fd, &length) == 0 ? fd : -1;
}

static void ends_notice(struct gp_channel *ch)
{
    /* ZeroMQ's descriptors tell changes only: read all there is, each time. */
    link_events(&ch->up);
    link_events(&ch->down);
    if (!ch->up.gone && !ch->down.gone)
        return;
    if (ch->ended_ns == 0) {
        ch->ended_ns = gp_clock_ns();
        gpz_send_dead_set(ch);
    }
    if ((ch->up.gone && ch->down.gone) || gp_clock_ns() - ch->ended_ns > LAST_WORDS_NS)
        gpz_recv_dead_set(ch);
}

/* Sleep until the monitors speak, somebody nudges, or it is time: `ns`, -1 for
 * no end. */
static void keeper_wait(struct gp_channel *ch, int64_t ns)
{
    if (!gpz_fds_ours(ch))
        return;
    struct pollfd fds[3] = {
        {.fd = monitor_fd(ch->up.monitor), .events = POLLIN},
        {.fd = monitor_fd(ch->down.monitor), .events = POLLIN},
        {.fd = ch->keeper_wake_fd, .events = POLLIN},
    };
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    if (ppoll(fds, 3, ns < 0 ? NULL : &ts, NULL) > 0 && fds[2].revents && gpz_fds_ours(ch)) {
        uint64_t count;
        if (read(ch->keeper_wake_fd, &count, sizeof count) < 0)
            return; /* somebody else's wake was read along */
    }
}

static bool has_gathered(struct gp_channel *ch)
{
    return atomic_load_explicit(&ch->gather_used, memory_order_seq_cst) > 0;
}

/* Announce the sleep, then look once more: pairs with gpz_keeper_nudge, where
 * the sender gathers first and looks at the announcement after. */
static void keeper_sleep(struct gp_channel *ch)
{
    int64_t last_words = ch->ended_ns && !ch->recv_dead ? LAST_WORDS_NS / 4 : -1;
    atomic_store_explicit(&ch->keeper_sleeps, true, memory_order_seq_cst);
    if (!has_gathered(ch) && !atomic_load(&ch->keeper_stop))
        keeper_wait(ch, last_words);
    atomic_store_explicit(&ch->keeper_sleeps, false, memory_order_relaxed);
}

static void *keeper_main(void *arg)
{
    struct gp_channel *ch = arg;
    int idle = 0;
    while (!atomic_load(&ch->keeper_stop) && gpz_fds_ours(ch)) {
        ends_notice(ch);
        if (has_gathered(ch) && !ch->send_dead) {
            gpz_flush_try(ch);
            idle = 0;
        }
        if (ch->send_dead || idle++ >= IDLE_TICKS) {
            /* After the end there is nothing to flush: sleep whatever is gathered. */
            if (ch->send_dead)
                keeper_wait(ch, ch->recv_dead ? -1 : LAST_WORDS_NS / 4);
            else
                keeper_sleep(ch);
            idle = 0;
        } else {
            keeper_wait(ch, GATHER_NS);
        }
    }
    return NULL;
}

int gpz_keeper_start(struct gp_channel *ch)
{
    int rc = gp_thread_create(&ch->keeper, "keeper", NULL, keeper_main, ch);
    return rc;
}

static void keeper_wake(struct gp_channel *ch)
{
    uint64_t one = 1;
    if (!gpz_fds_ours(ch))
        return;
    while (write(ch->keeper_wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void gpz_keeper_nudge(struct gp_channel *ch)
{
    if (atomic_load_explicit(&ch->keeper_sleeps, memory_order_seq_cst))
        keeper_wake(ch);
}

void gpz_keeper_stop(struct gp_channel *ch)
{
    atomic_store(&ch->keeper_stop, true);
    keeper_wake(ch);
    pthread_join(ch->keeper, NULL);
}
