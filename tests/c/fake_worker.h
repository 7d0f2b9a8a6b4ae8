/*
 * A session over a transport that the test is the other end of: what the client sends is
 * counted, what it receives is what the test says. Include once per test.
 */
#ifndef TEST_FAKE_WORKER_H
#define TEST_FAKE_WORKER_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpc_wire.h"
#include "memory.h"
#include "session.h"
#include "sessions.h"

#define FAKE_MESSAGES 64

struct gp_channel {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        void *bytes;
        size_t size;
    } queue[FAKE_MESSAGES];
    unsigned put, taken;
    void *borrowed;
    bool sends_fail;
    uint64_t last_waited;                       /* seq of the last message that wants an answer */
    unsigned sent;                              /* messages */
    void (*on_send)(const struct gp_header *h); /* may be NULL; outside of the lock */
};

static struct gp_channel fake_channel = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                         .changed = PTHREAD_COND_INITIALIZER};

/* The worker says this: a copy of `size` bytes, whatever they are. */
static inline void fake_say(const void *bytes, size_t size)
{
    struct gp_channel *ch = &fake_channel;
    pthread_mutex_lock(&ch->lock);
    unsigned at = ch->put++ % FAKE_MESSAGES;
    ch->queue[at].bytes = malloc(size ? size : 1);
    memcpy(ch->queue[at].bytes, bytes, size);
    ch->queue[at].size = size;
    pthread_cond_broadcast(&ch->changed);
    pthread_mutex_unlock(&ch->lock);
}

static int fake_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    (void)count, (void)flags;
    const struct gp_header *h = iov[0].iov_base;
    pthread_mutex_lock(&ch->lock);
    void (*on_send)(const struct gp_header *) = ch->on_send;
    bool fails = ch->sends_fail;
    ch->sent++;
    if (h->flags & GP_FLAG_WAITED)
        ch->last_waited = h->seq;
    pthread_cond_broadcast(&ch->changed);
    pthread_mutex_unlock(&ch->lock);
    if (on_send) {
        on_send(h);
        pthread_mutex_lock(&ch->lock);
        fails = ch->sends_fail;
        pthread_cond_broadcast(&ch->changed); /* the receiver hears of it */
        pthread_mutex_unlock(&ch->lock);
    }
    return fails ? -EPIPE : 0;
}

/* From the next message on. */
static inline void fake_fail_sends(void)
{
    pthread_mutex_lock(&fake_channel.lock);
    fake_channel.sends_fail = true;
    pthread_mutex_unlock(&fake_channel.lock);
}

static int fake_flush(struct gp_channel *ch)
{
    (void)ch;
    return 0;
}

static int fake_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size)
{
    pthread_mutex_lock(&ch->lock);
    while (ch->taken == ch->put && timeout_us != 0 && !ch->sends_fail)
        pthread_cond_wait(&ch->changed, &ch->lock);
    int rc = ch->taken != ch->put ? 0 : ch->sends_fail ? -EPIPE : -EAGAIN;
    if (rc == 0) {
        unsigned at = ch->taken++ % FAKE_MESSAGES;
        *message = ch->borrowed = ch->queue[at].bytes;
        *size = ch->queue[at].size;
    }
    pthread_mutex_unlock(&ch->lock);
    return rc;
}

static void fake_release(struct gp_channel *ch)
{
    free(ch->borrowed);
    ch->borrowed = NULL;
}

static const struct gp_transport fake_transport = {
    .name = "fake",
    .send = fake_send,
    .flush = fake_flush,
    .recv = fake_recv,
    .release = fake_release,
};

/* A session with one device, as after cuInit. */
static inline struct gpc_session *fake_session(void)
{
    struct gpc_session *s = gpc_session_at(0);
    free(s->snapshot);
    memset(s, 0, sizeof *s);
    while (fake_channel.taken != fake_channel.put) /* what an earlier case has left */
        free(fake_channel.queue[fake_channel.taken++ % FAKE_MESSAGES].bytes);
    free(fake_channel.borrowed);
    fake_channel.borrowed = NULL;
    fake_channel.sends_fail = false;
    fake_channel.last_waited = 0;
    fake_channel.on_send = NULL;
    s->transport = &fake_transport;
    s->channel = &fake_channel;
    s->snapshot = calloc(1, GP_SNAPSHOT_MAX);
    s->snapshot->device_count = 1;
    strcpy(s->server, "tcp://fake:1");
    strcpy(s->id, "s1");
    gpc_session_start(s, false);
    gpc_sessions_set_count(1);
    return s;
}

/* The answer to the call `seq`: `fixed` bytes of a gp_rep_ structure and `tail` bytes. */
static inline void fake_answer(uint64_t seq, struct gp_reply *reply, size_t fixed, const void *tail,
                               size_t bytes)
{
    size_t at = gp_align8(fixed), size = tail ? at + bytes : fixed;
    char *message = calloc(1, at + bytes);
    reply->h.flags = GP_FLAG_REPLY;
    reply->h.seq = seq;
    reply->h.size = (uint32_t)size;
    memcpy(message, reply, fixed);
    if (tail)
        memcpy(message + at, tail, bytes);
    fake_say(message, size);
    free(message);
}

/* Wait until the client has sent a message that wants an answer, after `before`. */
static inline uint64_t fake_asked(uint64_t before)
{
    struct gp_channel *ch = &fake_channel;
    pthread_mutex_lock(&ch->lock);
    while (ch->last_waited <= before)
        pthread_cond_wait(&ch->changed, &ch->lock);
    uint64_t seq = ch->last_waited;
    pthread_mutex_unlock(&ch->lock);
    return seq;
}

#endif
