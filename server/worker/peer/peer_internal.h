/*
 * Joined workers, as the files of this part see it.
 *
 *   peer_join.c  the client's messages that join two workers
 *   peer.c       transfers in the order of their streams
 *   peer_link.c  how two workers find each other and prove who they are
 *   peer_state.c what the threads and the loop know of a link, under the lock
 *   peer_pump.c  a link's reader: bytes from the wire to the GPU
 *   peer_write.c its writer: bytes from the GPU to the wire
 *   peer_lane.c  what a context needs for that: streams, pinned memory
 *   peer_wire.c  the messages
 *
 * Threads. The worker's loop submits to the client's streams, and lets them go on; it
 * never waits for a link. Each link has a reader and a writer. The reader drains the
 * link whatever happens, as it waits for nothing but copies on streams of our own, so
 * no order of transfers, and no number of them, can make two workers wait for each
 * other's buffers. Data is only sent when the receiving stream has come to it.
 *
 * The lock of struct gpw_peers guards everything below that says so. It is never held over a
 * call of the driver or of a transport.
 */
#ifndef GPW_PEER_INTERNAL_H
#define GPW_PEER_INTERNAL_H

#include <pthread.h>

#include "peer.h"
#include "peer_wire.h"
#include "session.h"

/* All links of a session. */
struct gpw_peers {
    pthread_mutex_t lock;
    pthread_cond_t slot_free;            /* of some lane */
    uint64_t bytes_sent, bytes_received; /* under the lock */

    /* Loop's only. */
    struct gpw_peers_at at;
    struct gpw_peer *links[GP_PEERS_MAX];
    struct gpw_lane *lanes;
    struct gpw_transfer *transfers; /* all, the oldest first */
    struct gpw_transfer **transfers_end;
    uint64_t work_submitted;
    bool closing;
};

/* --- lanes ------------------------------------------------------------------------ */

/* Pieces of a context under way in each direction. */
#define GPW_LANE_SLOTS 8u
/* Streams of a context that may be blocked at once. */
#define GPW_LANE_WORDS 4096u

struct gpw_lane_slot {
    struct gpw_lane_slot *next;
    void *memory;  /* GP_CHUNK_MAX bytes, pinned */
    CUevent event; /* behind the last copy from or to it */
};
struct gpw_lane_ring { /* of free slots, the one given back last at the end; under the lock */
    struct gpw_lane_slot *first, **end;
};

struct gpw_lane {
    struct gpw_peers *all;
    struct gpw_lane *next;
    CUcontext context;
    CUstream in, out; /* ordered with no stream of the client's */
    struct gpw_lane_slot slots[2 * GPW_LANE_SLOTS];
    struct gpw_lane_ring free_in, free_out;
    unsigned busy;        /* slots taken; under the lock */
    unsigned promised;    /* of these, to pieces that are coming; under the lock */
    void *pinned;         /* of the words */
    void *bytes;          /* of the slots */
    bool registered;      /* they are pinned */
    struct gp_seat *seat; /* of its GPU; NULL: no turns */
    /* A stream that is blocked waits for its word to be 1, and writes 1 to its mark before. */
    uint32_t *words, *marks;
    CUdeviceptr words_device;
    uint64_t words_used[GPW_LANE_WORDS / 64]; /* loop's only */
};

/* The current context's; made on first use. NULL: no memory. Loop only. */
struct gpw_lane *gpw_lane_here(struct gpw_session *s);
/* Nothing of the context is blocked or moves any more; the context is current. Loop only. */
void gpw_lane_context_ended(struct gpw_session *s, CUcontext context);
int gpw_lane_word_take(struct gpw_lane *lane); /* -1: all in use */
void gpw_lane_word_give(struct gpw_lane *lane, unsigned word);
CUdeviceptr gpw_lane_word_at(const struct gpw_lane *lane, unsigned word);
CUdeviceptr gpw_lane_mark_at(const struct gpw_lane *lane, unsigned word);
/* Wait for a slot, or NULL if `wait` is false and there is none. The lock is held. */
struct gpw_lane_slot *gpw_lane_slot_take(struct gpw_lane *lane, bool in, bool wait);
void gpw_lane_slot_give(struct gpw_lane *lane, bool in, struct gpw_lane_slot *slot);

/* --- transfers ---------------------------------------------------------------------- */

struct gpw_transfer {
    struct gpw_wait wait; /* until it is over */
    struct gpw_peer *peer;
    struct gpw_transfer *next; /* of the peer's, in one direction; under the lock */
    struct gpw_lane *lane;
    bool sends;
    uint64_t tag, address, bytes;

    int word;       /* -1: none; the stream is not blocked, and has no mark */
    uint32_t *flag; /* the word, where the stream is blocked */

    /* Under the lock. */
    bool marked;    /* the stream writes its mark */
    bool reached;   /* its stream has come to it */
    bool ready;     /* sends: the other side's has, too */
    bool over;      /* the threads have let go; in no list any more */
    unsigned busy;  /* pieces that a thread works on */
    uint64_t moved; /* bytes whose copies have been started */
    CUresult result;

    /* recv: behind the last copy; recorded by the reader, asked once it is over */
    CUevent event;
    bool recorded;

    /* Loop's only. */
    struct gpw_transfer *all_next;
    CUcontext context;
    CUstream stream; /* NULL once it has been destroyed */
    bool ending;     /* its context does */
    bool blocked;    /* the stream is, unless released */
    bool released;
    unsigned awaited; /* callbacks that refer to it */
    uint64_t at;      /* work submitted before it */
};

/* Something came before the transfer it belongs to. */
struct gpw_peer_early {
    struct gpw_peer_early *next;
    bool of_send;
    CUresult result; /* aborted or refused; else CUDA_SUCCESS */
    uint64_t tag, bytes;
};

/* A message without data that waits to be sent. */
struct gpw_peer_note {
    struct gpw_peer_note *next;
    struct gpw_peer_message message;
};

/* A slot that a transport writes a piece to, which may not have come as a whole. */
struct gpw_peer_promised {
    struct gpw_lane *lane;
    struct gpw_lane_slot *slot;
};
#define GPW_PEER_PROMISED 8u

enum gpw_peer_state { GPW_PEER_OPENING, GPW_PEER_UP, GPW_PEER_DOWN };

struct gpw_peer {
    struct gpw_peers *all;
    uint32_t index;
    struct gpw_driver *driver;
    uint8_t secret[GPW_PEER_SECRET];
    char *url; /* listening: where, connecting: where to */
    const struct gp_transport *transport;
    struct gp_listener *listener; /* the reader's; NULL: connects */
    bool listens;                 /* it began so */
    bool streams;                 /* at an address of our own TCP */
    bool joining;                 /* its client waits for it; loop's only */
    struct gp_channel *channel;
    pthread_t reader, writer;
    pthread_cond_t work; /* for the writer */

    /* Under the lock. */
    enum gpw_peer_state state;
    bool stop;
    struct gp_error why; /* DOWN */
    struct gpw_transfer *sends, *recvs;
    uint64_t stirred; /* when a stream was last to come to one, or came */
    struct gpw_peer_early *early;
    unsigned early_count;
    struct gpw_peer_note *notes, **notes_end;
    unsigned note_count;
    struct gpw_peer_promised promised[GPW_PEER_PROMISED]; /* the oldest first, from `first` on */
    unsigned promised_first, promised_count;
};

/* All with the lock held. */
struct gpw_transfer **gpw_transfer_find(struct gpw_transfer **list, uint64_t tag);
/* The transfer ends so, as soon as no thread works on it. */
void gpw_transfer_fail(struct gpw_transfer *t, CUresult result);
/* As it stands, if no thread works on it. */
void gpw_transfer_end(struct gpw_transfer *t);
/* The other side's stream has come to it, or it has failed there. */
void gpw_transfer_meet(struct gpw_transfer *t, uint64_t bytes, CUresult result);
/* Its stream has come to it. */
void gpw_transfer_reach(struct gpw_transfer *t);
/* Those of which it has by its mark; true: some are waited for. */
bool gpw_peer_marks_look(struct gpw_peer *p);
/* Whether what is behind a transfer may go on without asking for a turn: then who ends it sets the
 * word, or has the GPU set it, and the loop hears of it later. */
bool gpw_transfer_goes_on(const struct gpw_transfer *t);
/* What has come already for a transfer of this tag; false: nothing. */
bool gpw_peer_early_take(struct gpw_peer *p, bool of_send, uint64_t tag, uint64_t *bytes,
                         CUresult *result);
/* What may come, or wait to be sent, before there is a transfer for it. */
#define GPW_PEER_EARLY_MAX 65536u
/* False: no memory; the link is then down. */
bool gpw_peer_note(struct gpw_peer *p, enum gpw_peer_kind kind, uint64_t tag, uint64_t bytes,
                   CUresult result);
/* The link has ended: everything on it does. Once; `why` of the first call stays. */
void gpw_peer_down(struct gpw_peer *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* For a piece to come or to leave whose context ends. */
#define GPW_PEER_ENOUGH_SECONDS 2
/* It has had that: what is still under way is another worker's fault. The lock is held. Loop only. */
void gpw_peers_give_up(struct gpw_peers *all);

/* Loop only. The link of this number, NULL: none; whether a transfer refers to it. */
struct gpw_peer *gpw_peer_of(const struct gpw_session *s, uint32_t index);
bool gpw_peer_used(const struct gpw_peer *p);

/* --- link and pump -------------------------------------------------------------------- */

/* Listen or connect, and prove. On the reader's thread. 0, or -1 with `err`. */
int gpw_peer_link(struct gpw_peer *p, struct gp_error *err);
/* Start the threads. 0, or a negative errno. */
int gpw_peer_start(struct gpw_peer *p);
/* Whether the link has been given up; for loops. */
bool gpw_peer_stopped(struct gpw_peer *p);
/* The writer's thread. */
void *gpw_peer_writer(void *peer);
/* Of both threads: their own captures are none, and others' must not forbid what they do. */
void gpw_peer_thread_begin(struct gpw_peer *p);
/* Make a context current, of which `*current` is what is. */
CUresult gpw_peer_context_use(struct gpw_peer *p, CUcontext *current, CUcontext context);

#endif
