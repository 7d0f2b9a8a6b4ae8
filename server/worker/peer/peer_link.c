/* How two workers find each other, and prove to each other that their client sent them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "operations.h"
#include "peer_internal.h"

/* The client tells the other side at once, but that one may be starting up. */
#define ACCEPT_MS 60000
/* For somebody who has connected to say what he has to. */
#define PROVE_MS 5000
/* How soon to try again where nobody listens. */
#define REFUSED_MS 20
/* How often to look whether the link has been given up. */
#define STEP_MS 100

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int say(struct gpw_peer *p, const struct gpw_peer_message *m)
{
    uint64_t fixed[GPW_PEER_FIXED_MAX / 8];
    struct iovec iov = {fixed, gpw_peer_encode(m, fixed)};
    return p->transport->send(p->channel, &iov, 1, 0);
}

/* What a message of the opening says, copied out of it. */
struct heard {
    uint32_t version, oldest;
    uint8_t nonce[GPW_PEER_NONCE], proof[GPW_PEER_PROOF];
};

static int hear(struct gpw_peer *p, enum gpw_peer_kind kind, int64_t deadline, struct heard *out)
{
    const void *bytes;
    size_t size;
    int rc;
    do
        rc = p->transport->recv(p->channel, STEP_MS * 1000, &bytes, &size);
    while (rc == -EAGAIN && now_ms() < deadline && !gpw_peer_stopped(p));
    if (rc != 0)
        return rc == -EAGAIN ? -ETIMEDOUT : rc;
    struct gpw_peer_message m;
    rc = gpw_peer_decode(bytes, size, &m);
    if (rc == 0 && m.kind != kind)
        rc = -EPROTO;
    if (rc == 0) {
        out->version = m.version;
        out->oldest = m.oldest;
        if (m.nonce)
            memcpy(out->nonce, m.nonce, sizeof out->nonce);
        if (m.proof)
            memcpy(out->proof, m.proof, sizeof out->proof);
    }
    p->transport->release(p->channel);
    return rc;
}

static int nonce_make(uint8_t nonce[GPW_PEER_NONCE])
{
    return getrandom(nonce, GPW_PEER_NONCE, 0) == GPW_PEER_NONCE ? 0 : -errno;
}

/* --- the connecting side --------------------------------------------------------------- */

/* 0, or why not: -EACCES when the other side does not know the secret. */
static int prove_connecting(struct gpw_peer *p, int64_t deadline)
{
    uint8_t nonce[GPW_PEER_NONCE], proof[GPW_PEER_PROOF];
    struct heard heard;
    int rc = nonce_make(nonce);
    if (rc == 0)
        rc = say(p, &(struct gpw_peer_message){.kind = GPW_PEER_HELLO,
                                               .version = GP_WIRE_VERSION,
                                               .oldest = GP_WIRE_OLDEST,
                                               .nonce = nonce});
    if (rc == 0)
        rc = hear(p, GPW_PEER_CHALLENGE, deadline, &heard);
    if (rc == 0 && !gp_wire_agree(heard.version, heard.version))
        rc = -EPROTONOSUPPORT;
    if (rc != 0)
        return rc;
    gpw_peer_proof(p->secret, true, nonce, heard.nonce, proof);
    if (!gpw_peer_proof_same(proof, heard.proof))
        return -EACCES;
    gpw_peer_proof(p->secret, false, nonce, heard.nonce, proof);
    rc = say(p, &(struct gpw_peer_message){.kind = GPW_PEER_PROVE, .proof = proof});
    return rc == 0 ? hear(p, GPW_PEER_WELCOME, deadline, &heard) : rc;
}

/* Who listens looks at one at a time, and nobody listens meanwhile: that a connection is
 * refused does not say that the other worker has gone. */
static int dial(struct gpw_peer *p, int64_t deadline, struct gp_error *err)
{
    int rc;
    do {
        int64_t left = deadline - now_ms();
        rc = p->transport->connect(p->url, left > 0 ? (int)left : 0, &p->channel, err);
        if (rc == -ECONNREFUSED)
            usleep(REFUSED_MS * 1000);
    } while (rc == -ECONNREFUSED && now_ms() < deadline && !gpw_peer_stopped(p));
    return rc;
}

static int link_connect(struct gpw_peer *p, struct gp_error *err)
{
    int64_t deadline = now_ms() + GP_PEER_CONNECT_MS;
    /* half of the time: so that the proofs have some */
    int rc = dial(p, deadline - GP_PEER_CONNECT_MS / 2, err);
    if (rc != 0)
        return -1;
    rc = prove_connecting(p, deadline);
    if (rc == 0)
        return 0;
    gp_error_set(err, "%.*s did not prove to be the worker that it should be: %s",
                 gpw_peer_shown(p->url), p->url, strerror(-rc));
    return -1;
}

/* --- the listening side ------------------------------------------------------------------ */

static int prove_listening(struct gpw_peer *p)
{
    uint8_t nonce[GPW_PEER_NONCE], proof[GPW_PEER_PROOF];
    struct heard heard;
    int64_t deadline = now_ms() + PROVE_MS;
    int rc = hear(p, GPW_PEER_HELLO, deadline, &heard);
    uint32_t version = rc == 0 ? gp_wire_agree(heard.version, heard.oldest) : 0;
    if (rc == 0 && !version)
        rc = -EPROTONOSUPPORT;
    if (rc == 0)
        rc = nonce_make(nonce);
    if (rc != 0)
        return rc;
    uint8_t theirs[GPW_PEER_NONCE];
    memcpy(theirs, heard.nonce, sizeof theirs);
    gpw_peer_proof(p->secret, true, theirs, nonce, proof);
    rc = say(p,
             &(struct gpw_peer_message){
                 .kind = GPW_PEER_CHALLENGE, .version = version, .nonce = nonce, .proof = proof});
    if (rc == 0)
        rc = hear(p, GPW_PEER_PROVE, deadline, &heard);
    if (rc != 0)
        return rc;
    gpw_peer_proof(p->secret, false, theirs, nonce, proof);
    if (!gpw_peer_proof_same(proof, heard.proof))
        return -EACCES;
    return say(p, &(struct gpw_peer_message){.kind = GPW_PEER_WELCOME});
}

static void listener_close(struct gpw_peer *p)
{
    if (p->listener)
        p->transport->listener_close(p->listener);
    p->listener = NULL;
}

/* A listener may take only one client in its life (zmq), and that was the wrong one. */
static int listen_again(struct gpw_peer *p, int64_t deadline, struct gp_error *err)
{
    int rc;
    p->transport->close(p->channel);
    p->channel = NULL;
    listener_close(p);
    while ((rc = p->transport->listen(p->url, &p->listener, err)) == -EADDRINUSE &&
           now_ms() < deadline && !gpw_peer_stopped(p))
        usleep(5000);
    return rc;
}

static int link_accept(struct gpw_peer *p, struct gp_error *err)
{
    int64_t deadline = now_ms() + ACCEPT_MS;
    while (now_ms() < deadline && !gpw_peer_stopped(p)) {
        int rc = p->transport->accept(p->listener, STEP_MS, &p->channel, err);
        if (rc == -EAGAIN)
            continue;
        if (rc != 0)
            return -1;
        rc = prove_listening(p);
        if (rc == 0)
            return 0;
        gpw_log("warn", "peer %u: who connected to %.*s is not the worker that should: %s",
                p->index, gpw_peer_shown(p->url), p->url, strerror(-rc));
        if (listen_again(p, deadline, err) != 0)
            return -1;
    }
    gp_error_set(err, "no worker connected to %.*s within %d s", gpw_peer_shown(p->url), p->url,
                 ACCEPT_MS / 1000);
    return -1;
}

int gpw_peer_link(struct gpw_peer *p, struct gp_error *err)
{
    int rc = p->listener ? link_accept(p, err) : link_connect(p, err);
    listener_close(p);
    if (rc != 0 && p->channel) {
        p->transport->close(p->channel);
        p->channel = NULL;
    }
    return rc;
}
