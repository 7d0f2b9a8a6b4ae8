/*
 * The lanes of a channel: further connections to the same peer, for the bytes of long messages
 * (tcp_stripe.h). They are the channel's and no way without it.
 *
 *   tcp_lanes.c        their life, and taking whole messages
 *   tcp_lane_open.c    a client's knocks behind its own, and a worker's door for them
 *   tcp_lane_read.c    a thread for each that reads pieces to where the message is lent from
 *   tcp_lane_send.c    a thread for each that sends pieces, side by side
 *   tcp_lane_land.c    where the bulk of messages goes
 *   tcp_lane_keep.c    the memory that messages lie in
 *
 * A client asks for lanes as it connects and goes on without them; a worker says in the
 * channel's stream once they are in (STRIPE_NOTE_LANES), and from then on both use them. Until
 * long messages come the threads sleep; they wake by the note of one, and once they have read
 * some look ahead a while. A lane that ends or lies ends the channel, if it was to bring
 * something.
 */
#ifndef GP_TCP_LANES_H
#define GP_TCP_LANES_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/door.h"
#include "transport/silence.h"
#include "transport/tcp_socket.h"
#include "transport/tcp_stripe.h"
#include "transport/tcp_tls.h"

/* Messages that may be handed to the lanes before the first of them has left. */
#define LANES_AHEAD 4u
/* What of a message that is lent is copied: all but its longest piece. */
#define LANES_SMALL 512u
/* Whole messages that may lie on this side before they are taken, and that may be kept behind it. */
#define LANES_SLOTS 4u
#define LANES_KEPT 12u
#define LANES_BLOCKS (LANES_SLOTS + LANES_KEPT)

struct tcp_lane {
    struct tcp_lanes *all;
    unsigned number;
    struct tcp_socket socket; /* fd -1: none */
    struct tcp_tls *tls;
    pthread_t reader, sender;
    bool has_reader, has_sender;
    bool sealed_left; /* its reader's: TLS may have more of what has come */

    _Atomic uint64_t left; /* messages whose piece it does not read any more */
};

/* A lane's piece of a message that is to be sent. */
struct lanes_piece {
    struct stripe_opening opening;
    struct iovec list[GP_GATHER_MAX + 1];
    int count;
};

/* A message that is handed to the lanes: their senders' until all have let it leave. */
struct lanes_handed {
    struct lanes_piece piece[STRIPE_LANES_MAX];
    unsigned char small[LANES_SMALL];
};

/* Memory for a message: of a slot, kept, or spare. */
struct lanes_block {
    unsigned char *bytes; /* GP_MESSAGE_MAX; NULL: not made yet */
    bool in_slot, kept;
};

struct lanes_slot {
    struct lanes_block *block;
    size_t sizes[STRIPE_LANES_MAX];
    _Atomic unsigned come; /* pieces that are there */

    /* Where its bulk goes: set by the first lane that brings a piece, under the landing's lock. */
    uint64_t asked;            /* for this message, and one more; 0: for none */
    struct gp_landing landing; /* size 0: it is lent */
    unsigned char head[GP_MESSAGE_HEAD];
    size_t fell[STRIPE_LANES_MAX]; /* from here on a lane's piece is in the block; 0: not so */
};

struct tcp_lanes {
    struct gp_channel *channel;
    struct gp_silence silence;
    bool accepts, encrypts;
    struct tcp_lane lane[STRIPE_LANES_MAX];
    pthread_mutex_t lock;
    pthread_cond_t wake;    /* of readers */
    pthread_cond_t sends;   /* of senders */
    pthread_cond_t arrived; /* of who waits for a message */
    pthread_cond_t gone;    /* of who waits for one to leave */
    _Atomic bool stop;

    /* How they come to be: under the lock. */
    pthread_t opener;
    bool has_opener, opening;
    unsigned char word[DOOR_WORD_BYTES];
    struct door *door;      /* a worker's, until they are in */
    unsigned wanted;        /* as many as the setting says */
    unsigned opened;        /* that are in */
    unsigned agreed;        /* a client's: as many as the worker says that it has */
    _Atomic unsigned carry; /* that carry; 0: not yet. Set once, with the sending lock or by
                               who receives */

    /* Receiving. */
    struct lanes_slot slot[LANES_SLOTS];
    struct lanes_block block[LANES_BLOCKS];
    int64_t orphan_ns;    /* since when the channel's own connection is seen to have ended */
    uint64_t seen, taken; /* messages noted, and given back: under the lock */
    unsigned idle;        /* readers that sleep until one is noted: under the lock */
    /* A lane brings nothing more: the first message of which a piece is missing, and why. */
    _Atomic uint64_t broken_at;
    _Atomic int broken;

    struct {
        pthread_mutex_t lock; /* nothing of the channel's is locked under it */
        pthread_cond_t over;
        gp_land_fn *ask; /* NULL: everything is lent */
        void *owner;
        unsigned busy; /* pieces that are being written to where they belong */
    } landing;

    /* Sending: under the channel's sending lock. */
    _Atomic uint64_t sent; /* messages that were handed to the lanes */
    struct lanes_handed handed[LANES_AHEAD];
    bool senders;
    _Atomic unsigned awaited; /* somebody sleeps until one has left */
    _Atomic int send_rc;
};

/* What GPUPOOL_LANES says, 1 for none: 0 or -EINVAL. */
int tcp_lanes_setting(unsigned *lanes, struct gp_error *err);

/* Lanes are a gain and no need: without memory or threads there are none. `word` is known to
 * these two alone. */
void tcp_lanes_connect(struct gp_channel *ch, unsigned wanted, const struct gp_silence *silence,
                       const unsigned char word[DOOR_WORD_BYTES]);
/* Takes the door over. */
void tcp_lanes_accept(struct gp_channel *ch, unsigned wanted, const struct gp_silence *silence,
                      const unsigned char word[DOOR_WORD_BYTES], struct door *door);

/* By who receives. A note was read: 0, or -EPROTO it may not be here. */
int tcp_lanes_noted(struct tcp_lanes *l, const struct stripe_note *note);
/* The message that is due, without waiting: 0, -EAGAIN, -EPIPE, -EPROTO, -EBADF. */
int tcp_lanes_take(struct tcp_lanes *l, size_t size, const void **message);
void tcp_lanes_release(struct tcp_lanes *l);
/* The message that was taken, before its release: 0, -EAGAIN. */
int tcp_lanes_keep(struct tcp_lanes *l, const void *within);
void tcp_lanes_let_go(struct tcp_lanes *l, const void *within);
/* transport.h: land, landed of the message that was taken, ground. */
void tcp_lanes_land(struct tcp_lanes *l, gp_land_fn *ask, void *owner);
bool tcp_lanes_landed(const struct tcp_lanes *l);
void tcp_lanes_ground(struct tcp_lanes *l);
/* Sleep until it may be there, never for long. */
void tcp_lanes_wait(struct tcp_lanes *l, int64_t deadline);

/* With the sending lock: hand a message to the lanes. `*lent`: its longest piece stays as it is; it
 * is set to whether that is enough. */
int tcp_lanes_hand(struct tcp_lanes *l, const struct iovec *iov, int count, size_t size,
                   bool *lent);
/* With the sending lock, behind the message's note: send what no thread does, and wait for the rest
 * unless it is lent: 0, -EPIPE, -EBADF, -EPROTO. */
int tcp_lanes_see_off(struct tcp_lanes *l, bool lent);
/* Messages that no lane reads any more. */
uint64_t tcp_lanes_returned(const struct tcp_lanes *l);
/* Wait until all that were handed out have left; at the latest at the deadline. */
void tcp_lanes_empty(struct tcp_lanes *l, int64_t deadline);

/* Wait until the peer's kernel has what was sent. */
void tcp_lanes_settle(struct tcp_lanes *l, int64_t deadline);
/* No lane comes any more; what knocks or waits at the door has ended when it returns. */
void tcp_lanes_end_opening(struct tcp_lanes *l);
/* Let go of everything; in a forked child (`forked`), of its copies alone. NULL is none. */
void tcp_lanes_close(struct tcp_lanes *l, int64_t deadline, bool forked);

/* Among these files. */
int tcp_lanes_dial(struct tcp_lanes *l, int fd);
/* With the lock: use them once they are in and the worker has said so; -EPROTO: they are not. */
int tcp_lanes_agree(struct tcp_lanes *l);
/* With the lock: from this message on a lane brings nothing. */
void tcp_lanes_break(struct tcp_lanes *l, uint64_t number, int why);
/* With the lock: wait for `arrived` or `gone`. */
void tcp_lanes_sleep(struct tcp_lanes *l, pthread_cond_t *what, int64_t until);
int tcp_lanes_prepare(struct tcp_lanes *l, unsigned lanes);
/* tcp_lane_land.c: by a lane that has read the opening of a piece; `where` has size 0 if the message
 * is lent, else an end must follow. */
void tcp_landing_begin(struct tcp_lanes *l, uint64_t number, size_t size,
                       const unsigned char *message, struct gp_landing *where);
void tcp_landing_end(struct tcp_lanes *l);
/* Whether bytes may be written there, from a thread that must not fault. */
bool tcp_landing_is_writable(void *to, size_t size);
/* Of a whole message: what fell is brought where it belongs, and the head was the message's. */
int tcp_landing_finish(struct tcp_lanes *l, struct lanes_slot *slot, size_t size);
/* Memory for the slot, that nobody else has. */
bool tcp_lanes_block(struct tcp_lanes *l, struct lanes_slot *slot);
void *tcp_lane_reader(void *lane);
void *tcp_lane_sender(void *lane);
void *tcp_lanes_opener(void *lanes);
void *tcp_lanes_porter(void *lanes);

#endif
