#include "transport/zmq_door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/place.h"
#include "transport/zmq_link.h"
#include "wire/hmac.h"

#define DOOR_MAGIC "gpupool-door/1"
/* How long somebody may be connected without a knock: one's first bytes are one. */
#define VISIT_NS 2000000000
/* Of one address at once, while there is no room for others. */
#define VISITORS_OF_ONE 8
#define ACCEPT_BURST 64
/* Who connects while nobody looks waits in the kernel. */
#define BACKLOG 1024

struct knock {
    char magic[16];
    unsigned char nonce[DOOR_NONCE_BYTES];
    unsigned char proof[32];
};

struct answer {
    char magic[16];
    unsigned char ports[2][2]; /* high byte first */
    unsigned char zero[12];
    unsigned char proof[32];
};

struct visitor {
    int fd;
    int64_t since; /* ns */
    struct sockaddr_storage from;
    size_t got;
    struct knock knock;
};

struct door {
    int fd;
    unsigned char word[DOOR_WORD_BYTES];
    unsigned count;
    struct visitor visitors[DOOR_VISITORS]; /* oldest first */
    struct visitor guest;                   /* fd -1: none */
};

/* --- proofs --------------------------------------------------------------- */

enum proof_of { PROOF_KNOCK, PROOF_ANSWER, PROOF_GREETING };

/* They differ, so that none can be sent back as another. */
static void prove(const unsigned char *word, enum proof_of what, const unsigned char *nonce,
                  const void *ports, unsigned char proof[32])
{
    char label[24 + DOOR_NONCE_BYTES] = "";
    snprintf(label, 24, "gpupool door %s",
             what == PROOF_KNOCK    ? "knock"
             : what == PROOF_ANSWER ? "answer"
                                    : "greeting");
    memcpy(label + 24, nonce, DOOR_NONCE_BYTES);
    gp_hmac(word, DOOR_WORD_BYTES, label, sizeof label, ports, ports ? 4 : 0, proof);
}

static bool knock_right(const struct door *d, const struct knock *k)
{
    unsigned char proof[32];
    prove(d->word, PROOF_KNOCK, k->nonce, NULL, proof);
    return memcmp(k->magic, DOOR_MAGIC, sizeof DOOR_MAGIC) == 0 &&
           gp_bytes_same(proof, k->proof, sizeof proof);
}

/* --- addresses ------------------------------------------------------------ */

/* As ZeroMQ writes it. A dual socket's view of an IPv4 address is that address. */
static void host_show(const struct sockaddr_storage *a, char out[DOOR_HOST_MAX])
{
    const struct sockaddr_in6 *six = (const void *)a;
    const struct sockaddr_in *four = (const void *)a;
    char text[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET) {
        inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
    } else if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        inet_ntop(AF_INET, six->sin6_addr.s6_addr + 12, text, sizeof text);
    } else {
        inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
        char scope[16] = "";
        if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
            snprintf(scope, sizeof scope, "%%%u", (unsigned)six->sin6_scope_id);
        snprintf(out, DOOR_HOST_MAX, "[%s%s]", text, scope);
        return;
    }
    snprintf(out, DOOR_HOST_MAX, "%s", text);
}

static int endpoint_find(const char *endpoint, struct addrinfo **found)
{
    char host[LINK_ENDPOINT_MAX];
    snprintf(host, sizeof host, "%s", endpoint + strlen("tcp://"));
    char *colon = strrchr(host, ':'), *name = host;
    if (!colon)
        return -EINVAL;
    *colon = '\0';
    if (*name == '[' && colon > host && colon[-1] == ']') {
        colon[-1] = '\0';
        name++;
    }
    const char *port = strcmp(colon + 1, "*") == 0 ? "0" : colon + 1;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    if (strcmp(name, "*") == 0)
        hints.ai_family = AF_INET;
    return getaddrinfo(strcmp(name, "*") == 0 ? NULL : name, port, &hints, found) == 0
               ? 0
               : -EADDRNOTAVAIL;
}

/* --- opening -------------------------------------------------------------- */

static int bind_at(const struct addrinfo *a)
{
    int one = 1, zero = 0;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int rc = -errno;
    close(fd);
    return rc;
}

static void endpoint_show(int fd, char *endpoint, size_t size)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof a;
    char host[DOOR_HOST_MAX];
    getsockname(fd, (void *)&a, &length);
    host_show(&a, host);
    in_port_t port = a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                            : ((struct sockaddr_in6 *)&a)->sin6_port;
    snprintf(endpoint, size, "tcp://%s:%u", host, (unsigned)ntohs(port));
}

int door_open(char *endpoint, size_t size, const unsigned char *word, struct door **out)
{
    struct addrinfo *found = NULL;
    int rc = endpoint_find(endpoint, &found);
    if (rc)
        return rc;
    struct door *d = calloc(1, sizeof *d);
    rc = d ? bind_at(found) : -ENOMEM;
    freeaddrinfo(found);
    if (rc < 0) {
        free(d);
        return rc;
    }
    d->fd = rc;
    d->guest.fd = -1;
    if (word)
        memcpy(d->word, word, sizeof d->word);
    else if (getrandom(d->word, sizeof d->word, 0) != (ssize_t)sizeof d->word) {
        door_close(d);
        return -EIO;
    }
    endpoint_show(d->fd, endpoint, size);
    *out = d;
    return 0;
}

void door_close(struct door *d)
{
    if (!d)
        return;
    for (unsigned i = 0; i < d->count; i++)
        close(d->visitors[i].fd);
    door_guest_drop(d);
    close(d->fd);
    free(d);
}

const unsigned char *door_word(const struct door *d)
{
    return d->word;
}

/* --- visitors ------------------------------------------------------------- */

static void visitor_remove(struct door *d, unsigned i)
{
    d->count--;
    memmove(&d->visitors[i], &d->visitors[i + 1], (d->count - i) * sizeof d->visitors[0]);
}

static void visitor_drop(struct door *d, unsigned i)
{
    close(d->visitors[i].fd);
    visitor_remove(d, i);
}

/* Who makes room for somebody from `from`: one of the same place, if many of it are here,
 * so that a crowd from one place keeps out only itself; else who has been here longest. */
static unsigned visitor_weakest(const struct door *d, const struct sockaddr_storage *from)
{
    unsigned same = 0, first = 0;
    for (unsigned i = d->count; i-- > 0;)
        if (gp_same_place(&d->visitors[i].from, from)) {
            same++;
            first = i;
        }
    return same >= VISITORS_OF_ONE ? first : 0;
}

static void visitors_accept(struct door *d)
{
    for (int i = 0; i < ACCEPT_BURST; i++) {
        struct sockaddr_storage from = {0};
        socklen_t length = sizeof from;
        int fd = accept4(d->fd, (void *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && d->count > 0) {
            visitor_drop(d, 0);
            continue;
        }
        if (fd < 0)
            return;
        if (d->count == DOOR_VISITORS)
            visitor_drop(d, visitor_weakest(d, &from));
        d->visitors[d->count++] = (struct visitor){.fd = fd, .since = gp_clock_ns(), .from = from};
    }
}

/* -EAGAIN it may still say something, -EPIPE it has gone, 0 it has said all. */
static int visitor_hear(struct visitor *v)
{
    ssize_t n = recv(v->fd, (char *)&v->knock + v->got, sizeof v->knock - v->got, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? -EAGAIN : -EPIPE;
    if (n == 0)
        return -EPIPE;
    v->got += (size_t)n;
    return v->got == sizeof v->knock ? 0 : -EAGAIN;
}

static bool guest_left(const struct door *d)
{
    char byte;
    ssize_t n = recv(d->guest.fd, &byte, sizeof byte, 0);
    return n >= 0 || (errno != EAGAIN && errno != EINTR);
}

static void visitors_hear(struct door *d)
{
    int64_t now = gp_clock_ns();
    for (unsigned i = 0; i < d->count;) {
        struct visitor *v = &d->visitors[i];
        int rc = visitor_hear(v);
        if (rc == 0 && knock_right(d, &v->knock) && d->guest.fd < 0) {
            d->guest = *v;
            d->guest.since = now;
            visitor_remove(d, i);
        } else if (rc != -EAGAIN || now - v->since > VISIT_NS) {
            visitor_drop(d, i);
        } else {
            i++;
        }
    }
}

void door_serve(struct door *d)
{
    if (d->guest.fd >= 0 && guest_left(d)) {
        door_guest_drop(d);
        return; /* what was its own is closed before another comes */
    }
    visitors_hear(d);
    visitors_accept(d);
    visitors_hear(d);
}

int door_items(const struct door *d, zmq_pollitem_t *items)
{
    int count = 0;
    items[count++] = (zmq_pollitem_t){.fd = d->fd, .events = ZMQ_POLLIN};
    if (d->guest.fd >= 0)
        items[count++] = (zmq_pollitem_t){.fd = d->guest.fd, .events = ZMQ_POLLIN};
    for (unsigned i = 0; i < d->count; i++)
        items[count++] = (zmq_pollitem_t){.fd = d->visitors[i].fd, .events = ZMQ_POLLIN};
    return count;
}

/* --- the guest ------------------------------------------------------------ */

bool door_has_guest(const struct door *d)
{
    return d->guest.fd >= 0;
}

int64_t door_guest_age(const struct door *d)
{
    return gp_clock_ns() - d->guest.since;
}

static void greeting_nonce(const unsigned char *word, const unsigned char *nonce,
                           unsigned char out[DOOR_NONCE_BYTES])
{
    unsigned char proof[32];
    prove(word, PROOF_GREETING, nonce, NULL, proof);
    memcpy(out, proof, DOOR_NONCE_BYTES);
}

void door_guest_names(const struct door *d, char theirs[DOOR_HOST_MAX], char ours[DOOR_HOST_MAX],
                      unsigned char nonce[DOOR_NONCE_BYTES])
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof a;
    host_show(&d->guest.from, theirs);
    getsockname(d->guest.fd, (void *)&a, &length);
    host_show(&a, ours);
    greeting_nonce(d->word, d->guest.knock.nonce, nonce);
}

int door_answer(struct door *d, const uint16_t ports[2])
{
    struct answer a = {.magic = DOOR_MAGIC};
    for (int i = 0; i < 2; i++) {
        a.ports[i][0] = (unsigned char)(ports[i] >> 8);
        a.ports[i][1] = (unsigned char)ports[i];
    }
    prove(d->word, PROOF_ANSWER, d->guest.knock.nonce, a.ports, a.proof);
    /* It is the first that is sent there, so there is room for it. */
    return send(d->guest.fd, &a, sizeof a, MSG_NOSIGNAL) == (ssize_t)sizeof a ? 0 : -EPIPE;
}

void door_guest_drop(struct door *d)
{
    if (d->guest.fd >= 0)
        close(d->guest.fd);
    d->guest.fd = -1;
}

/* --- the other side ------------------------------------------------------- */

static int answer_wait(int fd, int64_t deadline, struct answer *a)
{
    size_t got = 0;
    while (got < sizeof *a) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int left = gp_deadline_left_ms(deadline, 1000);
        if (left == 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, left) <= 0)
            continue;
        ssize_t n = recv(fd, (char *)a + got, sizeof *a - got, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return got ? -EPROTO : -EAGAIN;
        if (n > 0)
            got += (size_t)n;
        size_t known = got < sizeof DOOR_MAGIC ? got : sizeof DOOR_MAGIC;
        if (memcmp(a->magic, DOOR_MAGIC, known) != 0)
            return -EPROTO;
    }
    return 0;
}

static int answer_take(const unsigned char *word, const unsigned char *nonce,
                       const struct answer *a, struct door_opened *out)
{
    unsigned char proof[32];
    prove(word, PROOF_ANSWER, nonce, a->ports, proof);
    if (!gp_bytes_same(proof, a->proof, sizeof proof))
        return -EPROTO;
    for (int i = 0; i < 2; i++)
        out->ports[i] = (uint16_t)(a->ports[i][0] << 8 | a->ports[i][1]);
    return out->ports[0] && out->ports[1] ? 0 : -EPROTO;
}

int door_knock(const char *endpoint, const unsigned char *word, int64_t deadline, bool *connected,
               struct door_opened *out)
{
    struct knock k = {.magic = DOOR_MAGIC};
    struct answer a;
    struct sockaddr_storage there = {0};
    socklen_t length = sizeof there;
    int left = gp_deadline_left_ms(deadline, 1 << 30), fd = -1;
    if (getrandom(k.nonce, sizeof k.nonce, 0) != (ssize_t)sizeof k.nonce)
        return -EIO;
    prove(word, PROOF_KNOCK, k.nonce, NULL, k.proof);
    int rc = link_dial(endpoint, left, &fd);
    if (rc)
        return rc;
    *connected = true;
    if (send(fd, &k, sizeof k, MSG_NOSIGNAL) != (ssize_t)sizeof k)
        rc = -EAGAIN;
    if (rc == 0)
        rc = answer_wait(fd, deadline, &a);
    if (rc == 0)
        rc = answer_take(word, k.nonce, &a, out);
    if (rc == 0 && getpeername(fd, (void *)&there, &length) != 0)
        rc = -EAGAIN;
    if (rc) {
        close(fd);
        return rc;
    }
    host_show(&there, out->host);
    greeting_nonce(word, k.nonce, out->nonce);
    out->fd = fd;
    return 0;
}
