#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/dial.h"
#include "transport/hex.h"
#include "transport/zmq_link.h"

#define KEY "key="
#define DOOR "door="
/* In an address to listen at: with the key pair of this process. */
#define OWN "own"

/* --- keys ----------------------------------------------------------------- */

/* One pair for the life of the process: a worker is one session, and a client needs
 * no more than to be somebody. */
static struct {
    pthread_once_t once;
    int rc;
    unsigned char public[LINK_KEY_BYTES], secret[LINK_KEY_BYTES];
} own = {.once = PTHREAD_ONCE_INIT};

static void own_make(void)
{
    char public[LINK_KEY_TEXT], secret[LINK_KEY_TEXT];
    if (zmq_curve_keypair(public, secret) != 0)
        own.rc = link_errno();
    else if (!zmq_z85_decode(own.public, public) || !zmq_z85_decode(own.secret, secret))
        own.rc = -EIO;
    explicit_bzero(secret, sizeof secret);
}

static int own_keys(void)
{
    pthread_once(&own.once, own_make);
    return own.rc;
}

void link_query_show(const struct link_curve *curve, const struct link_word *word,
                     char out[LINK_QUERY_MAX])
{
    char *at = out;
    *at = '\0';
    if (curve->role) {
        at += snprintf(at, 8, "?" KEY);
        at = gp_hex_show(curve->server, LINK_KEY_BYTES, at);
    }
    if (word->given) {
        at += snprintf(at, 8, "%c" DOOR, curve->role ? '&' : '?');
        gp_hex_show(word->bytes, DOOR_WORD_BYTES, at);
    }
}

/* --- addresses ------------------------------------------------------------- */

static int key_take(const char *key, bool listening, struct link_curve *out, struct gp_error *err)
{
    int rc;
    if (!zmq_has("curve")) {
        gp_error_set(err, "the address has a key, but this libzmq cannot encrypt: install one "
                          "built with CURVE, such as Debian's libzmq5 or that of gpupool's wheel");
        return -ENOTSUP;
    }
    if ((rc = own_keys()) != 0) {
        gp_error_set(err, "cannot make a key pair: %s", strerror(-rc));
        return rc;
    }
    out->role = listening ? LINK_CURVE_SERVER : LINK_CURVE_CLIENT;
    if (listening && strcmp(key, OWN) == 0) {
        memcpy(out->server, own.public, sizeof out->server);
        return 0;
    }
    if (gp_hex_read(key, out->server, LINK_KEY_BYTES) != 0) {
        gp_error_set(err, "the key in the address must be 64 digits 0-9 a-f; `gpupool-server "
                          "--show-key` prints a server's");
        return -EINVAL;
    }
    if (listening && memcmp(out->server, own.public, sizeof own.public) != 0) {
        gp_error_set(err,
                     "nobody can listen with a key that is not this process's; write ?key=" OWN);
        return -EINVAL;
    }
    return 0;
}

/* One `name=value` of the query. */
static int part_take(const char *part, bool listening, struct link_curve *curve,
                     struct link_word *word, struct gp_error *err)
{
    if (strncmp(part, KEY, strlen(KEY)) == 0 && curve->role == LINK_CLEAR)
        return key_take(part + strlen(KEY), listening, curve, err);
    if (strncmp(part, DOOR, strlen(DOOR)) == 0 && word && !word->given) {
        int rc = door_word_read(part + strlen(DOOR), word->bytes, err);
        word->given = rc == 0;
        return rc;
    }
    gp_error_set(err, "'?%.40s' does not belong behind an address", part);
    return -EINVAL;
}

static int query_take(const char *query, bool listening, struct link_curve *curve,
                      struct link_word *word, struct gp_error *err)
{
    char text[LINK_QUERY_MAX], *rest = text, *part;
    int rc = 0;
    if ((size_t)snprintf(text, sizeof text, "%s", query) >= sizeof text) {
        gp_error_set(err, "what is behind the ? of the address is too long: a key has 64 digits");
        return -EINVAL;
    }
    while (rc == 0 && (part = strsep(&rest, "&")) != NULL)
        rc = part_take(part, listening, curve, word, err);
    explicit_bzero(text, sizeof text);
    return rc;
}

int link_query_parse(const char *url, bool listening, char endpoint[2 * LINK_ENDPOINT_MAX],
                     struct link_curve *out, struct link_word *word, struct gp_error *err)
{
    *out = (struct link_curve){.role = LINK_CLEAR};
    if (word)
        *word = (struct link_word){.given = false};
    bool tcp = strncmp(url, "tcp://", 6) == 0;
    /* the names of files may have a ? */
    const char *query = tcp ? strchr(url, '?') : strstr(url, "?" KEY);
    size_t length = query ? (size_t)(query - url) : strlen(url);
    if (length >= 2 * LINK_ENDPOINT_MAX) {
        gp_error_set(err, "'%.60s...' is too long for an address", url);
        return -EINVAL;
    }
    memcpy(endpoint, url, length);
    endpoint[length] = '\0';
    if (!query)
        return 0;
    if (!tcp) {
        gp_error_set(err, "'%.100s' cannot have a key: only tcp:// is encrypted", endpoint);
        return -EINVAL;
    }
    return query_take(query + 1, listening, out, word, err);
}

/* --- sockets --------------------------------------------------------------- */

int link_curve_options(void *socket, const struct link_curve *curve)
{
    int yes = 1;
    if (curve->role == LINK_CLEAR)
        return 0;
    if (curve->role == LINK_CURVE_SERVER) {
        if (zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &yes, sizeof yes) != 0)
            return link_errno();
    } else if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, curve->server, LINK_KEY_BYTES) != 0 ||
               zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, own.public, LINK_KEY_BYTES) != 0) {
        return link_errno();
    }
    return zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, own.secret, LINK_KEY_BYTES) != 0
               ? link_errno()
               : 0;
}

/* --- finding out why -------------------------------------------------------- */

/* ZMTP 3: signature (10), version (2), mechanism (20), as-server (1), filler (31). A
 * listener says all of its own when it has the first 11 bytes of ours. */
#define GREETING_BYTES 64
#define GREETING_MECHANISM 12

enum mechanism link_mechanism_read(const unsigned char *greeting, size_t size)
{
    if (size < GREETING_BYTES || greeting[0] != 0xff || !(greeting[9] & 1) || greeting[10] < 3)
        return LINK_SPEAKS_OTHER;
    const char *name = (const char *)greeting + GREETING_MECHANISM;
    if (memcmp(name, "NULL\0", 5) == 0)
        return LINK_SPEAKS_CLEAR;
    return memcmp(name, "CURVE\0", 6) == 0 ? LINK_SPEAKS_CURVE : LINK_SPEAKS_OTHER;
}

static enum mechanism mechanism_ask(int fd, int64_t deadline)
{
    static const unsigned char hello[12] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0};
    unsigned char greeting[GREETING_BYTES];
    size_t got = 0;
    if (send(fd, hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        return LINK_SPEAKS_NOTHING;
    while (got < sizeof greeting) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        /* who has begun to greet may be busy: that is no greeting of another kind */
        if (poll(&p, 1, gp_deadline_left_ms(deadline, 1000)) <= 0)
            return LINK_SPEAKS_NOTHING;
        ssize_t n = recv(fd, greeting + got, sizeof greeting - got, 0);
        if (n < 0 && got == 0)
            return LINK_SPEAKS_NOTHING;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    return link_mechanism_read(greeting, got);
}

enum link_trouble link_curve_trouble(const struct link_curve *curve, const char *endpoint,
                                     int timeout_ms)
{
    int64_t deadline = gp_deadline_us((int64_t)timeout_ms * 1000);
    int fd = -1;
    if (strncmp(endpoint, "tcp://", 6) != 0)
        return LINK_TROUBLE_NONE; /* at a path there are no keys: it may be busy */
    if (gp_dial(endpoint, timeout_ms, &fd) != 0)
        return LINK_TROUBLE_SILENT;
    enum mechanism speaks = mechanism_ask(fd, deadline);
    close(fd);
    if (speaks == LINK_SPEAKS_OTHER)
        return LINK_TROUBLE_OTHER;
    if (speaks == LINK_SPEAKS_NOTHING)
        return LINK_TROUBLE_SILENT;
    if (curve->role == LINK_CLEAR)
        return speaks == LINK_SPEAKS_CURVE ? LINK_TROUBLE_NO_KEY : LINK_TROUBLE_NONE;
    return speaks == LINK_SPEAKS_CURVE ? LINK_TROUBLE_WRONG_KEY : LINK_TROUBLE_KEY_UNWANTED;
}

int link_trouble_explain(enum link_trouble trouble, const char *who, const char *endpoint,
                         struct gp_error *err)
{
    switch (trouble) {
    case LINK_TROUBLE_NO_KEY:
        gp_error_set(err,
                     "the %s at %.100s encrypts, and the address has no key: write "
                     "tcp://HOST:PORT?key=KEY; `gpupool-server --show-key` prints it there",
                     who, endpoint);
        return -EACCES;
    case LINK_TROUBLE_KEY_UNWANTED:
        gp_error_set(err,
                     "the %s at %.100s does not encrypt, and the address has a key: start "
                     "the server with --curve, or take ?key=... away",
                     who, endpoint);
        return -EACCES;
    case LINK_TROUBLE_WRONG_KEY:
        gp_error_set(err,
                     "the %s at %.100s does not have this key; `gpupool-server --show-key` "
                     "prints the right one there",
                     who, endpoint);
        return -EACCES;
    default:
        return -EPROTO;
    }
}
