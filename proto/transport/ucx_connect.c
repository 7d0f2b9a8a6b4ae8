/* Addresses, and connecting: attempts until one is let in, or the time is up. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/ucx_greet.h"

/* How often a connecting side tries again after a connection that was accepted and dropped:
 * a door lets one in at a time, and a crowd may push somebody out. */
#define DROPPED_MAX 6
#define DROPPED_PAUSE_US 50000
#define HANDED_MOST 1000000
/* How long UCX may take to carry the first message. */
#define GREETING_MS 5000

/* --- addresses ------------------------------------------------------------- */

static int address_fail(const char *url, bool listening, struct gp_error *err)
{
    size_t shown = strcspn(url, "?"); /* not the word behind it */
    gp_error_set(err, "'%.*s' is not an address of a worker: write %s",
                 (int)(shown < 120 ? shown : 120), url,
                 listening ? "ucx://HOST:* or ucx://HOST:PORT" : "ucx://HOST:PORT?door=WORD");
    return -EINVAL;
}

/* The number of a descriptor above the standard ones, which are somebody else's; -1: none. */
static int handed_read(const char *text)
{
    char *end;
    long fd = strtol(text, &end, 10);
    bool number = strchr("0123456789", *text) && *text && !*end;
    return number && fd > STDERR_FILENO && fd < HANDED_MOST ? (int)fd : -1;
}

int ucx_address_parse(const char *url, bool listening, struct ucx_address *out,
                      struct gp_error *err)
{
    static const char door[] = "?door=", handed[] = "?fd=";
    *out = (struct ucx_address){.handed = -1};
    size_t length = strcspn(url, "?"), scheme = strlen(UCX_SCHEME);
    const char *query = url + length;
    if (strncmp(url, UCX_SCHEME, scheme) != 0 || length >= sizeof out->endpoint - 8)
        return address_fail(url, listening, err);
    memcpy(out->endpoint, url, length);
    const char *host = out->endpoint + scheme, *colon = strrchr(host, ':');
    if (!colon || colon == host || !gp_port_ok(colon + 1, strlen(colon + 1), listening))
        return address_fail(url, listening, err);
    out->has_word = strncmp(query, door, strlen(door)) == 0;
    if (out->has_word)
        return door_word_read(query + strlen(door), out->word, err);
    if (listening && strncmp(query, handed, strlen(handed)) == 0)
        out->handed = handed_read(query + strlen(handed));
    bool whole = listening && (!*query || out->handed >= 0);
    return whole ? 0 : address_fail(url, listening, err);
}

/* --- connecting ------------------------------------------------------------- */

struct attempt {
    struct ucx_address to;
    struct gp_silence silence;
    int64_t deadline;
    bool accepted;       /* somebody took the connection, now or before */
    bool unreached;      /* and its UCX was not heard */
    struct gp_error own; /* what is wrong on this side */
};

/* The worker shows that it has the word, then this side, for this connection. */
static int show_word(const struct attempt *a, const struct door_knocked *k, struct ucx_proof *proof)
{
    unsigned char body[DOOR_BODY_BYTES];
    int rc = door_hear_answer(k, a->to.word, a->deadline, sizeof body, body);
    if (rc)
        return rc;
    door_key(a->to.word, proof->key);
    door_confirm(k, a->to.word, body, proof->confirmed);
    return send(k->fd, proof->confirmed, sizeof proof->confirmed, MSG_NOSIGNAL) ==
                   (ssize_t)sizeof proof->confirmed
               ? 0
               : -EAGAIN;
}

static int hear_hello(const struct attempt *a, int fd, const struct ucx_proof *proof,
                      struct ucx_hearing *h, struct ucx_hello *hello)
{
    int rc;
    while ((rc = ucx_hello_hear(h, fd, UCX_WORKER, proof, hello)) == -EAGAIN) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int left = gp_deadline_left_ms(a->deadline, 1000);
        if (left == 0)
            return -ETIMEDOUT;
        poll(&p, 1, left);
    }
    return rc == -EPIPE ? -EAGAIN : rc;
}

static int hear_greeting(struct attempt *a, struct gp_channel *ch)
{
    int64_t until = gp_deadline_us((int64_t)GREETING_MS * 1000);
    int rc;
    if (until > a->deadline)
        until = a->deadline;
    while ((rc = ucx_greeted(ch)) == -EAGAIN && gp_clock_ns() < until)
        usleep(100);
    if (rc)
        a->unreached = true;
    return rc ? -EHOSTUNREACH : 0;
}

static int meet(struct attempt *a, const struct door_knocked *k, struct gp_channel *ch)
{
    struct ucx_proof proof;
    struct ucx_hello hello;
    struct ucx_hearing *h = calloc(1, sizeof *h);
    int rc = h ? show_word(a, k, &proof) : -ENOMEM;
    if (rc == 0)
        rc = ucx_hello_say(ch, UCX_CLIENT, &proof);
    if (rc == 0)
        rc = hear_hello(a, k->fd, &proof, h, &hello);
    if (rc == 0) {
        rc = ucx_greet(ch, h, &hello);
        a->unreached |= rc == -EHOSTUNREACH;
    }
    if (rc == 0)
        rc = hear_greeting(a, ch);
    explicit_bzero(&proof, sizeof proof);
    free(h);
    return rc;
}

static int attempt_once(struct attempt *a, struct gp_channel **out)
{
    struct door_knocked k;
    struct gp_channel *ch = NULL;
    int rc = door_knock(a->to.endpoint, a->to.word, a->deadline, &k);
    if (rc)
        return rc;
    a->accepted = true;
    rc = ucx_channel_new(k.fd, &a->silence, false, &ch, &a->own);
    if (rc == 0)
        rc = meet(a, &k, ch);
    if (rc == 0)
        rc = ucx_channel_start(ch);
    if (rc == 0) {
        *out = ch;
        return 0;
    }
    if (ch)
        ucx_channel_drop(ch);
    close(k.fd);
    return rc;
}

static int explain(const struct attempt *a, int rc, int timeout_ms, struct gp_error *err)
{
    if (rc == -ENOTSUP && a->own.text[0])
        gp_error_set(err, "%s", a->own.text);
    else if (a->unreached)
        gp_error_set(err,
                     "the worker at %.100s is there, but UCX does not reach it: have both hosts a "
                     "device of one network (GPUPOOL_UCX_NET_DEVICES), and are its ports open?",
                     a->to.endpoint);
    else
        return gp_dial_explain(a->to.endpoint, rc, timeout_ms, a->accepted, err);
    return rc;
}

int ucx_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    struct attempt a = {
        .deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000),
    };
    const struct ucx_api *api;
    int rc = gp_silence_read(&a.silence, err);
    if (rc == 0)
        rc = ucx_address_parse(url, false, &a.to, err);
    if (rc == 0)
        rc = ucx_library_open(&api, err);
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
    return rc ? explain(&a, rc, timeout_ms, err) : 0;
}
