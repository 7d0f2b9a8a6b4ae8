/*
 * UCX moves only when it is called. What was gathered goes within 100 us, and what the peer
 * needs from this side is done, although nobody sends or receives here: by this thread, which
 * looks ever again while there is something to do and sleeps where there is not.
 */
#include <time.h>

#include "transport/ucx_channel.h"
#include "wire/own_thread.h"

/* Ticks without anything to do after which the keeper goes to sleep, and how long they are. */
#define IDLE_TICKS 20
#define IDLE_TICK_NS 500000
#define SLEEP_MS 1000

static bool has_work(struct gp_channel *ch)
{
    return (atomic_load(&ch->gather_used) > 0 && !ch->send_dead) || ch->under_way > 0;
}

/* Announced first, then looked: pairs with ucx_keeper_nudge, where the sender gathers first and
 * looks at the announcement after. */
static void keeper_sleep(struct gp_channel *ch)
{
    atomic_store(&ch->keeper.sleeps, true);
    if (!has_work(ch) && !atomic_load(&ch->keeper_stop))
        ucx_channel_sleep(ch, &ch->keeper, SLEEP_MS);
    atomic_store(&ch->keeper.sleeps, false);
}

static void *keeper_main(void *arg)
{
    struct gp_channel *ch = arg;
    int idle = 0;
    while (!atomic_load(&ch->keeper_stop)) {
        ucx_channel_move(ch);
        bool work = has_work(ch);
        if (work)
            (void)ucx_flush_try(ch);
        idle = work ? 0 : idle + 1;
        struct timespec tick = {.tv_nsec = work ? GATHER_NS : IDLE_TICK_NS};
        if (idle > IDLE_TICKS || ch->recv_dead)
            keeper_sleep(ch);
        else
            nanosleep(&tick, NULL);
        if (idle > IDLE_TICKS)
            idle = 0;
    }
    return NULL;
}

int ucx_keeper_start(struct gp_channel *ch)
{
    int rc = gp_thread_create(&ch->keeper_thread, "keeper", NULL, keeper_main, ch);
    ch->has_keeper = rc == 0;
    return rc;
}

void ucx_keeper_nudge(struct gp_channel *ch)
{
    ucx_wake(ch, &ch->keeper);
}

void ucx_keeper_stop(struct gp_channel *ch)
{
    if (!ch->has_keeper)
        return;
    atomic_store(&ch->keeper_stop, true);
    ucx_wake(ch, &ch->keeper);
    pthread_join(ch->keeper_thread, NULL);
    ch->has_keeper = false;
}
