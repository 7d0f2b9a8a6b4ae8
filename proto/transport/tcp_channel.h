/*
 * The tcp transport, as its own files see it.
 *
 *   tcp.c          a channel: sending, the end; the table
 *   tcp_receive.c  receiving
 *   tcp_socket.c   its socket: options, waiting, whether it is still ours, silence
 *   tcp_keeper.c   the thread that sends what was gathered in time
 *   tcp_frames.c   messages in what a stream brings
 *   tcp_tls.c      TLS 1.3 over a socket: the handshake, and buffers
 *   tcp_seal.c     its records behind that
 *   tcp_guest.c    letting in who has knocked
 *   tcp_listen.c   listening and accepting, behind the door (door.h)
 *   tcp_connect.c  addresses, and connecting
 *   tcp_lanes.h    further connections, for long messages
 *
 * A channel is one TCP connection, beside which lanes may carry what is long. What is sent goes from the calling thread into the
 * socket, and what is received is read by the thread that asks for it: no other thread has
 * part in a round trip. plain:// shows who
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
#include "transport/tcp_lanes.h"
#include "transport/tcp_socket.h"
#include "transport/tcp_tls.h"

/* Messages that wait to be sent together: bytes, and for how long. */
#define GATHER_BYTES ((size_t)64 << 10)
#define GATHER_NS 100000

#define TCP_TLS_SCHEME "tls://"
#define TCP_PLAIN_SCHEME "plain://"

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
    size_t noted;     /* a message of so many bytes is due on the lanes; 0: none */
    bool striped;     /* and one from there is lent out */

    struct tcp_lanes *lanes; /* NULL: none are wanted */

    /* 0, or why the channel is dead: -EPIPE, -EPROTO, -EBADF. What came before may still be
     * received after -EPIPE. Set once; it carries nothing but itself. */
    _Atomic int dead;

    struct {
        pthread_t thread;
        sem_t wake;
        _Atomic bool sleeps, stop;
    } keeper;
};

/* tcp.c */
__attribute__((visibility("default"))) extern const struct gp_transport gp_transport_tcp;
/* Takes the socket and `tls` over on success. */
int tcp_channel_new(int fd, struct tcp_tls *tls, const struct gp_silence *silence, bool accepted,
                    struct gp_channel **out);
/* Send what is gathered: 0, -EAGAIN somebody is sending or the socket is full, -EPIPE, -EBADF. */
int tcp_flush_try(struct gp_channel *ch);
/* Mark the channel dead, unless it is: -EPIPE, -EPROTO, -EBADF. Who receives wakes by the
 * socket's end. */
void tcp_channel_kill(struct gp_channel *ch, int why);
/* Whether it is a parent's. */
bool tcp_is_forked(const struct gp_channel *ch);
/* Tell the peer that so many lanes are in, and use them, unless somebody is sending: 0, -EAGAIN,
 * or why the channel is dead. */
int tcp_lanes_tell(struct gp_channel *ch, unsigned lanes);

/* tcp_receive.c */
int tcp_recv(struct gp_channel *ch, int64_t timeout_us, const void **message, size_t *size);
void tcp_release(struct gp_channel *ch);
int tcp_keep(struct gp_channel *ch, const void *within);
void tcp_let_go(struct gp_channel *ch, const void *within);
void tcp_land(struct gp_channel *ch, gp_land_fn *ask, void *owner);
bool tcp_landed(const struct gp_channel *ch);
void tcp_ground(struct gp_channel *ch);

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
/* Behind a knock: the worker and this side show each other that they have the word, and get
 * another for what they connect beside. `tls` is NULL without it. */
int tcp_greet(const struct door_knocked *k, const unsigned char *word, bool encrypts,
              int64_t deadline, struct tcp_tls **tls, unsigned char lanes_word[DOOR_WORD_BYTES]);
int tcp_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err);

/* tcp_listen.c */
int tcp_listen(const char *url, struct gp_listener **out, struct gp_error *err);
const char *tcp_listener_url(const struct gp_listener *l);
int tcp_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
               struct gp_error *err);
void tcp_listener_close(struct gp_listener *l);

#endif
