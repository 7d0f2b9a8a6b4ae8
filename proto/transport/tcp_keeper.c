/*
 * What was sent with GP_SEND_LATER goes within 100 us although nobody asks. The keeper has
 * no descriptor, reads nothing, and sleeps where nothing is gathered or the socket is full.
 */
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "transport/tcp_channel.h"
#include "wire/own_thread.h"

/* Ticks without anything to flush after which the keeper goes to sleep. Until
 * then a burst of gathered messages costs its sender no system call. */
#define IDLE_TICKS 20
/* How long it waits for room in a full socket before it looks whether it is to end. */
#define ROOM_WAIT_NS 20000000

static void keeper_sleep(struct gp_channel *ch)
{
    /* Announced first, then looked: pairs with tcp_keeper_nudge, where the sender gathers
     * first and looks at the announcement after. */
    atomic_store(&ch->keeper.sleeps, true);
    bool flush = atomic_load(&ch->waiting) && !ch->dead;
    if (flush && atomic_exchange(&ch->keeper.sleeps, false))
        return;
    while (sem_wait(&ch->keeper.wake) != 0 && errno == EINTR)
        ;
}

static void *keeper_main(void *arg)
{
    static const struct timespec tick = {.tv_nsec = GATHER_NS};
    struct gp_channel *ch = arg;
    int idle = 0;
    while (!atomic_load(&ch->keeper.stop)) {
        bool flush = atomic_load(&ch->waiting) && !ch->dead;
        if (flush && tcp_flush_try(ch) == -EAGAIN)
            tcp_socket_wait(&ch->socket, POLLOUT, gp_clock_ns() + ROOM_WAIT_NS);
        idle = flush ? 0 : idle + 1;
        if (idle > IDLE_TICKS || ch->dead)
            keeper_sleep(ch);
        else
            nanosleep(&tick, NULL);
    }
    return NULL;
}

int tcp_keeper_start(struct gp_channel *ch)
{
    if (sem_init(&ch->keeper.wake, 0, 0) != 0)
        return -errno;
    int rc = gp_thread_create(&ch->keeper.thread, "keeper", NULL, keeper_main, ch);
    if (rc)
        sem_destroy(&ch->keeper.wake);
    return rc;
}

void tcp_keeper_nudge(struct gp_channel *ch)
{
    if (atomic_load(&ch->keeper.sleeps) && atomic_exchange(&ch->keeper.sleeps, false))
        sem_post(&ch->keeper.wake);
}

void tcp_keeper_stop(struct gp_channel *ch)
{
    atomic_store(&ch->keeper.stop, true);
    sem_post(&ch->keeper.wake);
    pthread_join(ch->keeper.thread, NULL);
    sem_destroy(&ch->keeper.wake);
}
