#include "fake_server.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ask.h"
#include "draw.h"
#include "fake_answer.h"
#include "fake_page.h"
#include "transport/support.h"

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __real_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);

/* What is on its way to the client: beyond, the transport would block. */
#define UNDERWAY_MOST ((size_t)3 << 20)
/* A thread of the client's own waits so long before a call that waits for it in no way that is
 * seen here (a fault's handler does) may count as stuck. */
#define IDLE_NS 20000000

static struct {
    pthread_mutex_t lock; /* of all of this */
    pthread_cond_t moved; /* something was sent, or a call begins */
    pthread_t caller;
    bool calls;
    const pthread_cond_t *awaits; /* what the caller waits for, since nobody has signalled it */
    uint64_t moves;
    struct gp_transport transport;
    struct fake_server servers[FAKE_SERVERS];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static const struct gp_transport *const real = &gp_transport_inproc;

static struct fake_server *server_of(const struct gp_channel *client)
{
    for (unsigned i = 0; i < FAKE_SERVERS; i++)
        if (fake.servers[i].client == client)
            return &fake.servers[i];
    abort();
}

/* --- what it says ------------------------------------------------------------------------- */

static void hang_up(struct fake_server *s)
{
    if (s->end)
        real->close(s->end);
    s->end = NULL;
    s->gone = true;
}

void fake_server_say(struct fake_server *s, const void *message, size_t size)
{
    struct iovec all = {(void *)(uintptr_t)message, size};
    if (!s->end || s->underway + size > UNDERWAY_MOST)
        return;
    if (real->send(s->end, &all, 1, 0) == 0)
        s->underway += size;
}

static void listen_to(struct fake_server *s)
{
    const void *message;
    size_t size;
    while (s->end && real->recv(s->end, 0, &message, &size) == 0) {
        fake_server_answer(s, message);
        if (s->end)
            real->release(s->end);
    }
}

/* The client would block. */
static void pressed(struct fake_server *s)
{
    if (!fake_server_say_kept(s))
        hang_up(s);
}

/* --- the transport ------------------------------------------------------------------------ */

static void moved(void)
{
    fake.moves++;
    __real_pthread_cond_broadcast(&fake.moved);
}

static int fake_ask(const char *url, const void *question, size_t question_size, void *answer,
                    size_t *answer_size, int timeout_ms, struct gp_error *err)
{
    struct fake_server *s = &fake.servers[strstr(url, "fuzz1") != NULL];
    (void)question, (void)question_size, (void)timeout_ms;
    pthread_mutex_lock(&fake.lock);
    int rc = s->asked++ ? -ETIMEDOUT : 0; /* who is busy stays so */
    if (rc == 0)
        *answer_size = fake_server_admit(s, answer, *answer_size);
    pthread_mutex_unlock(&fake.lock);
    if (rc)
        gp_error_set(err, "%s does not answer", url);
    return rc;
}

static int fake_connect(const char *url, int timeout_ms, struct gp_channel **out,
                        struct gp_error *err)
{
    struct fake_server *s = &fake.servers[strstr(url, "fuzz1") != NULL];
    struct gp_listener *l;
    const char *name = s == fake.servers ? "inproc://fuzz0" : "inproc://fuzz1";
    int rc = real->listen(name, &l, err);
    if (rc)
        return rc;
    rc = real->connect(name, timeout_ms, out, err);
    if (rc == 0)
        rc = real->accept(l, timeout_ms, &s->end, err);
    s->client = rc == 0 ? *out : NULL;
    real->listener_close(l);
    return rc;
}

static int fake_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    int rc = real->send(ch, iov, count, flags);
    pthread_mutex_lock(&fake.lock);
    if (rc == 0)
        listen_to(server_of(ch));
    moved();
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

static bool caller_waits(void)
{
    return __atomic_load_n(&fake.awaits, __ATOMIC_ACQUIRE) != NULL;
}

/* A thread of the client's own has nothing to do, unless the caller's call waits for what it
 * reads: nothing has moved then since `before`, when it looked. Under the lock; whether that is so.
 * By time alone each execution would take that long. */
static bool idle(uint64_t before)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += IDLE_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    while (fake.moves == before && !caller_waits())
        if (pthread_cond_timedwait(&fake.moved, &fake.lock, &until) != 0)
            return fake.calls;
    return fake.moves == before;
}

static uint64_t moves_now(void)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t moves = fake.moves;
    pthread_mutex_unlock(&fake.lock);
    return moves;
}

static int fake_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size)
{
    for (;;) {
        uint64_t before = moves_now();
        int rc = real->recv(ch, 0, message, size);
        if (rc == -EAGAIN && timeout_us == 0)
            return rc;
        pthread_mutex_lock(&fake.lock);
        struct fake_server *s = server_of(ch);
        if (rc == 0)
            s->underway -= *size;
        else if (rc == -EAGAIN &&
                 ((fake.calls && pthread_equal(pthread_self(), fake.caller)) || idle(before)))
            pressed(s);
        pthread_mutex_unlock(&fake.lock);
        if (rc != -EAGAIN)
            return rc;
    }
}

static int fake_share(struct gp_channel *ch, void *hint, size_t size, struct gp_share *out)
{
    pthread_mutex_lock(&fake.lock);
    int rc = fake_page_share(hint, size, out);
    pthread_mutex_unlock(&fake.lock);
    return rc ? real->share(ch, hint, size, out) : 0;
}

static void fake_unshare(struct gp_channel *ch, struct gp_share *share)
{
    pthread_mutex_lock(&fake.lock);
    bool page = share && fake_page_unshare(share);
    pthread_mutex_unlock(&fake.lock);
    if (!page)
        real->unshare(ch, share);
}

static void fake_close(struct gp_channel *ch)
{
    pthread_mutex_lock(&fake.lock);
    struct fake_server *s = server_of(ch);
    hang_up(s);
    s->client = NULL;
    pthread_mutex_unlock(&fake.lock);
    real->close(ch);
}

const struct gp_transport *__wrap_gp_transport_find(const char *url, const char *plugin_dir,
                                                    struct gp_error *err);

const struct gp_transport *__wrap_gp_transport_find(const char *url, const char *plugin_dir,
                                                    struct gp_error *err)
{
    (void)url, (void)plugin_dir, (void)err;
    return &fake.transport;
}

/* --- the client's waits for its other threads -------------------------------------------- */

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    pthread_mutex_lock(&fake.lock);
    bool caller = fake.calls && pthread_equal(pthread_self(), fake.caller);
    if (caller) {
        __atomic_store_n(&fake.awaits, cond, __ATOMIC_RELEASE);
        moved();
    }
    pthread_mutex_unlock(&fake.lock);
    int rc = __real_pthread_cond_wait(cond, lock);
    if (caller)
        __atomic_store_n(&fake.awaits, NULL, __ATOMIC_RELEASE);
    return rc;
}

/* Without the lock: the transport calls it under locks of its own. */
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    const pthread_cond_t *woken = cond;
    __atomic_compare_exchange_n(&fake.awaits, &woken, NULL, false, __ATOMIC_RELEASE,
                                __ATOMIC_RELAXED);
    return __real_pthread_cond_broadcast(cond);
}

/* --- the fuzzer's side -------------------------------------------------------------------- */

void fake_servers_open(bool shares)
{
    fake.transport = *real;
    fake.transport.caps = shares ? GP_CAP_SHARE : 0;
    fake.transport.ask = fake_ask;
    fake.transport.connect = fake_connect;
    fake.transport.send = fake_send;
    fake.transport.recv = fake_recv;
    fake.transport.share = fake_share;
    fake.transport.unshare = fake_unshare;
    fake.transport.close = fake_close;
    for (uint32_t i = 0; i < FAKE_SERVERS; i++)
        fake_server_begin(&fake.servers[i], i);
}

void fake_servers_act(const uint8_t *data, size_t size)
{
    pthread_mutex_lock(&fake.lock);
    fake.caller = pthread_self();
    fake.calls = true;
    for (unsigned i = 0; i < FAKE_SERVERS; i++)
        draw_start(&fake.servers[i].draw, data, size);
    moved();
    pthread_mutex_unlock(&fake.lock);
}

void fake_servers_rest(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls = false;
    for (unsigned i = 0; i < FAKE_SERVERS; i++)
        draw_start(&fake.servers[i].draw, NULL, 0);
    pthread_mutex_unlock(&fake.lock);
}

bool fake_servers_gone(void)
{
    pthread_mutex_lock(&fake.lock);
    bool gone = fake.servers[0].gone || fake.servers[1].gone;
    pthread_mutex_unlock(&fake.lock);
    return gone;
}
