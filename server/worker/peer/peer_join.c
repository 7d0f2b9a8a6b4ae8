/*
 * How workers are joined: the client asks one to listen and the other to connect, and carries
 * the address from one to the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    pthread_cond_init(&all->slot_free, NULL);
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

/* Where the client was awaited over the network; NULL where it was not: another worker may
 * be anywhere, and nothing of this machine's own is for it. */
static const char *network_url(const struct gpw_peers_at *site)
{
    for (unsigned i = 0; i < site->listen_count; i++)
        if (strncmp(site->listen[i], "tcp://", 6) == 0)
            return site->listen[i];
    return NULL;
}

/* A fresh port beside that, of the same range if it has one. */
static int fresh_address(const struct gpw_peers_at *site, char *url, size_t size)
{
    const char *own = network_url(site), *colon = own ? strrchr(own, ':') : NULL;
    const char *key = own ? strchr(own, '?') : NULL;
    if (!own)
        return -1;
    int length = (int)((key ? key : own + strlen(own)) - own);
    bool range = memchr(colon, '-', (size_t)(own + length - colon));
    int n = range ? snprintf(url, size, "%s", own)
                  : snprintf(url, size, "%.*s:*%s", (int)(colon - own), own, key ? key : "");
    return n > 0 && (size_t)n < size ? 0 : -1;
}

/* With the host that others reach, sealed. False: there is none, or no key. */
static bool told_address(const struct gpw_peers_at *site, const char *bound, const uint8_t *secret,
                         char out[GP_PEER_URL_MAX])
{
    static const char *const wild[] = {"tcp://0.0.0.0:", "tcp://[::]:", "tcp://*:"};
    char url[GP_PEER_URL_MAX];
    int n = snprintf(url, sizeof url, "%s", bound);
    for (unsigned i = 0; i < sizeof wild / sizeof wild[0]; i++)
        if (strncmp(bound, wild[i], strlen(wild[i])) == 0)
            n = site->host
                    ? snprintf(url, sizeof url, "tcp://%s:%s", site->host, bound + strlen(wild[i]))
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
    pthread_cond_init(&p->work, NULL);
    if (!p->url) {
        peer_free(p);
        return NULL;
    }
    return p;
}

/* Its number may be had again: nothing refers to it, and its thread ends or has. */
static void peer_forget(struct gpw_peers *all, uint32_t index)
{
    struct gpw_peer *p = all->links[index];
    pthread_join(p->reader, NULL);
    all->links[index] = NULL;
    peer_free(p);
}

/* Whether a link may be made under this number: none was, or it is gone. */
static bool number_free(struct gpw_peers *all, uint32_t index)
{
    if (index >= GP_PEERS_MAX)
        return false;
    struct gpw_peer *p = all->links[index];
    if (!p)
        return true;
    pthread_mutex_lock(&p->all->lock);
    bool gone = p->state == GPW_PEER_DOWN;
    pthread_mutex_unlock(&p->all->lock);
    if (!gone || gpw_peer_used(p))
        return false;
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

CUresult gpw_gp_peer_listen(struct gpw_session *s, uint32_t peer, const uint8_t *secret, char *url,
                            uint32_t *n_url)
{
    char address[GP_PEER_URL_MAX];
    struct gp_error err = {""};
    *n_url = 0;
    if (!number_free(s->peers, peer))
        return CUDA_ERROR_INVALID_VALUE;
    if (!s->peers->at.has_key || fresh_address(&s->peers->at, address, sizeof address) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct gpw_peer *p = peer_new(s, peer, secret, address, &err);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (p->transport->listen(p->url, &p->listener, &err) != 0) {
        gpw_log("warn", "peer %u: cannot listen at %s: %s", peer, p->url, err.text);
        peer_free(p);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    const char *bound = p->transport->listener_url(p->listener);
    char *again = strdup(bound); /* where to listen again, should a stranger come */
    if (!again || strlen(bound) >= GP_PEER_URL_MAX) {
        free(again);
        peer_free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(p->url);
    p->url = again;
    if (!told_address(&s->peers->at, bound, secret, address)) {
        gpw_log("warn",
                "peer %u: nobody knows at which address others reach this host; set "
                "'advertise'",
                peer);
        peer_free(p);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult r = peer_begin(p);
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

static enum gpw_peer_state state_of(const struct gpw_peer *p)
{
    pthread_mutex_lock(&p->all->lock);
    enum gpw_peer_state state = p->state;
    pthread_mutex_unlock(&p->all->lock);
    return state;
}

static bool joining_ready(struct gpw_session *s, struct gpw_wait *w)
{
    return state_of(gpw_peer_of(s, ((struct joining *)w)->peer)) != GPW_PEER_OPENING;
}

static bool joining_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct joining *j = (struct joining *)w;
    struct gpw_peer *p = gpw_peer_of(s, j->peer);
    bool up = state_of(p) == GPW_PEER_UP;
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
        gpw_log("warn", "the client's address of another worker, %.200s, is refused: %s", address,
                wrong);
    return !wrong;
}

CUresult gpw_gp_peer_connect(struct gpw_session *s, struct gpw_token token, uint32_t peer,
                             const uint8_t *secret, const char *url)
{
    struct gp_error err = {""};
    char address[GP_PEER_URL_MAX];
    if (!number_free(s->peers, peer) || strlen(url) >= sizeof address)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(address, url, strlen(url) + 1);
    if (!may_connect(&s->peers->at, address, secret))
        return CUDA_ERROR_NOT_PERMITTED;
    struct joining *j = malloc(sizeof *j);
    if (!j)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpw_peer *p = peer_new(s, peer, secret, address, &err);
    if (!p) {
        gpw_log("warn", "peer %u: cannot connect to %.200s: %s", peer, address, err.text);
        free(j);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult r = peer_begin(p);
    if (r != CUDA_SUCCESS) {
        free(j);
        return r;
    }
    *j = (struct joining){{.what = "a peer's connection",
                           .ready = joining_ready,
                           .poll = joining_poll,
                           .cancel = joining_cancel},
                          token,
                          peer};
    gpw_wait_add(s, &j->wait);
    return GPW_DEFERRED;
}
