/*
 * What is said to somebody who listens with our own TCP, by who knows the word and by who
 * does not, and what is said to who connects. Nobody is let in who could not have known the
 * word, and nothing stays open.
 *
 * The first byte says who is spoken to and after what beginning, and now and then that lanes are
 * wanted; the rest is said. Connections are pairs of sockets: who listens gets one as if it had
 * come to its port, at which nobody else is.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "left_open.h"
#include "transport/hex.h"
#include "transport/tcp_channel.h"

#define WORD "00112233445566778899aabbccddeeff"
/* Of so many inputs one has lanes: these are threads. */
#define LANES_OF 32
#define FRAMES_MAX 64

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=4"; /* what is kept costs more than what is looked at */
}

enum to {
    TO_PLAIN_STRANGER,
    TO_TLS_STRANGER,
    TO_PLAIN,
    TO_TLS,
    TO_CHANNEL,
    TO_CLIENT,
    TO_CLIENT_TLS,
    TOS
};

static unsigned char word[DOOR_WORD_BYTES];
static char lanes[] = "GPUPOOL_LANES=1";
static int port = -1;  /* at which everybody listens */
static int comes = -1; /* who comes there next */

static bool has_lanes(void)
{
    return lanes[sizeof lanes - 2] > '1';
}

int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *length, int flags);
int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *length, int flags)
{
    const struct sockaddr_in here = {.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int who = comes;
    (void)fd, (void)flags;
    comes = -1;
    if (who < 0)
        errno = EAGAIN;
    else
        memcpy(from, &here, *length = sizeof here);
    return who;
}

static _Alignas(64) unsigned char frames[FRAMES_ROOM + 64];
static bool frames_used;

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    if (size < FRAMES_ROOM || size > sizeof frames || frames_used)
        return __real_aligned_alloc(alignment, size);
    frames_used = true;
    return frames;
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    if (memory == frames)
        frames_used = false;
    else
        __real_free(memory);
}

int __real_tcp_keeper_start(struct gp_channel *ch);
int __wrap_tcp_keeper_start(struct gp_channel *ch);
int __wrap_tcp_keeper_start(struct gp_channel *ch)
{
    return has_lanes() ? __real_tcp_keeper_start(ch) : 0;
}

void __real_tcp_keeper_stop(struct gp_channel *ch);
void __wrap_tcp_keeper_stop(struct gp_channel *ch);
void __wrap_tcp_keeper_stop(struct gp_channel *ch)
{
    if (has_lanes())
        __real_tcp_keeper_stop(ch);
}

static void say(int fd, const void *bytes, size_t size)
{
    (void)!send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The channel that was let in reads on until it has heard enough. */
static void channel_hear(struct gp_channel *ch)
{
    const struct gp_transport *tp = &gp_transport_tcp;
    const void *message;
    size_t size;
    for (int i = 0; i < FRAMES_MAX && tp->recv(ch, 0, &message, &size) == 0; i++) {
        if (size < 16 || size > GP_MESSAGE_MAX)
            abort();
        tp->release(ch);
    }
    tp->close(ch);
}

static int dial(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        abort();
    comes = ends[1];
    return ends[0];
}

static int port_open(void)
{
    const struct sockaddr_in here = {.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const void *)&here, sizeof here) != 0 || listen(fd, 1) != 0)
        abort();
    return fd;
}

/* At a port of its own where lanes are wanted: who ends those shuts it. */
static struct gp_listener *listens(bool tls)
{
    const struct gp_transport *tp = &gp_transport_tcp;
    struct gp_listener *l = NULL;
    char url[64];
    snprintf(url, sizeof url, "%s://127.0.0.1:*?fd=%d", tls ? "tls" : "plain",
             has_lanes() ? port_open() : dup(port));
    if (tp->listen(url, &l, NULL) != 0)
        abort();
    if (door_word_read(strchr(tp->listener_url(l), '=') + 1, word, NULL) != 0)
        abort();
    return l;
}

static void listener_hear(enum to to, const uint8_t *data, size_t size)
{
    const struct gp_transport *tp = &gp_transport_tcp;
    struct gp_listener *l = listens(to == TO_TLS || to == TO_TLS_STRANGER);
    struct gp_channel *ch = NULL;
    struct door_knocked k = {.fd = dial()};
    unsigned char body[DOOR_BODY_BYTES], proof[DOOR_PROOF_BYTES];
    if ((to == TO_PLAIN || to == TO_TLS || to == TO_CHANNEL) &&
        door_knock_at(k.fd, word, NULL, &k) != 0)
        abort();
    if (to == TO_CHANNEL) {
        (void)tp->accept(l, 0, &ch, NULL);
        if (door_hear_answer(&k, word, gp_deadline_us(1000000), sizeof body, body) != 0)
            abort();
        door_confirm(&k, word, body, proof);
        say(k.fd, proof, sizeof proof);
    }
    say(k.fd, data, size);
    shutdown(k.fd, SHUT_WR);
    for (int i = 0; i < 3 && !ch; i++)
        if (tp->accept(l, 0, &ch, NULL) == -ENOTSUP)
            abort();
    if (ch && to != TO_CHANNEL)
        abort(); /* it cannot have known what to say */
    if (ch)
        channel_hear(ch);
    tp->listener_close(l);
    close(k.fd);
}

static void client_hear(bool tls, const uint8_t *data, size_t size)
{
    unsigned char body[DOOR_BODY_BYTES], key[DOOR_PROOF_BYTES];
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        abort();
    say(ends[1], data, size);
    shutdown(ends[1], SHUT_WR);
    if (tls) {
        struct tcp_tls *t = NULL;
        door_key(word, key);
        if (tcp_tls_new(key, false, &t) != 0 || tcp_tls_pump(t, ends[0]) == 0)
            abort();
        tcp_tls_free(t);
    } else {
        struct door_knocked k = {.fd = ends[0]};
        if (door_hear_answer(&k, word, gp_deadline_us(1000000), sizeof body, body) == 0)
            abort();
    }
    close(ends[0]);
    close(ends[1]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    port = port_open();
    return putenv(lanes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (gp_hex_read(WORD, word, sizeof word) != 0)
        abort();
    int before = lowest_free();
    enum to to = data[0] % TOS;
    lanes[sizeof lanes - 2] = data[0] / TOS % LANES_OF == 1 ? '4' : '1';
    if (to == TO_CLIENT || to == TO_CLIENT_TLS)
        client_hear(to == TO_CLIENT_TLS, data + 1, size - 1);
    else
        listener_hear(to, data + 1, size - 1);
    if (left_open(before) || frames_used)
        abort(); /* something of it is there */
    return 0;
}
