#include "transport/tcp_lanes.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "transport/tcp_channel.h"
#include "wire/condition.h"
#include "wire/own_thread.h"

#define LANES_USUAL 4
/* How long who waits for a message does not look at anything else. */
#define SLICE_NS 500000000
/* How long a process that ends waits for lanes that are on their way. */
#define OPENER_NS 200000000
/* How long a message may be under way on the lanes of a peer whose own connection has ended. */
#define ORPHAN_NS 30000000000

int tcp_lanes_setting(unsigned *lanes, struct gp_error *err)
{
    const char *text = getenv("GPUPOOL_LANES");
    *lanes = LANES_USUAL;
    if (!text || !*text)
        return 0;
    if (text[0] < '1' || text[0] > '0' + (char)STRIPE_LANES_MAX || text[1]) {
        gp_error_set(err, "GPUPOOL_LANES=%.40s: must be a number of connections, 1 to %u", text,
                     STRIPE_LANES_MAX);
        return -EINVAL;
    }
    *lanes = (unsigned)(text[0] - '0');
    return 0;
}

/* --- life ------------------------------------------------------------------------ */

static struct tcp_lanes *lanes_new(struct gp_channel *ch, unsigned wanted,
                                   const struct gp_silence *silence, const unsigned char *word)
{
    struct tcp_lanes *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->channel = ch;
    l->silence = *silence;
    l->wanted = wanted;
    l->broken_at = UINT64_MAX;
    l->encrypts = ch->tls != NULL;
    memcpy(l->word, word, sizeof l->word);
    pthread_mutex_init(&l->lock, NULL);
    gp_condition_init(&l->wake);
    gp_condition_init(&l->sends);
    gp_condition_init(&l->arrived);
    gp_condition_init(&l->gone);
    pthread_mutex_init(&l->landing.lock, NULL);
    gp_condition_init(&l->landing.over);
    for (unsigned i = 0; i < STRIPE_LANES_MAX; i++) {
        struct tcp_lane *lane = &l->lane[i];
        lane->all = l;
        lane->number = i;
        lane->socket.fd = -1;
    }
    return l;
}

static void lanes_begin(struct tcp_lanes *l, void *(*main)(void *))
{
    l->channel->lanes = l;
    l->opening = true;
    l->has_opener = gp_thread_create(&l->opener, "lanes", NULL, main, l) == 0;
    if (l->has_opener)
        return;
    l->channel->lanes = NULL;
    tcp_lanes_close(l, 0, false);
}

void tcp_lanes_connect(struct gp_channel *ch, unsigned wanted, const struct gp_silence *silence,
                       const unsigned char word[DOOR_WORD_BYTES])
{
    struct tcp_lanes *l = lanes_new(ch, wanted, silence, word);
    if (!l)
        return;
    if (tcp_lanes_dial(l, ch->socket.fd) == 0) {
        lanes_begin(l, tcp_lanes_opener);
        return;
    }
    tcp_lanes_close(l, 0, false);
}

void tcp_lanes_accept(struct gp_channel *ch, unsigned wanted, const struct gp_silence *silence,
                      const unsigned char word[DOOR_WORD_BYTES], struct door *door)
{
    struct tcp_lanes *l = lanes_new(ch, wanted, silence, word);
    if (!l) {
        door_close(door);
        return;
    }
    l->accepts = true;
    l->door = door;
    door_reword(door, word);
    lanes_begin(l, tcp_lanes_porter);
}

/* Memory for messages, and a reader for each lane: 0, or nothing is there to be used. */
int tcp_lanes_prepare(struct tcp_lanes *l, unsigned lanes)
{
    for (unsigned i = 0; i < LANES_SLOTS; i++)
        if (!tcp_lanes_block(l, &l->slot[i]))
            return -ENOMEM;
    for (unsigned i = 0; i < lanes; i++) {
        struct tcp_lane *lane = &l->lane[i];
        int rc = gp_thread_create(&lane->reader, "receive", NULL, tcp_lane_reader, lane);
        if (rc)
            return rc;
        lane->has_reader = true;
    }
    return 0;
}

void tcp_lanes_end_opening(struct tcp_lanes *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    atomic_store(&l->stop, true);
    if (l->door)
        door_hush(l->door);
    if (l->opening && !l->accepts)
        for (unsigned i = 0; i < l->wanted; i++)
            tcp_socket_shut(&l->lane[i].socket, SHUT_RDWR);
    pthread_mutex_unlock(&l->lock);
    if (l->has_opener)
        pthread_join(l->opener, NULL);
    l->has_opener = false;
    if (l->door) /* there was never anybody at it */
        door_close(l->door);
    l->door = NULL;
}

static void lane_end(struct tcp_lane *lane, int64_t deadline)
{
    bool ours = lane->socket.fd >= 0 && tcp_socket_is_ours(&lane->socket);
    if (ours && lane->all->carry > 0)
        tcp_socket_finish(&lane->socket, deadline);
    tcp_socket_shut(&lane->socket, SHUT_RDWR); /* its reader wakes */
    if (lane->has_reader)
        pthread_join(lane->reader, NULL);
    if (lane->has_sender)
        pthread_join(lane->sender, NULL);
    if (ours && tcp_socket_is_ours(&lane->socket))
        close(lane->socket.fd);
    tcp_tls_free(lane->tls);
}

/* The opener is let finish, and gone: a process that ends leaves no thread half-way. */
static void opener_wait(struct tcp_lanes *l)
{
    int64_t until = gp_clock_ns() + OPENER_NS;
    pthread_mutex_lock(&l->lock);
    while (l->opening && gp_clock_ns() < until)
        tcp_lanes_sleep(l, &l->arrived, until);
    bool over = l->has_opener && !l->opening;
    pthread_mutex_unlock(&l->lock);
    if (!over)
        return;
    pthread_join(l->opener, NULL);
    l->has_opener = false;
}

void tcp_lanes_settle(struct tcp_lanes *l, int64_t deadline)
{
    opener_wait(l);
    tcp_lanes_empty(l, deadline);
    unsigned carry = l->carry;
    for (unsigned i = 0; i < carry; i++)
        tcp_socket_settle(&l->lane[i].socket, false, deadline);
}

void tcp_lanes_close(struct tcp_lanes *l, int64_t deadline, bool forked)
{
    if (!l)
        return;
    if (forked) {
        for (unsigned i = 0; i < STRIPE_LANES_MAX; i++)
            if (l->lane[i].socket.fd >= 0 && tcp_socket_is_ours(&l->lane[i].socket))
                close(l->lane[i].socket.fd);
        return; /* threads of the parent's may have held its locks */
    }
    tcp_lanes_end_opening(l);
    pthread_mutex_lock(&l->lock);
    pthread_cond_broadcast(&l->wake);
    pthread_cond_broadcast(&l->sends);
    pthread_mutex_unlock(&l->lock);
    for (unsigned i = 0; i < STRIPE_LANES_MAX; i++)
        lane_end(&l->lane[i], deadline);
    pthread_cond_destroy(&l->wake);
    pthread_cond_destroy(&l->sends);
    pthread_cond_destroy(&l->arrived);
    pthread_cond_destroy(&l->gone);
    pthread_cond_destroy(&l->landing.over);
    pthread_mutex_destroy(&l->landing.lock);
    pthread_mutex_destroy(&l->lock);
    for (unsigned i = 0; i < LANES_BLOCKS; i++)
        if (!l->block[i].kept) /* who keeps it may still have it read */
            free(l->block[i].bytes);
    explicit_bzero(l, sizeof *l);
    free(l);
}

/* --- receiving -------------------------------------------------------------------- */

int tcp_lanes_agree(struct tcp_lanes *l)
{
    if (l->accepts || l->agreed == 0 || l->carry > 0)
        return 0;
    if (l->opened >= l->agreed) {
        atomic_store(&l->carry, l->agreed);
        pthread_cond_broadcast(&l->wake);
        return 0;
    }
    return l->opening ? 0 : -EPROTO;
}

/* A worker says once how many are in, and then both may send over them. */
int tcp_lanes_noted(struct tcp_lanes *l, const struct stripe_note *note)
{
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    if (note->kind == STRIPE_NOTE_MESSAGE) {
        rc = (l->accepts ? l->carry : l->agreed) > 0 ? 0 : -EPROTO;
        l->seen++;
        if (l->idle > 0)
            pthread_cond_broadcast(&l->wake);
    } else if (l->accepts || l->agreed > 0 || note->value > l->wanted) {
        rc = -EPROTO;
    } else {
        l->agreed = note->value;
        rc = tcp_lanes_agree(l);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

int tcp_lanes_take(struct tcp_lanes *l, size_t size, const void **message)
{
    struct lanes_slot *slot = &l->slot[l->taken % LANES_SLOTS];
    unsigned lanes = atomic_load(&l->carry);
    if (lanes == 0 || atomic_load(&slot->come) < lanes)
        return atomic_load(&l->broken_at) <= l->taken ? l->broken : -EAGAIN;
    for (unsigned i = 0; i < lanes; i++)
        if (slot->sizes[i] != size)
            return -EPROTO;
    int rc = tcp_landing_finish(l, slot, size);
    if (rc == 0)
        *message = slot->block->bytes;
    return rc;
}

/* Readers without room are ahead by all slots: to wake them for each one that is free would take as
 * long as a piece does. */
void tcp_lanes_release(struct tcp_lanes *l)
{
    atomic_store(&l->slot[l->taken % LANES_SLOTS].come, 0);
    pthread_mutex_lock(&l->lock);
    l->taken++;
    if (l->taken % (LANES_SLOTS / 2) == 0)
        pthread_cond_broadcast(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

static bool message_came(const struct tcp_lanes *l)
{
    unsigned lanes = atomic_load(&l->carry);
    return l->broken_at <= l->taken ||
           (lanes > 0 && atomic_load(&l->slot[l->taken % LANES_SLOTS].come) >= lanes);
}

void tcp_lanes_break(struct tcp_lanes *l, uint64_t number, int why)
{
    int none = 0;
    atomic_compare_exchange_strong(&l->broken, &none, why);
    if (number < l->broken_at)
        atomic_store(&l->broken_at, number);
    pthread_cond_broadcast(&l->arrived);
    pthread_cond_broadcast(&l->wake);
}

void tcp_lanes_sleep(struct tcp_lanes *l, pthread_cond_t *what, int64_t until)
{
    struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_cond_timedwait(what, &l->lock, &t);
}

/* The lanes of a peer whose own connection has ended have a while to bring what was sent. */
static void orphan_look(struct tcp_lanes *l)
{
    int rc = tcp_socket_glance(&l->channel->socket);
    if (rc == 0)
        return;
    if (l->orphan_ns == 0)
        l->orphan_ns = gp_clock_ns();
    if (rc == -EBADF || gp_clock_ns() - l->orphan_ns > ORPHAN_NS)
        tcp_lanes_break(l, 0, rc);
}

void tcp_lanes_wait(struct tcp_lanes *l, int64_t deadline)
{
    int64_t slice = gp_clock_ns() + SLICE_NS;
    pthread_mutex_lock(&l->lock);
    if (!message_came(l))
        tcp_lanes_sleep(l, &l->arrived, slice < deadline ? slice : deadline);
    orphan_look(l);
    pthread_mutex_unlock(&l->lock);
}
