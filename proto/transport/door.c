#include "transport/door_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/dial.h"
#include "transport/hex.h"
#include "transport/place.h"
#include "transport/support.h"
#include "wire/hmac.h"

/* How long somebody may be connected without a knock: one's first bytes are one. */
#define VISIT_NS 2000000000
/* Of one address at once, while there is no room for others. */
#define VISITORS_OF_ONE 8
#define ACCEPT_BURST 64
/* Without descriptors or memory for it the kernel tells at once again of who waits there. */
#define DEAF_NS 100000000
/* Who connects while nobody looks waits in the kernel. */
#define BACKLOG 1024

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
    int64_t deaf_until;                     /* ns */
    struct visitor guest;                   /* fd -1: none */
    bool guest_lent;                        /* others speak to it */
    bool queues;                            /* who knocks while there is a guest waits */
};

/* --- visitors' knocks --------------------------------------------------------- */

static bool knock_right(const struct door *d, const struct knock *k)
{
    unsigned char proof[DOOR_PROOF_BYTES];
    door_prove(d->word, PROOF_KNOCK, k->nonce, NULL, 0, proof);
    return memcmp(k->magic, DOOR_MAGIC, sizeof DOOR_MAGIC) == 0 &&
           gp_bytes_same(proof, k->proof, sizeof proof);
}

/* --- addresses ------------------------------------------------------------ */

/* As ZeroMQ writes it. A dual socket's view of an IPv4 address is that address. */
void door_host_show(const struct sockaddr_storage *a, char out[DOOR_HOST_MAX])
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
    int scheme = (int)strcspn(endpoint, ":");
    char name[16];
    snprintf(name, sizeof name, "%.*s", scheme, endpoint);
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof a;
    char host[DOOR_HOST_MAX];
    getsockname(fd, (void *)&a, &length);
    door_host_show(&a, host);
    in_port_t port = a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                            : ((struct sockaddr_in6 *)&a)->sin6_port;
    snprintf(endpoint, size, "%s://%s:%u", name, host, (unsigned)ntohs(port));
}

/* A socket that listens already, for this process alone from here on. */
static int handed_check(int fd)
{
    int listens = 0, family = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0)
        return -errno;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0)
        return -errno;
    if (!listens || (family != AF_INET && family != AF_INET6))
        return -EINVAL;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
        return -errno;
    return fd;
}

static int bind_port(void *ctx, uint16_t port)
{
    struct addrinfo *a = ctx;
    if (a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)a->ai_addr)->sin_port = htons(port);
    return bind_at(a);
}

static int listen_at(const char *endpoint)
{
    struct addrinfo *found = NULL;
    struct gp_ports ports;
    int rc = gp_ports_of(endpoint, &ports);
    if (rc == 0)
        rc = gp_endpoint_find(endpoint, true, &found);
    if (rc)
        return rc;
    rc = gp_ports_try(&ports, bind_port, found);
    freeaddrinfo(found);
    return rc;
}

int door_open(int handed, char *endpoint, size_t size, const unsigned char *word, struct door **out)
{
    struct door *d = calloc(1, sizeof *d);
    int rc = !d ? -ENOMEM : handed >= 0 ? handed_check(handed) : listen_at(endpoint);
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
    explicit_bzero(d->word, sizeof d->word);
    free(d);
}

const unsigned char *door_word(const struct door *d)
{
    return d->word;
}

void door_queue(struct door *d)
{
    d->queues = true;
}

void door_reword(struct door *d, const unsigned char word[DOOR_WORD_BYTES])
{
    memcpy(d->word, word, sizeof d->word);
}

void door_hush(struct door *d)
{
    shutdown(d->fd, SHUT_RDWR);
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

static bool is_deaf(const struct door *d)
{
    return gp_clock_ns() < d->deaf_until;
}

static void visitors_accept(struct door *d)
{
    for (int i = 0; i < ACCEPT_BURST && !is_deaf(d); i++) {
        struct sockaddr_storage from = {0};
        socklen_t length = sizeof from;
        int fd = accept4(d->fd, (void *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && d->count > 0) {
            visitor_drop(d, 0);
            continue;
        }
        if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            return;
        if (fd < 0) {
            d->deaf_until = gp_clock_ns() + DEAF_NS;
            return;
        }
        if (d->count == DOOR_VISITORS)
            visitor_drop(d, visitor_weakest(d, &from));
        d->visitors[d->count++] = (struct visitor){.fd = fd, .since = gp_clock_ns(), .from = from};
    }
}

/* -EAGAIN it may still say something, -EPIPE it has gone, 0 it has said all. */
static int visitor_hear(struct visitor *v)
{
    if (v->got == sizeof v->knock)
        return 0;
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
        if (rc == 0 && d->queues && d->guest.fd >= 0)
            rc = -EAGAIN; /* the word may be another when it is his turn */
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
    if (d->guest.fd >= 0 && !d->guest_lent && guest_left(d)) {
        door_guest_drop(d);
        return; /* what was its own is closed before another comes */
    }
    visitors_hear(d);
    visitors_accept(d);
    visitors_hear(d);
}

/* Who has said all is not waited for. */
static struct pollfd visitor_item(const struct visitor *v)
{
    short events = v->got == sizeof v->knock ? 0 : POLLIN;
    return (struct pollfd){.fd = v->fd, .events = events};
}

int door_items(const struct door *d, struct pollfd *items)
{
    int count = 0;
    items[count++] = (struct pollfd){.fd = d->fd, .events = is_deaf(d) ? 0 : POLLIN};
    if (d->guest.fd >= 0)
        items[count++] = (struct pollfd){.fd = d->guest.fd, .events = POLLIN};
    for (unsigned i = 0; i < d->count; i++)
        items[count++] = visitor_item(&d->visitors[i]);
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

const unsigned char *door_guest_nonce(const struct door *d)
{
    return d->guest.knock.nonce;
}

void door_guest_names(const struct door *d, char theirs[DOOR_HOST_MAX], char ours[DOOR_HOST_MAX],
                      unsigned char nonce[DOOR_NONCE_BYTES])
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof a;
    door_host_show(&d->guest.from, theirs);
    getsockname(d->guest.fd, (void *)&a, &length);
    door_host_show(&a, ours);
    door_nonce_of_greeting(d->word, d->guest.knock.nonce, nonce);
}

int door_answer(struct door *d, const unsigned char *body, size_t size)
{
    struct answer a = {.magic = DOOR_MAGIC};
    memcpy(a.body, body, size);
    door_prove(d->word, PROOF_ANSWER, d->guest.knock.nonce, a.body, size, a.proof);
    /* It is the first that is sent there, so there is room for it. */
    return send(d->guest.fd, &a, sizeof a, MSG_NOSIGNAL) == (ssize_t)sizeof a ? 0 : -EPIPE;
}

int door_guest_lend(struct door *d)
{
    d->guest_lent = true;
    return d->guest.fd;
}

void door_guest_release(struct door *d)
{
    d->guest.fd = -1;
    d->guest_lent = false;
}

void door_guest_expects(const struct door *d, const unsigned char body[DOOR_BODY_BYTES],
                        unsigned char proof[DOOR_PROOF_BYTES])
{
    door_prove(d->word, PROOF_CONFIRM, d->guest.knock.nonce, body, DOOR_BODY_BYTES, proof);
}

void door_guest_drop(struct door *d)
{
    if (d->guest.fd >= 0)
        close(d->guest.fd);
    door_guest_release(d);
}
