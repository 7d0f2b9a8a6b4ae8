/* Connecting: attempts until one is accepted and greeted, or the time is up. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "transport/silence.h"
#include "transport/zmq_greet.h"

/* How often a connecting side tries again after a connection that was accepted
 * and dropped: a worker shows strangers out by dropping all it has. */
#define DROPPED_MAX 6
#define DROPPED_PAUSE_US 50000
/* And with a key, before it is taken to be the wrong one. */
#define UNSHAKEN_MAX 2

struct attempt {
    const struct link_endpoints *to;
    struct link_endpoints endpoints; /* of the sockets */
    struct door_knocked door;        /* tcp://: fd -1: not open */
    int64_t deadline, begun;         /* ns */
    void *ctx;
    struct link up, down;
    unsigned char nonce[16];
    bool connected; /* somebody accepted, now or in an earlier attempt */
    bool shaken;    /* and spoke as we do */
    enum link_trouble trouble;
};

static void attempt_leave(struct attempt *a)
{
    if (a->door.fd >= 0)
        close(a->door.fd);
    a->door.fd = -1;
}

/* Where the sockets are, and the nonce to greet with. */
static int attempt_find(struct attempt *a)
{
    a->endpoints = *a->to;
    if (!a->to->word.given)
        return getrandom(a->nonce, sizeof a->nonce, 0) == (ssize_t)sizeof a->nonce ? 0 : -errno;
    unsigned char body[DOOR_BODY_BYTES];
    uint16_t ports[2];
    const unsigned char *word = a->to->word.bytes;
    int rc = door_knock(a->to->up, word, a->deadline, &a->door);
    if (rc)
        return rc;
    a->connected = true;
    rc = door_hear_answer(&a->door, word, a->deadline, sizeof ports, body);
    if (rc)
        return rc;
    memcpy(ports, body, sizeof ports); /* high byte first */
    if (!ports[0] || !ports[1])
        return -EPROTO;
    snprintf(a->endpoints.up, sizeof a->endpoints.up, "tcp://%s:%u", a->door.host,
             (unsigned)ntohs(ports[0]));
    snprintf(a->endpoints.down, sizeof a->endpoints.down, "tcp://%s:%u", a->door.host,
             (unsigned)ntohs(ports[1]));
    door_greeting_nonce(&a->door, word, a->nonce);
    return 0;
}

static int attempt_open(struct attempt *a)
{
    const struct link_curve *curve = &a->endpoints.curve;
    int rc = link_open(&a->up, a->ctx, LINK_SENDS, a->endpoints.up, curve);
    if (rc == 0)
        rc = link_open(&a->down, a->ctx, LINK_RECEIVES, a->endpoints.down, curve);
    if (rc == 0 && (zmq_connect(a->up.socket, a->endpoints.up) != 0 ||
                    zmq_connect(a->down.socket, a->endpoints.down) != 0))
        rc = link_errno();
    if (rc == 0)
        rc = link_greeting_send(&a->up, false, false, a->nonce);
    if (rc == 0)
        rc = link_greeting_send(&a->down, false, true, a->nonce);
    return rc;
}

/* Both replies: 0, -EAGAIN, -EPROTO. */
static int attempt_hear(struct attempt *a, bool heard[2])
{
    struct link *links[2] = {&a->up, &a->down};
    for (int i = 0; i < 2; i++) {
        struct link_greeting g;
        if (heard[i])
            continue;
        int rc = link_greeting_recv(links[i], true, i == 1, &g, NULL);
        if (rc == -EAGAIN)
            continue;
        if (rc || memcmp(g.nonce, a->nonce, sizeof g.nonce) != 0)
            return -EPROTO;
        heard[i] = true;
    }
    return heard[0] && heard[1] ? 0 : -EAGAIN;
}

/* Nobody accepted: why? -EAGAIN when somebody now does. */
static int attempt_refused(struct attempt *a)
{
    int left = gp_deadline_left_ms(a->deadline, 1000);
    int rc = link_probe(a->up.refused ? a->endpoints.up : a->endpoints.down, left);
    return rc == 0 ? -EAGAIN : rc;
}

/* 0, -EAGAIN (was dropped; try again), or why not. */
static int attempt_run(struct attempt *a)
{
    bool heard[2] = {false, false};
    int rc = attempt_find(a);
    int64_t reach = gp_deadline_us((int64_t)gp_reach_ms(a->deadline) * 1000);
    if (rc == 0)
        rc = attempt_open(a);
    while (rc == 0) {
        bool taken = a->up.connected && a->down.connected;
        int left = gp_deadline_left_ms(taken ? a->deadline : reach, 200);
        link_pair_poll(&a->up, &a->down, left);
        a->connected |= a->up.connected || a->down.connected;
        a->shaken |= a->up.shaken || a->down.shaken;
        rc = attempt_hear(a, heard);
        if (rc != -EAGAIN)
            return rc;
        if (a->up.broken || a->down.broken)
            return -EAGAIN;
        if (a->up.refused || a->down.refused)
            return attempt_refused(a);
        rc = left == 0 ? -ETIMEDOUT : 0;
    }
    return rc;
}

static int attempt_once(struct attempt *a, struct gp_channel **out)
{
    attempt_leave(a);
    /* A file of ours below ZeroMQ's descriptors: who closes them closes it first. */
    int mark = memfd_create("gpupool-mark", MFD_CLOEXEC);
    a->ctx = zmq_ctx_new();
    if (!a->ctx) {
        int why = link_errno();
        if (mark >= 0)
            close(mark);
        return why;
    }
    a->begun = gp_clock_ns();
    a->up = a->down = (struct link){0};
    int rc = attempt_run(a);
    a->up.alone = a->down.alone = rc == 0;
    if (rc == 0)
        rc = gpz_channel_new(a->ctx, &a->up, &a->down, false, mark, out);
    if (rc && mark >= 0)
        close(mark);
    if (rc) {
        link_close(&a->up, 0);
        link_close(&a->down, 0);
        link_context_end(a->ctx);
    }
    return rc;
}

/* It dropped us: whether that will not change, because of the keys. */
static bool attempt_hopeless(struct attempt *a, int dropped)
{
    if (a->shaken)
        return false;
    bool slow = gp_clock_ns() - a->begun >= (int64_t)LINK_HANDSHAKE_MS * 1000000;
    int left = gp_deadline_left_ms(a->deadline, 1000);
    a->trouble = link_curve_trouble(&a->endpoints.curve, a->endpoints.up, left);
    return link_trouble_of_keys(a->trouble) &&
           (a->trouble != LINK_TROUBLE_WRONG_KEY || (!slow && dropped >= UNSHAKEN_MAX));
}

int gpz_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    struct link_endpoints endpoints;
    struct gp_silence silence;
    int rc = gp_silence_read(&silence, err);
    if (rc == 0)
        rc = link_url_parse(url, false, &endpoints, err);
    if (rc)
        return rc;
    char plain[2 * LINK_ENDPOINT_MAX];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(url, "?"), url);
    if ((rc = link_room()) != 0)
        return rc == LINK_NO_THREAD ? link_no_thread(plain, err)
                                    : gp_dial_explain(plain, rc, timeout_ms, false, err);
    struct attempt a = {
        .to = &endpoints,
        .door = {.fd = -1},
        .deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000),
    };
    for (int dropped = 0;; dropped++) {
        rc = attempt_once(&a, out);
        if (rc != -EAGAIN)
            break;
        if (attempt_hopeless(&a, dropped)) {
            rc = -EACCES;
            break;
        }
        if (dropped == DROPPED_MAX) {
            rc = -EPROTO;
            break;
        }
        usleep(DROPPED_PAUSE_US << dropped);
    }
    attempt_leave(&a);
    if (rc == -EACCES)
        return link_trouble_explain(a.trouble, "worker", plain, err);
    return rc ? gp_dial_explain(plain, rc, timeout_ms, a.connected, err) : 0;
}
