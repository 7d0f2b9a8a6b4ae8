/*
 * The tcp transport, as its own files see it.
 *
 *   tcp.c          a channel: sending, receiving, the end; the table
 *   tcp_socket.c   its socket: options, waiting, whether it is still ours, silence
 *   tcp_keeper.c   the thread that sends what was gathered in time
 *   tcp_frames.c   messages in what a stream brings
 *   tcp_tls.c      TLS 1.3 over a socket
 *   tcp_listen.c   listening and accepting, behind the door (door.h)
 *   tcp_connect.c  addresses, and connecting
 *
 * A channel is one TCP connection. What is sent goes from the calling thread into the
 * socket, and what is received is read by the thread that asks for it: no other thread has
 * part in a round trip, and there is no descriptor but the connection's. plain:// shows who
 * is there and no more (HMAC over both sides' nonces); tls:// encrypts, with the word of the
 * address as the key that both have.
 */
#ifndef GP_TCP_CHANNEL_H
#define GP_TCP_CHANNEL_H

#include <semaphore.h>

#include "transport/dial.h"
#include "transport/door.h"
#include "transport/silence.h"
#include "transport/support.h"
#include "transport/tcp_frames.h"
#include "transport/tcp_tls.h"

/* Messages that wait to be sent together: bytes, and for how long. */
#define GATHER_BYTES ((size_t)64 << 10)
#define GATHER_NS 100000

#define TCP_TLS_SCHEME "tls://"
#define TCP_PLAIN_SCHEME "plain://"

/* A connected socket that may lie in somebody else's process. */
struct tcp_socket {
    int fd;
    struct gp_fd_mark mark; /* on the connecting side */
    int64_t silence_ms;
    _Atomic int64_t looked_ns; /* when the peer was last looked at */
};

struct gp_channel {
    struct tcp_socket socket;
    unsigned generation;
    struct tcp_tls *tls; /* NULL: plain */

    /* Sending: under the turnstile. */
    struct gp_turnstile sending;
    struct gp_relief relief;
    unsigned char *gather; /* GATHER_BYTES */
    size_t gather_at, gather_used;
    _Atomic bool waiting; /* something is gathered or sealed, and not sent */

    /* Receiving: one thread at a time. */
    struct tcp_frames frames;
    struct gp_spin spin;
    bool sealed_left; /* TLS may have more of what has come */
    bool ended;       /* nothing more comes */

    /* 0, or why the channel is dead: -EPIPE, -EPROTO, -EBADF. What came before may still be
     * received after -EPIPE. Set once; it carries nothing but itself. */
    _Atomic int dead;

    struct {
        pthread_t thread;
        sem_t wake;
        _Atomic bool sleeps, stop;
    } keeper;
};

/* tcp_socket.c. Not 0: -EPIPE, -EBADF the program has closed it. */
void tcp_socket_init(struct tcp_socket *s, int fd, const struct gp_silence *silence, bool accepted);
bool tcp_socket_is_ours(const struct tcp_socket *s);
/* Send without waiting: bytes (> 0), -EAGAIN, -EPIPE, -EBADF. */
ssize_t tcp_socket_send(struct tcp_socket *s, const struct iovec *iov, int count);
/* Likewise; -EPIPE also at its end. */
ssize_t tcp_socket_recv(struct tcp_socket *s, void *to, size_t size);
/* Whether to try, from a thread that asks again and again: cheaper than trying for who must see
 * each time whether the descriptor is still ours. */
bool tcp_socket_may_recv(const struct tcp_socket *s);
/* Sleep until `events` (of poll) or the end, at most until `deadline` and never for long. */
int tcp_socket_wait(struct tcp_socket *s, short events, int64_t deadline);
/* Whether the peer is known to be gone, looked at now and then only: 0, -EPIPE, -EBADF. */
int tcp_socket_glance(struct tcp_socket *s);
/* Wait until the peer's kernel has what was sent; what comes meanwhile is let go of if `drops`.
 * From then on the end of the socket is one in order. */
void tcp_socket_settle(struct tcp_socket *s, bool drops, int64_t deadline);
/* Say that no more comes, and settle. */
void tcp_socket_finish(struct tcp_socket *s, int64_t deadline);

/* tcp.c */
__attribute__((visibility("default"))) extern const struct gp_transport gp_transport_tcp;
/* Takes the socket and `tls` over on success. */
int tcp_channel_new(int fd, struct tcp_tls *tls, const struct gp_silence *silence, bool accepted,
                    struct gp_channel **out);
/* Send what is gathered: 0, -EAGAIN somebody is sending or the socket is full, -EPIPE, -EBADF. */
int tcp_flush_try(struct gp_channel *ch);

/* tcp_keeper.c */
int tcp_keeper_start(struct gp_channel *ch);
void tcp_keeper_stop(struct gp_channel *ch);
/* Something was gathered: have it sent in time. */
void tcp_keeper_nudge(struct gp_channel *ch);

/* tcp_connect.c */
struct tcp_address {
    char endpoint[GP_ENDPOINT_MAX]; /* SCHEME://HOST:PORT */
    bool encrypts;
    bool has_word;
    unsigned char word[DOOR_WORD_BYTES];
    int handed; /* a socket that listens there already; -1: none */
};
#define TCP_URL_MAX (GP_ENDPOINT_MAX + 48)
/* "tls://HOST:PORT?door=WORD" or "plain://…". `listening` allows "*" for a port, a word to be
 * left out, and "?fd=N" in its place. -EINVAL. */
int tcp_address_parse(const char *url, bool listening, struct tcp_address *out,
                      struct gp_error *err);
int tcp_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err);

/* tcp_listen.c */
int tcp_listen(const char *url, struct gp_listener **out, struct gp_error *err);
const char *tcp_listener_url(const struct gp_listener *l);
int tcp_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
               struct gp_error *err);
void tcp_listener_close(struct gp_listener *l);

#endif
