/*
 * The ZeroMQ transport, as its own files see it.
 *
 *   zmq.c          a channel: batches, credit, receiving, closing; the table
 *   zmq_keeper.c   the thread of a channel that flushes and notices the end
 *   zmq_listen.c   listening and accepting
 *   zmq_connect.c  connecting
 *   zmq_greet.c    what both do: the greeting
 *   zmq_ask.c      one question to a server
 *   zmq_room.c     whether libzmq gets what it cannot do without
 *   zmq_link.c     one socket with its monitor; addresses; why a connect failed
 *   zmq_curve.c    what is behind the ? of addresses; what is said when keys do not agree
 *
 * Shared with tcp: door.c who is let through at tcp://, batch.c what one message holds,
 * dial.c, silence.c, hex.h.
 *
 * A channel is two PAIR sockets, because a ZeroMQ socket belongs to one thread
 * at a time: the client sends on "up" and the worker on "down", so each side's
 * senders share one socket under their lock and its receiver has the other. What
 * flows backwards on a socket is credit only: a sender has at most so much under
 * way that the receiving socket never stops reading, which keeps memory bounded
 * and shows the end of a connection at once.
 */
#ifndef GP_ZMQ_LINK_H
#define GP_ZMQ_LINK_H

#include <errno.h>
#include <stdatomic.h>
#include <zmq.h>

#include "transport/support.h"
#include "transport/batch.h"
#include "transport/dial.h"
#include "transport/door.h"

/* Under way in one direction, until the receiver has consumed it. */
#define LINK_WINDOW_BYTES ((uint64_t)8 << 20)
#define LINK_WINDOW_BATCHES 256u
/* Messages a receiving socket holds. More than an honest peer ever has under
 * way, so only one that ignores its credit is stopped by it. */
#define LINK_RECEIVE_HWM (LINK_WINDOW_BATCHES + 64)

/* For two sides to agree on how to speak. One that takes longer is busy, which says
 * nothing about its key. */
#define LINK_HANDSHAKE_MS 1500

#define LINK_MAGIC "gpupool/1"
#define LINK_ENDPOINT_MAX GP_ENDPOINT_MAX
#define LINK_KEY_BYTES 32
#define LINK_KEY_TEXT 41   /* as ZeroMQ writes it (Z85), with its NUL */
#define LINK_QUERY_MAX 112 /* "?key=", 64 digits, "&door=" and 32 digits, with its NUL */
#define LINK_OPEN_MAX 64

/* The first message each way on each of the two sockets: the connecting side
 * makes a nonce up, the accepting side repeats it. It tells a wrong service from
 * a right one, and that both sockets lead to the same peer. */
struct link_greeting {
    char magic[16];
    uint32_t is_reply;
    uint32_t is_down;
    unsigned char nonce[16];
};

/* Flows backwards: what the receiver has consumed since the start. */
struct link_credit {
    uint64_t bytes;
    uint64_t batches;
};

/* The longest message that flows against a link's direction. */
#define LINK_BACKWARD_MAX 64
/* What CURVE adds to a message, and the longest of its handshake. */
#define LINK_CURVE_EXTRA 64
#define LINK_CURVE_HANDSHAKE_MAX 1024

enum link_direction { LINK_SENDS, LINK_RECEIVES };

struct link {
    void *socket;  /* PAIR */
    void *monitor; /* PAIR, inproc */
    /* The peer's connection: on the accepting side the descriptor that the
     * greeting came from, as strangers may connect and go; -1: any. */
    int peer_fd;
    int open[LINK_OPEN_MAX]; /* accepting side: connections now open */
    int open_count;
    bool connected, refused, broken; /* connecting side: what has happened */
    bool shaken;                     /* and have agreed on how to speak */
    bool gone;                       /* the peer's connection has ended */
    bool alone;                      /* there is no other connection than the peer's */
    int listens_fd;                  /* accepting side: where strangers arrive, -1: nowhere */
};

/* How a connection is encrypted. Listeners have the key pair, clients know its public
 * half and so whom they speak to; who they are themselves is told by token and secret. */
struct link_curve {
    enum link_role { LINK_CLEAR, LINK_CURVE_CLIENT, LINK_CURVE_SERVER } role;
    unsigned char server[LINK_KEY_BYTES]; /* the public key of who listens */
};

/* The word that opens a worker's door: who has the whole address has it. */
struct link_word {
    bool given;
    unsigned char bytes[DOOR_WORD_BYTES];
};

struct link_endpoints {
    /* tcp://: `up` is the door's, and the sockets' are known when it has opened. */
    char up[LINK_ENDPOINT_MAX], down[LINK_ENDPOINT_MAX];
    struct link_curve curve;
    struct link_word word;
};

/* Split "tcp://H:P?key=...&door=...", "ipc://P" or "ipc://P,Q". `listening` allows "*" for
 * a port, and a word to be left out, that is then made up. -EINVAL, -ENOTSUP. */
int link_url_parse(const char *url, bool listening, struct link_endpoints *out,
                   struct gp_error *err);

/* Make the socket and its monitor; bind and connect are apart, so that no event
 * is missed. -ENOMEM, -EMFILE, ... */
int link_open(struct link *link, void *ctx, enum link_direction direction, const char *endpoint,
              const struct link_curve *curve);
void link_close(struct link *link, int linger_ms);

/* Take in what the monitor has to say, without blocking. */
void link_events(struct link *link);
/* Nobody else may come: whoever tries meets silence. */
void link_shut(struct link *link);
/* Take no connection but from this address ("10.0.0.7"), before it is bound. */
int link_take_only(struct link *link, const char *host);
/* Options that every socket of ours has. */
int link_common_options(void *socket, const char *endpoint, const struct link_curve *curve);
void *link_monitor_open(void *ctx, void *socket);

/* Why does nobody answer at `endpoint`? A plain connection tells: 0 (somebody
 * accepts), -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, ... */
int link_probe(const char *endpoint, int timeout_ms);

/* zmq_room.c */

#define LINK_NO_THREAD (-EUSERS)
/* Whether a context and its sockets can be made: 0, LINK_NO_THREAD, -EMFILE, ... */
int link_room(void);
int link_no_thread(const char *url, struct gp_error *err); /* says it; LINK_NO_THREAD */

/* zmq_curve.c */

/* Take "?key=KEY&door=WORD" off an address. KEY: 64 hexadecimal digits, the key of who
 * listens there; to listen oneself, "own". Addresses without one are not encrypted. WORD:
 * 32 digits; with a NULL `word` there must be none. -EINVAL, -ENOTSUP. */
int link_query_parse(const char *url, bool listening, char endpoint[2 * LINK_ENDPOINT_MAX],
                     struct link_curve *out, struct link_word *word, struct gp_error *err);
/* What goes behind the address of a listener: "", "?key=KEY", "?door=WORD" or both. */
void link_query_show(const struct link_curve *curve, const struct link_word *word,
                     char out[LINK_QUERY_MAX]);
int link_curve_options(void *socket, const struct link_curve *curve);

/* What a ZMTP listener's greeting says about how it wants to be spoken to. NOTHING: it has said
 * nothing yet, or just went, which a busy server does as well as one that stops. */
enum mechanism { LINK_SPEAKS_OTHER, LINK_SPEAKS_NOTHING, LINK_SPEAKS_CLEAR, LINK_SPEAKS_CURVE };
enum mechanism link_mechanism_read(const unsigned char *greeting, size_t size);

/* A handshake has failed: do the keys not agree? Asks whoever listens there. SILENT: it cannot
 * be told. NONE: it speaks as we do, or is at a path, where there are no keys. */
enum link_trouble {
    LINK_TROUBLE_OTHER,
    LINK_TROUBLE_SILENT,
    LINK_TROUBLE_NONE,
    LINK_TROUBLE_NO_KEY,
    LINK_TROUBLE_KEY_UNWANTED,
    LINK_TROUBLE_WRONG_KEY,
};
enum link_trouble link_curve_trouble(const struct link_curve *curve, const char *endpoint,
                                     int timeout_ms);
/* Whether it is one of keys, which does not pass. */
static inline bool link_trouble_of_keys(enum link_trouble trouble)
{
    return trouble >= LINK_TROUBLE_NO_KEY;
}
/* Say so of `who` ("server", "worker"): -EACCES; for what is none of keys -EPROTO, unsaid. */
int link_trouble_explain(enum link_trouble trouble, const char *who, const char *endpoint,
                         struct gp_error *err);

/* End a context however often signals interrupt it. */
void link_context_end(void *ctx);

static inline int link_errno(void)
{
    int e = zmq_errno();
    return e > 0 && e < ZMQ_HAUSNUMERO ? -e : -EIO;
}

/* zmq.c: takes over context and links on success. */
int gpz_channel_new(void *ctx, const struct link *up, const struct link *down, bool accepted,
                    int mark, struct gp_channel **out);

/* zmq_listen.c */
int gpz_listen(const char *url, struct gp_listener **out, struct gp_error *err);
const char *gpz_listener_url(const struct gp_listener *l);
int gpz_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
               struct gp_error *err);
void gpz_listener_close(struct gp_listener *l);

/* zmq_connect.c */
int gpz_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err);

/* zmq_ask.c */
int gpz_ask(const char *url, const void *question, size_t question_size, void *answer,
            size_t *answer_size, int timeout_ms, struct gp_error *err);

#endif
