/* Addresses, and connecting: attempts until one is let in, or the time is up. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/dial.h"
#include "transport/tcp_channel.h"

/* How often a connecting side tries again after a connection that was accepted and dropped:
 * a door lets one in at a time, and a crowd may push somebody out. */
#define DROPPED_MAX 6
#define DROPPED_PAUSE_US 50000

/* --- addresses ------------------------------------------------------------- */

static int address_fail(const char *url, bool listening, struct gp_error *err)
{
    gp_error_set(err, "'%.*s' is not an address of a worker: write tls://HOST:%s",
                 (int)(strcspn(url, "?") < 120 ? strcspn(url, "?") : 120), url,
                 listening ? "* or tls://HOST:PORT" : "PORT?door=WORD");
    return -EINVAL;
}

/* Above the standard ones, which are somebody else's. */
static int handed_read(const char *text, int *fd)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 6 || text[digits])
        return -EINVAL;
    *fd = atoi(text);
    return *fd > STDERR_FILENO ? 0 : -EINVAL;
}

int tcp_address_parse(const char *url, bool listening, struct tcp_address *out,
                      struct gp_error *err)
{
    static const char door[] = "?door=", handed[] = "?fd=";
    *out = (struct tcp_address){.handed = -1, .encrypts = strncmp(url, TCP_TLS_SCHEME, 6) == 0};
    if (!out->encrypts && strncmp(url, TCP_PLAIN_SCHEME, 8) != 0)
        return address_fail(url, listening, err);
    size_t length = strcspn(url, "?");
    const char *query = url + length;
    if (length >= sizeof out->endpoint - 8)
        return address_fail(url, listening, err);
    memcpy(out->endpoint, url, length);
    const char *host = strstr(out->endpoint, "://") + 3, *colon = strrchr(host, ':');
    if (!colon || colon == host || !gp_port_ok(colon + 1, strlen(colon + 1), listening))
        return address_fail(url, listening, err);
    out->has_word = strncmp(query, door, strlen(door)) == 0;
    if (out->has_word)
        return door_word_read(query + strlen(door), out->word, err);
    if (listening && strncmp(query, handed, strlen(handed)) == 0)
        return handed_read(query + strlen(handed), &out->handed) == 0
                   ? 0
                   : address_fail(url, listening, err);
    return *query || !listening ? address_fail(url, listening, err) : 0;
}

/* --- connecting ------------------------------------------------------------- */

struct attempt {
    struct tcp_address to;
    struct gp_silence silence;
    unsigned lanes;
    int64_t deadline;
    bool accepted; /* somebody took the connection, now or before */
};

/* Without TLS: the worker shows that it has the word, then this side, for this connection. */
static int greet_plain(const struct door_knocked *k, const unsigned char *word, int64_t deadline,
                       unsigned char *lanes_word)
{
    unsigned char body[DOOR_BODY_BYTES], proof[DOOR_PROOF_BYTES];
    int rc = door_hear_answer(k, word, deadline, sizeof body, body);
    if (rc)
        return rc;
    door_lanes_word(word, k->nonce, body, lanes_word);
    door_confirm(k, word, body, proof);
    return send(k->fd, proof, sizeof proof, MSG_NOSIGNAL) == (ssize_t)sizeof proof ? 0 : -EAGAIN;
}

static int greet_tls(int fd, const unsigned char *word, int64_t deadline, struct tcp_tls **out)
{
    unsigned char key[DOOR_PROOF_BYTES];
    struct tcp_tls *tls = NULL;
    door_key(word, key);
    int rc = tcp_tls_new(key, false, &tls);
    explicit_bzero(key, sizeof key);
    while (rc == 0 && (rc = tcp_tls_pump(tls, fd)) == -EAGAIN) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int left = gp_deadline_left_ms(deadline, 1000);
        rc = left == 0 ? -ETIMEDOUT : 0;
        if (rc == 0)
            poll(&p, 1, left);
    }
    if (rc)
        tcp_tls_free(tls);
    else
        *out = tls;
    return rc == -EPIPE ? -EAGAIN : rc;
}

int tcp_greet(const struct door_knocked *k, const unsigned char *word, bool encrypts,
              int64_t deadline, struct tcp_tls **tls, unsigned char lanes_word[DOOR_WORD_BYTES])
{
    *tls = NULL;
    if (!encrypts)
        return greet_plain(k, word, deadline, lanes_word);
    int rc = greet_tls(k->fd, word, deadline, tls);
    if (rc == 0)
        tcp_tls_word(*tls, lanes_word);
    return rc;
}

static int attempt_once(struct attempt *a, struct gp_channel **out)
{
    struct door_knocked k;
    struct tcp_tls *tls = NULL;
    unsigned char word[DOOR_WORD_BYTES];
    int rc = door_knock(a->to.endpoint, a->to.word, a->deadline, &k);
    if (rc)
        return rc;
    a->accepted = true;
    rc = tcp_greet(&k, a->to.word, a->to.encrypts, a->deadline, &tls, word);
    if (rc == 0)
        rc = tcp_channel_new(k.fd, tls, &a->silence, false, out);
    if (rc) {
        tcp_tls_free(tls);
        close(k.fd);
    } else if (a->lanes > 1) {
        tcp_lanes_connect(*out, a->lanes, &a->silence, word);
    }
    explicit_bzero(word, sizeof word);
    return rc;
}

int tcp_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    struct attempt a = {
        .deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000),
    };
    int rc = gp_silence_read(&a.silence, err);
    if (rc == 0)
        rc = tcp_lanes_setting(&a.lanes, err);
    if (rc == 0)
        rc = tcp_address_parse(url, false, &a.to, err);
    if (rc)
        return rc;
    for (int dropped = 0; (rc = attempt_once(&a, out)) == -EAGAIN; dropped++) {
        if (dropped == DROPPED_MAX) {
            rc = -EPROTO;
            break;
        }
        usleep(DROPPED_PAUSE_US << dropped);
    }
    explicit_bzero(a.to.word, sizeof a.to.word);
    return rc ? gp_dial_explain(a.to.endpoint, rc, timeout_ms, a.accepted, err) : 0;
}
