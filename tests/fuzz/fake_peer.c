#include "fake_peer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "peer_wire.h"
#include "transport/transport.h"

#define LINKS 4u
#define QUEUE 16u
#define MESSAGE_MOST ((size_t)8192)
#define HEARD_NS 2000000

/* The worker's end of a link, and what the peer keeps for it. */
struct gp_channel {
    bool open;
    unsigned put, taken;
    uint8_t nonce[GPW_PEER_NONCE];
    gp_land_fn *lands; /* where data is written that is said to be long */
    void *lands_for;
    uint64_t lent; /* messages */
    struct {
        _Alignas(8) uint8_t bytes[MESSAGE_MOST];
        size_t size;
        bool landed;
    } queue[QUEUE];
};

struct gp_listener {
    bool waits; /* for a peer that has not come yet */
    struct gp_channel *channel;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct gp_channel links[LINKS];
    struct gp_listener listeners[LINKS];
    unsigned count; /* of links; of which the last is spoken on */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static const char *const listens[] = {"tcp://127.0.0.1:1"};
const struct gpw_peers_at fake_peer_site = {.listen = listens, .listen_count = 1, .has_key = true};
static const uint8_t secret[GPW_PEER_SECRET];

/* --- what the peer says ------------------------------------------------------------------- */

/* Under the lock. As a transport does: the worker's word is kept, and what belongs elsewhere is
 * not in the message. */
static bool put_landed(struct gp_channel *ch, unsigned char *bytes, size_t size)
{
    struct gp_landing to;
    if (!ch->lands || size < GP_MESSAGE_HEAD || !ch->lands(ch->lands_for, bytes, size, &to))
        return false;
    if (to.begin == 0 || to.begin > size || to.size > size - to.begin)
        abort();
    memcpy(to.to, bytes + to.begin, to.size);
    memset(bytes + to.begin, 0x5a, to.size);
    return true;
}

/* Under the lock. */
static void put(struct gp_channel *ch, const void *bytes, size_t size)
{
    if (!ch->open || ch->put - ch->taken == QUEUE || size > MESSAGE_MOST)
        return;
    unsigned at = ch->put++ % QUEUE;
    memcpy(ch->queue[at].bytes, bytes, size);
    ch->queue[at].size = size;
    ch->queue[at].landed = put_landed(ch, ch->queue[at].bytes, size);
    pthread_cond_broadcast(&fake.changed);
}

static void put_message(struct gp_channel *ch, const struct gpw_peer_message *m)
{
    uint64_t fixed[GPW_PEER_FIXED_MAX / 8];
    put(ch, fixed, gpw_peer_encode(m, fixed));
}

/* It proves itself as a peer does that has been taken over: it knows the secret. */
static void answer_opening(struct gp_channel *ch, const struct gpw_peer_message *m)
{
    uint8_t proof[GPW_PEER_PROOF];
    if (m->kind != GPW_PEER_CHALLENGE)
        return;
    gpw_peer_proof(secret, false, ch->nonce, m->nonce, proof);
    put_message(ch, &(struct gpw_peer_message){.kind = GPW_PEER_PROVE, .proof = proof});
}

/* One of the kinds, with data if it has some; its bytes. */
static size_t draw_peer_message(struct draw *d, uint8_t out[MESSAGE_MOST])
{
    uint8_t bytes[32] = {0};
    struct gpw_peer_message m = {.kind = GPW_PEER_OFFER + draw_below(d, 5), .nonce = bytes};
    uint8_t how = draw_byte(d);
    if (how >= 240)
        m.kind = 1 + how % 4;
    m.proof = bytes;
    m.tag = draw_number(d, 8);
    m.bytes = draw_bytes_count(d);
    m.offset = draw_number(d, 8);
    m.result = (int32_t)draw_number(d, 4);
    if (m.kind == GPW_PEER_DATA)
        m.bytes = m.bytes % 4096 + !(m.bytes % 4096);
    memset(out, 0, MESSAGE_MOST);
    size_t size = gpw_peer_encode(&m, out);
    if (m.kind == GPW_PEER_DATA)
        size = gp_align8(size + m.bytes);
    uint8_t lie = draw_byte(d);
    if (lie >= 224) /* a byte that is another */
        out[draw_number(d, 2) % size] ^= (uint8_t)(1 + draw_byte(d));
    else if (lie >= 208) /* cut */
        size = sizeof(struct gp_header) + draw_number(d, 2) % (size - sizeof(struct gp_header) + 1);
    return size;
}

void fake_peer_say(struct draw *d)
{
    uint8_t message[MESSAGE_MOST];
    struct timespec until;
    size_t size = draw_peer_message(d, message);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += HEARD_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&fake.lock);
    if (fake.count) {
        struct gp_channel *ch = &fake.links[fake.count - 1];
        put(ch, message, size);
        while (ch->open && ch->taken != ch->put &&
               pthread_cond_timedwait(&fake.changed, &fake.lock, &until) == 0)
            ;
    }
    pthread_mutex_unlock(&fake.lock);
}

uint32_t fake_peer_open(struct draw *d, struct gp_header *h, uint64_t seq)
{
    struct gp_req_gp_peer_listen *q = (void *)h;
    uint32_t at = sizeof *q;
    memset(h, 0, 256);
    q->peer = draw_below(d, 2);
    q->n_secret = draw_append(h, &at, secret, sizeof secret);
    *h = (struct gp_header){.size = (uint32_t)gp_align8(at),
                            .op = GP_OP_gp_peer_listen,
                            .flags = GP_FLAG_WAITED,
                            .seq = seq};
    return h->size;
}

/* --- the transport ------------------------------------------------------------------------ */

static int peer_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    (void)url;
    pthread_mutex_lock(&fake.lock);
    int rc = fake.count < LINKS ? 0 : -EADDRINUSE;
    if (rc == 0) {
        *out = &fake.listeners[fake.count];
        **out = (struct gp_listener){.waits = true, .channel = &fake.links[fake.count]};
        fake.count++;
    }
    pthread_mutex_unlock(&fake.lock);
    if (rc)
        gp_error_set(err, "no more links here");
    return rc;
}

static const char *peer_listener_url(const struct gp_listener *l)
{
    (void)l;
    return "tcp://127.0.0.1:2";
}

static int peer_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
                       struct gp_error *err)
{
    (void)timeout_ms;
    pthread_mutex_lock(&fake.lock);
    int rc = l->waits ? 0 : -ENOTSUP; /* as zmq: one in its life */
    if (rc == 0) {
        struct gpw_peer_message hello = {.kind = GPW_PEER_HELLO,
                                         .version = GP_WIRE_VERSION,
                                         .oldest = GP_WIRE_OLDEST,
                                         .nonce = l->channel->nonce};
        l->waits = false;
        l->channel->open = true;
        put_message(l->channel, &hello);
        *out = l->channel;
    }
    pthread_mutex_unlock(&fake.lock);
    if (rc)
        gp_error_set(err, "the one peer has come");
    return rc;
}

static void peer_listener_close(struct gp_listener *l)
{
    (void)l;
}

static int peer_connect(const char *url, int timeout_ms, struct gp_channel **out,
                        struct gp_error *err)
{
    (void)timeout_ms, (void)out;
    gp_error_set(err, "nobody listens at %s", url);
    return -EHOSTUNREACH;
}

static int peer_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    struct gpw_peer_message m;
    pthread_mutex_lock(&fake.lock);
    int rc = ch->open ? 0 : -EPIPE;
    /* the worker's own are right; those without data are looked at */
    if (rc == 0 && count == 1 && gpw_peer_decode(iov[0].iov_base, iov[0].iov_len, &m) == 0)
        answer_opening(ch, &m);
    if (rc == 0 && flags & GP_SEND_LENT)
        ch->lent++;
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

static int peer_flush(struct gp_channel *ch)
{
    (void)ch;
    return 0;
}

static int peer_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (timeout_us < 0 ? 1000000 : timeout_us) * 1000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&fake.lock);
    while (ch->open && ch->taken == ch->put &&
           pthread_cond_timedwait(&fake.changed, &fake.lock, &until) == 0)
        ;
    int rc = !ch->open ? -EPIPE : ch->taken == ch->put ? -EAGAIN : 0;
    if (rc == 0) {
        *message = ch->queue[ch->taken % QUEUE].bytes;
        *size = ch->queue[ch->taken % QUEUE].size;
    }
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

static void peer_release(struct gp_channel *ch)
{
    pthread_mutex_lock(&fake.lock);
    ch->taken++;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static uint64_t peer_lent(const struct gp_channel *ch)
{
    return __atomic_load_n(&ch->lent, __ATOMIC_RELAXED);
}

/* The last one is let go of later, by the next one or the take-back. */
static uint64_t peer_returned(const struct gp_channel *ch)
{
    uint64_t lent = peer_lent(ch);
    return lent ? lent - 1 : 0;
}

static int peer_take_back(struct gp_channel *ch)
{
    (void)ch;
    return 0;
}

static void peer_land(struct gp_channel *ch, gp_land_fn *ask, void *owner)
{
    pthread_mutex_lock(&fake.lock);
    ch->lands = ask;
    ch->lands_for = owner;
    pthread_mutex_unlock(&fake.lock);
}

static bool peer_landed(const struct gp_channel *ch)
{
    pthread_mutex_lock(&fake.lock);
    bool landed = ch->queue[ch->taken % QUEUE].landed;
    pthread_mutex_unlock(&fake.lock);
    return landed;
}

static void peer_close(struct gp_channel *ch)
{
    pthread_mutex_lock(&fake.lock);
    ch->open = false;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static const struct gp_transport peer_transport = {
    .abi = GP_TRANSPORT_ABI,
    .name = "peer",
    .listen = peer_listen,
    .listener_url = peer_listener_url,
    .accept = peer_accept,
    .listener_close = peer_listener_close,
    .connect = peer_connect,
    .send = peer_send,
    .lent = peer_lent,
    .returned = peer_returned,
    .take_back = peer_take_back,
    .flush = peer_flush,
    .recv = peer_recv,
    .release = peer_release,
    .land = peer_land,
    .landed = peer_landed,
    .ground = peer_close,
    .close = peer_close,
};

const struct gp_transport *__wrap_gp_transport_find(const char *url, const char *plugin_dir,
                                                    struct gp_error *err);

/* Whatever its address says, a peer is met here. */
const struct gp_transport *__wrap_gp_transport_find(const char *url, const char *plugin_dir,
                                                    struct gp_error *err)
{
    (void)url, (void)plugin_dir, (void)err;
    return &peer_transport;
}
