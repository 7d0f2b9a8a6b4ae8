/* A ZeroMQ channel, as zmq.c and zmq_keeper.c see it. */
#ifndef GP_ZMQ_CHANNEL_H
#define GP_ZMQ_CHANNEL_H

#include "transport/zmq_link.h"

/* Messages that wait to be sent together: bytes, and for how long. */
#define GATHER_BYTES ((size_t)64 << 10)
#define GATHER_NS 100000

struct gp_channel {
    void *ctx;
    unsigned generation;

    /* Sending: under the turnstile. */
    struct gp_turnstile sending;
    struct gp_relief relief;
    void *send_socket;
    unsigned char *gather;      /* GATHER_BYTES */
    _Atomic size_t gather_used; /* written under the lock, looked at without */
    uint64_t sent_bytes, sent_batches;
    uint64_t credited_bytes, credited_batches;

    /* Receiving: one thread at a time. */
    void *recv_socket;
    zmq_msg_t batch;
    bool batch_held;
    struct gp_batch_reader reader;
    void *aligned;                     /* GP_BATCH_MAX bytes, made when first needed */
    uint64_t got_bytes, got_batches;   /* consumed */
    uint64_t told_bytes, told_batches; /* of these the peer knows */
    struct gp_spin spin;

    /* The end. Both flags are only ever set, and carry nothing but themselves;
     * each has an eventfd that becomes and stays readable with it. The peer's
     * last messages may still come while nothing can be sent any more. */
    _Atomic bool send_dead, recv_dead;
    _Atomic bool garbled; /* the peer sent a malformed message */
    /* The program has closed the descriptors, ZeroMQ's among them: it must not be called any
     * more, because it ends the process when it finds one missing. The mark is of a file of
     * ours that was opened before them. */
    _Atomic bool robbed;
    struct gp_fd_mark mark;
    int send_fd, recv_fd; /* of the sockets: readable when something has happened */
    int send_dead_fd, recv_dead_fd;

    /* The keeper's. */
    struct link up, down;
    pthread_t keeper;
    int keeper_wake_fd;
    _Atomic bool keeper_sleeps, keeper_stop;
    int64_t ended_ns; /* when the first of the two connections ended, 0: none */
};

/* zmq.c: send what is gathered, if the lock is free and credit is there. */
void gpz_flush_try(struct gp_channel *ch);
/* Whether descriptors are still what they were. Ask before ZeroMQ is called. */
bool gpz_fds_ours(struct gp_channel *ch);
void gpz_send_dead_set(struct gp_channel *ch);
void gpz_recv_dead_set(struct gp_channel *ch);

/* zmq_keeper.c */
int gpz_keeper_start(struct gp_channel *ch);
void gpz_keeper_stop(struct gp_channel *ch);
/* Something was gathered: have it sent in time. */
void gpz_keeper_nudge(struct gp_channel *ch);

#endif
