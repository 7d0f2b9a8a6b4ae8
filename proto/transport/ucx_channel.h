/*
 * The ucx transport, as its own files see it.
 *
 *   ucx.c          a channel: sending, receiving, the end; the table
 *   ucx_engine.c   its part of UCX: context, endpoint, active messages, memory
 *   ucx_note.c     its door's connection: how both ends tell that it is over
 *   ucx_sleep.c    moving it, sleeping, waking
 *   ucx_keeper.c   the thread that moves what nobody waits for
 *   ucx_wire.c     what the peer says, checked
 *   ucx_library.c  UCX, found and opened, in an environment of its own (ucx_environment.c)
 *   ucx_greet.c    what both ends do behind the door
 *   ucx_listen.c   listening and accepting, behind the door (door.h)
 *   ucx_connect.c  addresses, and connecting
 *
 * A channel is a UCP endpoint each way and the TCP connection of the door, by which the two have
 * found each other. UCX carries messages, with what the hosts have: InfiniBand, RoCE, its own
 * tcp. The TCP connection carries nothing but the end: the kernel closes it when a process dies,
 * whatever UCX notices, and asks for the peer's machine when it is silent.
 *
 * UCX is called by one thread at a time, under a lock that nobody holds while it sleeps. Whoever
 * waits (a sender for credit, a receiver for messages) moves UCX meanwhile, for all.
 */
#ifndef GP_UCX_CHANNEL_H
#define GP_UCX_CHANNEL_H

#include <semaphore.h>

#include "transport/dial.h"
#include "transport/silence.h"
#include "transport/support.h"
#include "transport/ucx_library.h"
#include "transport/ucx_wire.h"

/* Messages that wait to be sent together: bytes, and for how long. */
#define GATHER_BYTES ((size_t)64 << 10)
#define GATHER_NS 100000
/* What a close may spend on sending the rest. */
#define CLOSE_MS 1000

#define UCX_SCHEME "ucx://"

/* Memory of ours that UCX reads or writes, made known to it once. */
struct ucx_buffer {
    struct ucx_buffer *next, *next_of_all;
    struct ucx_buffers *of;
    unsigned char *bytes;
    size_t room;
    void *memory; /* UCX's handle; NULL: none */
    struct gp_channel *channel;
    struct ucx_batch_header header; /* of what is sent from it */
};
struct ucx_buffers {
    struct ucx_buffer *free, *all;
    size_t room; /* of each */
    unsigned count, most;
};

/* A batch that has come, or whose bytes are coming. */
struct ucx_slot {
    struct gp_channel *channel;
    _Atomic bool full;
    size_t size;
    struct ucx_buffer *buffer; /* long ones */
    unsigned char *bytes;      /* others: malloc'ed */
};

struct gp_channel {
    const struct ucx_api *api;
    unsigned generation;

    /* UCX's, under `ucx`. */
    pthread_mutex_t ucx;
    void *context, *worker, *ep;
    int worker_fd;
    bool notices;                             /* UCX tells when the peer has died */
    _Atomic unsigned under_way;               /* operations that have not ended */
    struct ucx_buffers small, large, landing; /* to send from, and to receive long ones in */

    /* Sending: under the turnstile; `debt` under `ucx`, too. */
    struct gp_turnstile sending;
    struct gp_relief relief;
    struct ucx_buffer *gather;  /* of GATHER_BYTES */
    _Atomic size_t gather_used; /* written under the turnstile, looked at without */
    uint64_t peer_tag;          /* what goes to the peer begins with it */
    struct ucx_debt debt;

    /* Receiving: one thread at a time; `window` and slots under `ucx`, but for a full slot, which
     * is its receiver's. */
    struct ucx_window window;
    struct ucx_slot slots[UCX_WINDOW_BATCHES];
    struct gp_batch_reader reader;
    struct ucx_slot *reading; /* whose batch `reader` is in */
    uint64_t came;            /* batches, whole */
    uint64_t got_bytes, told_bytes, told_batches;
    bool greeted; /* the peer's first credit has come: UCX carries both ways */
    struct gp_spin spin;

    /* Whoever sleeps, and what wakes it besides UCX's and the connection's descriptors. */
    struct ucx_sleeper {
        _Atomic bool sleeps;
        int fd; /* eventfd */
    } sender, receiver, keeper;

    /* The door's connection. */
    int fd;
    struct gp_fd_mark mark; /* on the connecting side */
    int64_t silence_ms;
    struct ucx_note heard; /* as much as has come of it */
    size_t heard_bytes;
    bool sent_said, sent_known, came_said;
    _Atomic bool gone;
    uint64_t sent_count;   /* the peer's batches in all, if `sent_known` */
    _Atomic bool came_all; /* the peer has all of ours */
    _Atomic int64_t looked_ns, flushed_ns;

    /* The end. Only ever set; nothing can be sent any more, nothing more comes, and why. */
    _Atomic bool send_dead, recv_dead;
    _Atomic int why;          /* 0, -EPIPE, -EPROTO, -EBADF */
    _Atomic int64_t ended_ns; /* when the connection ended, 0: not */

    pthread_t keeper_thread;
    _Atomic bool keeper_stop, has_keeper;
};

/* ucx_engine.c. Under `ucx`, but for opening and closing. */

/* Context and worker; -ENOMEM, -ENOTSUP and why. */
int ucx_engine_open(struct gp_channel *ch, struct gp_error *err);
/* Its address: the caller frees it with ucx_engine_address_free. */
int ucx_engine_address(struct gp_channel *ch, void **address, size_t *size);
void ucx_engine_address_free(struct gp_channel *ch, void *address);
/* The endpoint, to the peer at this address. -EHOSTUNREACH: by none of UCX's devices. */
int ucx_engine_connect(struct gp_channel *ch, const void *address);
void ucx_engine_close(struct gp_channel *ch);
/* Move what can be moved; wakes whom it concerns. */
void ucx_engine_progress(struct gp_channel *ch);
/* Have the worker's descriptor tell of what comes; false: something is there already. */
bool ucx_engine_arm(struct gp_channel *ch);
/* One that is free; NULL: none for now. */
struct ucx_buffer *ucx_engine_buffer(struct gp_channel *ch, struct ucx_buffers *of);
void ucx_engine_buffer_free(struct ucx_buffer *b);
/* Send the first bytes of a buffer as the next batch; the buffer is UCX's from then on. -EPIPE */
int ucx_engine_post(struct gp_channel *ch, struct ucx_buffer *b, size_t size);
/* Tell the peer what was consumed. */
void ucx_engine_credit(struct gp_channel *ch);

/* ucx_note.c. Under `ucx`. */

/* Take in what the connection brings, and say what is due; sets the end. */
void ucx_notes_look(struct gp_channel *ch);
/* Say that no more is sent than was so far. */
void ucx_notes_say_sent(struct gp_channel *ch);
/* Whether descriptors are still what they were. */
bool ucx_fds_ours(struct gp_channel *ch);

/* ucx.c */
__attribute__((visibility("default"))) extern const struct gp_transport gp_transport_ucx;
/* A channel without its UCX; the socket is its own on success. */
int ucx_channel_new(int fd, const struct gp_silence *silence, bool accepted,
                    struct gp_channel **out, struct gp_error *err);
/* It has greeted: begin to work. */
int ucx_channel_start(struct gp_channel *ch);
/* Give up one that has not begun. */
void ucx_channel_drop(struct gp_channel *ch);
/* Send what is gathered: 0, -EAGAIN somebody is sending or there is no credit, -EPIPE, -EBADF. */
int ucx_flush_try(struct gp_channel *ch);

/* ucx_sleep.c */
void ucx_dead_set(struct gp_channel *ch, int why, bool receives);
/* Move UCX and hear the connection, once. */
void ucx_channel_move(struct gp_channel *ch);
/* Sleep until there is something to move or to wake for, at most `most_ms` and never for long.
 * `me->sleeps` is set by the caller, who has looked again since. */
void ucx_channel_sleep(struct gp_channel *ch, struct ucx_sleeper *me, int most_ms);
void ucx_wake(struct gp_channel *ch, struct ucx_sleeper *who);

/* ucx_keeper.c */
int ucx_keeper_start(struct gp_channel *ch);
void ucx_keeper_stop(struct gp_channel *ch);
/* Something was gathered, or is on its way and nobody waits for it. */
void ucx_keeper_nudge(struct gp_channel *ch);

/* ucx_connect.c */
struct ucx_address {
    char endpoint[GP_ENDPOINT_MAX]; /* ucx://HOST:PORT */
    bool has_word;
    unsigned char word[DOOR_WORD_BYTES];
    int handed; /* a socket that listens there already; -1: none */
};
#define UCX_URL_MAX (GP_ENDPOINT_MAX + 48)
int ucx_address_parse(const char *url, bool listening, struct ucx_address *out,
                      struct gp_error *err);
int ucx_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err);

/* ucx_listen.c */
int ucx_listen(const char *url, struct gp_listener **out, struct gp_error *err);
const char *ucx_listener_url(const struct gp_listener *l);
int ucx_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
               struct gp_error *err);
void ucx_listener_close(struct gp_listener *l);

#endif
