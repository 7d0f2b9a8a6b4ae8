/*
 * How workers are joined: the client asks one to listen and the other to connect, and carries
 * the address from one to the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "condition.h"
#include "gpw_handlers.h"
#include "loop.h"
#include "peer_internal.h"
#include "peer_seal.h"

int gpw_peers_open(struct gpw_session *s, const struct gpw_peers_at *where)
{
    struct gpw_peers *all = calloc(1, sizeof *all);
    if (!all)
        return -1;
    all->at = *where;
    all->transfers_end = &all->transfers;
    pthread_mutex_init(&all->lock, NULL);
    gp_condition_init(&all->slot_free);
    s->peers = all;
    return 0;
}

struct gpw_peer *gpw_peer_of(const struct gpw_session *s, uint32_t index)
{
    return index < GP_PEERS_MAX ? s->peers->links[index] : NULL;
}

static int64_t wall_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec;
}

/* Where the client was awaited over the network by ZeroMQ; NULL where it was not: another worker
 * may be anywhere, and nothing of this machine's own is for it. */
static const char *network_url(const struct gpw_peers_at *site)
{
    for (unsigned i = 0; i < site->listen_count; i++)
        if (strncmp(site->listen[i], "tcp://", 6) == 0)
            return site->listen[i];
    return NULL;
}

/* "tls" or "plain" where it was awaited by TCP of our own as well; NULL: it was not. */
static const char *stream_scheme(const struct gpw_peers_at *site)
{
    for (unsigned i = 0; i < site->listen_count; i++) {
        if (strncmp(site->listen[i], "tls://", 6) == 0)
            return "tls";
        if (strncmp(site->listen[i], "plain://", 8) == 0)
            return "plain";
    }
    return NULL;
}

/* A fresh port beside that, of the same range if it has one. `scheme`: of our own TCP, which makes
 * up the word of its address itself; NULL: of ZeroMQ. */
static int fresh_address(const struct gpw_peers_at *site, const char *scheme, char *url,
                         size_t size)
{
    const char *own = network_url(site), *colon = own ? strrchr(own, ':') : NULL;
    if (!own)
        return -1;
    const char *key = own + strcspn(own, "?"), *host = strstr(own, "://");
    bool range = memchr(colon, '-', (size_t)(key - colon));
    const char *ports = range ? colon + 1 : "*";
    int n = snprintf(url, size, "%s%.*s:%.*s%s", scheme ? scheme : "tcp", (int)(colon - host), host,
                     range ? (int)(key - ports) : 1, ports, scheme ? "" : key);
    return n > 0 && (size_t)n < size ? 0 : -1;
}

/* With the host that others reach, sealed. False: there is none, or no key. */
static bool told_address(const struct gpw_peers_at *site, const char *bound, const uint8_t *secret,
                         char out[GP_PEER_URL_MAX])
{
    static const char *const wild[] = {"0.0.0.0:", "[::]:", "*:"};
    char url[GP_PEER_URL_MAX];
    const char *host = strstr(bound, "://");
    host = host ? host + 3 : bound;
    int n = snprintf(url, sizeof url, "%s", bound);
    for (unsigned i = 0; i < sizeof wild / sizeof wild[0]; i++)
        if (strncmp(host, wild[i], strlen(wild[i])) == 0)
            n = site->host ? snprintf(url, sizeof url, "%.*s%s:%s", (int)(host - bound), bound,
                                      site->host, host + strlen(wild[i]))
                           : -1;
    return n > 0 && (size_t)n < sizeof url &&
           gpw_peer_seal(site->key, secret, wall_seconds(), url, out, GP_PEER_URL_MAX);
}

static void peer_free(struct gpw_peer *p)
{
    if (p->listener)
        p->transport->listener_close(p->listener);
    pthread_cond_destroy(&p->work);
    free(p->url);
    free(p);
}

static struct gpw_peer *peer_new(struct gpw_session *s, uint32_t index, const uint8_t *secret,
                                 const char *url, struct gp_error *err)
{
    const struct gp_transport *transport = gp_transport_find(url, s->peers->at.plugins, err);
    struct gpw_peer *p = transport ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return NULL;
    p->all = s->peers;
    p->index = index;
    p->driver = s->driver;
    p->transport = transport;
    p->url = strdup(url);
    p->notes_end = &p->notes;
    memcpy(p->secret, secret, sizeof p->secret);
    gp_condition_init(&p->work);
    if (!p->url) {
        peer_free(p);
        return NULL;
    }
    return p;
}

static enum gpw_peer_state state_of(const struct gpw_peer *p)
{
    pthread_mutex_lock(&p->all->lock);
    enum gpw_peer_state state = p->state;
    pthread_mutex_unlock(&p->all->lock);
    return state;
}

/* Its number may be had again: nothing refers to it, and its thread ends or has. */
static void peer_forget(struct gpw_peers *all, uint32_t index)
{
    struct gpw_peer *p = all->links[index];
    pthread_join(p->reader, NULL);
    all->links[index] = NULL;
    peer_free(p);
}

/* Nobody has come to it, and its client tries another way: its thread looks for that often. */
static void peer_give_up(struct gpw_peer *p)
{
    pthread_mutex_lock(&p->all->lock);
    p->stop = true;
    gpw_peer_down(p, "the client tries another way");
    pthread_mutex_unlock(&p->all->lock);
}

/* Whether a link may be made under this number: none was, it is gone, or, if `instead`, nobody has
 * come to where it listens. */
static bool number_free(struct gpw_peers *all, uint32_t index, bool instead)
{
    if (index >= GP_PEERS_MAX)
        return false;
    struct gpw_peer *p = all->links[index];
    if (!p)
        return true;
    if (p->joining) /* and is to hear how it went first */
        return false;
    enum gpw_peer_state state = state_of(p);
    bool awaits = state == GPW_PEER_OPENING && p->listens && instead;
    if ((state != GPW_PEER_DOWN && !awaits) || gpw_peer_used(p))
        return false;
    if (awaits)
        peer_give_up(p);
    peer_forget(all, index);
    return true;
}

static CUresult peer_begin(struct gpw_peer *p)
{
    int rc = gpw_peer_start(p);
    if (rc == 0) {
        p->all->links[p->index] = p;
        return CUDA_SUCCESS;
    }
    gpw_log("warn", "peer %u: cannot start a thread: %s", p->index, strerror(-rc));
    peer_free(p);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Listens, and writes the sealed address; it has no thread yet. `scheme` as fresh_address has it. */
static CUresult listener_make(struct gpw_session *s, uint32_t peer, const uint8_t *secret,
                              const char *scheme, char told[GP_PEER_URL_MAX], struct gpw_peer **out)
{
    struct gp_error err = {""};
    if (fresh_address(&s->peers->at, scheme, told, GP_PEER_URL_MAX) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct gpw_peer *p = peer_new(s, peer, secret, told, &err);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->listens = true;
    p->streams = scheme != NULL;
    CUresult r = CUDA_SUCCESS;
    if (p->transport->listen(p->url, &p->listener, &err) != 0) {
        gpw_log("warn", "peer %u: cannot listen at %s: %s", peer, p->url, err.text);
        r = CUDA_ERROR_OPERATING_SYSTEM;
    }
    const char *bound = r == CUDA_SUCCESS ? p->transport->listener_url(p->listener) : "";
    char *again = strdup(bound); /* where to listen again, should a stranger come */
    if (r == CUDA_SUCCESS && (!again || strlen(bound) >= GP_PEER_URL_MAX))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && !told_address(&s->peers->at, bound, secret, told)) {
        gpw_log("warn",
                "peer %u: nobody knows at which address others reach this host; set "
                "'advertise'",
                peer);
        r = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (r != CUDA_SUCCESS) {
        free(again);
        peer_free(p);
        return r;
    }
    free(p->url);
    p->url = again;
    *out = p;
    return CUDA_SUCCESS;
}

/* By TCP of our own where this worker has it. Who asks again has an other worker that has not: one of
 * an earlier release, which knows no such address. */
CUresult gpw_gp_peer_listen(struct gpw_session *s, uint32_t peer, const uint8_t *secret, char *url,
                            uint32_t *n_url)
{
    char address[GP_PEER_URL_MAX];
    *n_url = 0;
    struct gpw_peer *p = gpw_peer_of(s, peer);
    const char *scheme = p && p->streams && state_of(p) == GPW_PEER_OPENING
                             ? NULL
                             : stream_scheme(&s->peers->at);
    if (!number_free(s->peers, peer, p && p->streams))
        return CUDA_ERROR_INVALID_VALUE;
    if (!s->peers->at.has_key)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = listener_make(s, peer, secret, scheme, address, &p);
    if (r != CUDA_SUCCESS && scheme)
        r = listener_make(s, peer, secret, NULL, address, &p);
    if (r == CUDA_SUCCESS)
        r = peer_begin(p);
    if (r != CUDA_SUCCESS)
        return r;
    *n_url = (uint32_t)strlen(address) + 1;
    memcpy(url, address, *n_url);
    return CUDA_SUCCESS;
}

/* A client that waits for a link. */
struct joining {
    struct gpw_wait wait;
    struct gpw_token token;
    uint32_t peer;
};

static bool joining_ready(struct gpw_session *s, struct gpw_wait *w)
{
    return state_of(gpw_peer_of(s, ((struct joining *)w)->peer)) != GPW_PEER_OPENING;
}

static bool joining_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct joining *j = (struct joining *)w;
    struct gpw_peer *p = gpw_peer_of(s, j->peer);
    bool up = state_of(p) == GPW_PEER_UP;
    p->joining = false;
    if (!up && !gpw_peer_used(p))
        peer_forget(s->peers, j->peer); /* as if it had never been tried */
    gpw_answer_gp_peer_connect(s, j->token, up ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE);
    free(j);
    return true;
}

static void joining_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s;
    free(w);
}

/* The client is only the carrier: what it makes up goes nowhere. Takes the seal off. */
static bool may_connect(const struct gpw_peers_at *site, char address[GP_PEER_URL_MAX],
                        const uint8_t *secret)
{
    const char *own = network_url(site);
    const char *wrong = site->has_key ? gpw_peer_unseal(site->key, secret, wall_seconds(), address)
                                      : "this server has no peer_key for it";
    if (!wrong && !gpw_peer_may_go(address, own && gpw_peer_is_loopback(own)))
        wrong = "it is no other host's";
    if (wrong)
        gpw_log("warn", "the client's address of another worker, %.*s, is refused: %s",
                gpw_peer_shown(address), address, wrong);
    return !wrong;
}

CUresult gpw_gp_peer_connect(struct gpw_session *s, struct gpw_token token, uint32_t peer,
                             const uint8_t *secret, const char *url)
{
    struct gp_error err = {""};
    char address[GP_PEER_URL_MAX];
    if (strlen(url) >= sizeof address)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(address, url, strlen(url) + 1);
    if (!may_connect(&s->peers->at, address, secret))
        return CUDA_ERROR_NOT_PERMITTED;
    bool streams = strncmp(address, "tcp://", 6) != 0;
    if ((streams && !stream_scheme(&s->peers->at)) || !number_free(s->peers, peer, true))
        return CUDA_ERROR_INVALID_VALUE;
    struct joining *j = malloc(sizeof *j);
    if (!j)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpw_peer *p = peer_new(s, peer, secret, address, &err);
    if (!p) {
        gpw_log("warn", "peer %u: cannot connect to %.*s: %s", peer, gpw_peer_shown(address),
                address, err.text);
        free(j);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult r = peer_begin(p);
    if (r != CUDA_SUCCESS) {
        free(j);
        return r;
    }
    p->joining = true;
    *j = (struct joining){{.what = "a peer's connection",
                           .ready = joining_ready,
                           .poll = joining_poll,
                           .cancel = joining_cancel},
                          token,
                          peer};
    gpw_wait_add(s, &j->wait);
    return GPW_DEFERRED;
}
