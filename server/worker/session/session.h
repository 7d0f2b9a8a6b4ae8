/*
 * The worker's session: one client, one channel, one thread that takes
 * messages in order and asks the driver. Nothing here blocks on the GPU:
 * what takes time becomes a *wait*, polled between messages.
 */
#ifndef GPW_SESSION_H
#define GPW_SESSION_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "budget.h"
#include "failures.h"
#include "gp_messages.h"
#include "gp_ops.h"
#include "gpw_driver.h"
#include "operations.h"
#include "transport/transport.h"

struct gpw_control;   /* control.c: what servers ask and say */
struct gpw_functions; /* function.c: what launches need to know */
struct gpw_graphs;    /* graph.c: captures under way, hidden nodes */
struct gpw_gates;     /* gate.c: the boards of its devices, and its turns on them */
struct gpw_handles;
struct gpw_host_functions; /* host_function.c: those that streams have still to pass */
struct gpw_ipc;            /* ipc/ipc.h: what other processes have in common with it */
struct gpw_held;           /* held.c: how NVML is asked */
struct gpw_loop;           /* loop.c: the message that waits, and when waits were looked at */
struct gpw_left;           /* left.h: streams that stand for destroyed ones */
struct gpw_memory;         /* memory.c: allocations, windows, pinned shares, arena */
struct gpw_image_store;    /* image_store.h: images of sessions before */
struct gpw_modules;        /* module.c: images, functions' parameters */
struct gpw_nccl;           /* nccl.c: the real NCCL, communicators */
struct gpw_peers;          /* peer.c: links to other workers, transfers */

/* The contexts of the streams that were named lately, and the device of the last one (place.c). */
#define GPW_PLACES_KEPT 16
struct gpw_places {
    bool known; /* the message at hand has a context, which is current */
    CUcontext context;
    int ordinal;
    struct {
        uint64_t stream; /* the client's id; 0: none */
        CUcontext context;
    } kept[GPW_PLACES_KEPT];
};

/* The streams into which work was put since all others of the context were seen to be idle (tells.c). */
#define GPW_WORKING_MOST 8
struct gpw_working {
    CUcontext context; /* NULL: nothing is known */
    unsigned count;
    struct gpw_working_stream {
        uint64_t stream; /* the client's id */
        bool asked;
        unsigned char kind; /* if it was asked: what the legacy stream has to do with it */
    } at[GPW_WORKING_MOST];
};

/* What the GPU was told last to write for a client that looks for it: a word of a page, and what will be
 * in it (completion.c). */
struct gpw_signal {
    const uint64_t *word; /* NULL: there was none */
    uint64_t number;
};

/* Of a device's memory, what its board has been told (quota.c). */
struct gpw_account {
    uint64_t counted;   /* reserved by gpw_quota_take */
    uint64_t overhead;  /* charged for what the driver took besides, and may soon */
    uint64_t estimated; /* of the overhead, what NVML has not been asked about */
    uint64_t excess;    /* of the overhead, what came while the tenant was over its limit */
    unsigned looks;     /* in a row that found too much of it */
    bool spared;        /* for communicators that were given up instead */
};

/* Events without timing that nobody uses (wait.c): making one costs more than recording it. */
#define GPW_EVENTS_KEPT 64
struct gpw_events {
    struct {
        CUcontext context;
        CUevent event;
    } kept[GPW_EVENTS_KEPT];
    unsigned count;
};

struct gpw_session {
    struct gpw_driver *driver;
    const struct gp_transport *transport;
    struct gp_channel *channel;
    struct gp_listener *clients_to; /* where a server brings the client; control.c has the lock */
    struct gpw_handles *handles;
    struct gpw_left *left;
    struct gpw_texture *textures;   /* texture.c */
    struct gpw_link *links;         /* link.c */
    struct gpw_green *greens;       /* green.c */
    struct gpw_resource *resources; /* that the driver gave, by name; likewise */
    struct gpw_memory *memory;
    struct gpw_modules *modules;
    struct gpw_image_store *image_store; /* NULL: none */
    struct gpw_functions *functions;
    struct gpw_graphs *graphs;
    struct {
        struct gpw_condition *handles;
        struct gpw_bodies *nodes;
    } conditions; /* graph_condition.c */
    struct gpw_held *held;
    struct gpw_loop *loop;
    struct gpw_control *control;
    struct gpw_leave {
        pthread_mutex_t lock;
        bool watches; /* under the lock: the client is to be looked for */
    } leave;
    int told;       /* what was stdout: words for the server (tell.h) */
    unsigned ticks; /* how often the loop was idle (main.c) */
    struct gpw_peers *peers;
    struct gpw_ipc *ipc;
    const char *cupti;         /* where it is; NULL: it is found by its name */
    const char *nccl_path;     /* likewise */
    struct gpw_nccl *nccl;     /* NULL: not asked for yet */
    struct gpw_output *output; /* what kernels print; output.h */
    struct gpw_host_functions *host_functions;
    struct gpw_graph_budget {
        struct gpw_graph_cost *graphs;
        struct gpw_capture_cost *captures, *ending;
    } graph_budget;
    struct gpw_gates *gates; /* NULL: no device has a board */
    struct gpw_budget_use budget;
    struct gpw_account accounts[GP_DEVICES_MAX];
    bool graphs_allocate;                 /* launches of graphs may take memory (growth.c) */
    uint32_t local_bytes[GP_DEVICES_MAX]; /* a thread, that the driver has made room for */
    struct gpw_places places;
    struct gpw_events events;
    CUcontext primary[GP_DEVICES_MAX]; /* retained by the client: one for each device */
    uint64_t contexts_ended;
    struct gpw_wait *waits, *waits_last; /* the oldest and the youngest */
    struct gpw_signal signal;
    struct gpw_working working;
    struct gpw_wait *waits_due; /* over, and still to be polled */
    void *scratch[4];           /* GP_CHUNK_MAX bytes each, for out[N] */
    uint32_t index;             /* of this session among the client's: in the ids of its handles */
    uint32_t device_count;
    CUdevice devices[GP_DEVICES_MAX]; /* client's ordinal -> driver's device */
    bool soft;                        /* the driver is the soft GPU's */
    uint8_t secret[16];
    bool strict;           /* the client's thread may not make calls that captures forbid */
    bool strict_call;      /* nor the one whose call is made, which may have waited behind others */
    bool strict_now;       /* so it is for the driver: while a call of such a thread is made */
    bool watches_captures; /* until one is found that was spoilt (capture_watch.h) */
    bool last_try;         /* no more GPW_AGAIN */
    unsigned fences;       /* what every message waits for, whichever it is */
    unsigned stream_fences; /* likewise, but those that put work into the stream (gp_fence) */
    CUstream fenced;        /* which that is */
    bool none_printed;      /* behind what is answered now: stdout needs no look */
    const void *lends;      /* bytes of what is sent now that stay until the channel returns them */
    bool more_to_say; /* other waits are over, too: what is sent now may go with what they send */
    bool said_later;  /* and has not gone yet */
    unsigned event_waits; /* calls that wait for an event of the client's */
    bool greeted;         /* gp_hello was right: set last of what it says, for the control thread */
    bool ended;           /* gp_goodbye, or broken */
    int32_t sticky;       /* a CUresult that every later call gives, 0 none */
    int32_t over; /* the same, of the driver's, when the present message's memory was asked for */
    struct gpw_failures failures;
    uint64_t calls;
    uint64_t at_message; /* the number of the one that is dealt with; 0: none is */
    uint64_t handled;    /* how many were, with that one; some had been put off */
    char program[256];
    uint32_t client_pid;
    uint32_t wire;           /* the protocol that is spoken */
    struct gp_shared shared; /* the operations that the client has, too */
};

/* Returned by a deferred handler that will answer later; no CUresult is negative. */
#define GPW_DEFERRED ((CUresult) - 1)

/* Returned by a handler of a call that is waited for: dispatch it again when the frees that
 * are under way are over. */
#define GPW_AGAIN ((CUresult) - 2)
int gpw_put_off(struct gpw_session *s, const struct gp_header *h);

/*
 * While a stream captures, CUDA forbids the capturing thread, or all threads, calls that
 * may disturb it, and ends the capture when they come all the same. For the driver all
 * threads of the client are one, ours. So ours is in relaxed mode, which forbids nothing,
 * except while it makes a call of a client's thread to which it is forbidden (the client
 * says so); what the worker needs for itself in such a call is relaxed again. Returns
 * what it was.
 */
static inline bool gpw_strict(struct gpw_session *s, bool strict)
{
    bool before = s->strict_now;
    CUstreamCaptureMode mode = strict ? CU_STREAM_CAPTURE_MODE_GLOBAL
                                      : CU_STREAM_CAPTURE_MODE_RELAXED;
    if (strict != before)
        s->driver->cuThreadExchangeStreamCaptureMode(&mode);
    s->strict_now = strict;
    return before;
}

/* For calls that captures forbid and that the worker makes in another way: the driver's
 * answer to such a call now, which ends those captures if it is no success. */
CUresult gpw_forbidden(struct gpw_session *s);

/* Whom to answer. */
struct gpw_token {
    uint16_t op;
    uint16_t flags;
    uint64_t seq;
};
static inline struct gpw_token gpw_token_of(const struct gp_header *h)
{
    return (struct gpw_token){h->op, h->flags, h->seq};
}

/* A message under construction: fixed part and tails (padded by the sender). */
struct gpw_message {
    struct gp_header *head;
    uint32_t head_size;
    struct iovec tails[4];
    unsigned count;
    unsigned flags; /* enum gp_send_flags */
};
void gpw_message_tail(struct gpw_message *m, const void *from, uint32_t bytes);

/* All return 0, or negative when the session is over. */
int gpw_session_send(struct gpw_session *s, struct gpw_message *m);
/* What whoever waits for an end has to know before it: what kernels printed, and what failed. */
int gpw_session_tell_first(struct gpw_session *s);
int gpw_reply(struct gpw_session *s, const struct gp_header *h, CUresult r, struct gpw_message *m);
int gpw_reply_token(struct gpw_session *s, struct gpw_token t, CUresult r, struct gpw_message *m);
/* For calls that nobody waits for: tells the client of a failure; answers when the
 * client asked to wait all the same (GPUPOOL_SYNC). */
int gpw_async_result(struct gpw_session *s, const struct gp_header *h, CUresult r);
/* The client sent what no client of ours would: log why, end the session. */
int gpw_session_broken(struct gpw_session *s, const char *why);
/* End the session for a reason that its user should read: to the log, and to the client. */
void gpw_session_end(struct gpw_session *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Room for `bytes` (<= GP_CHUNK_MAX) of output; `index` 0..3. Never NULL. */
void *gpw_scratch(struct gpw_session *s, unsigned index, uint32_t bytes);

/*
 * Something to finish later. Between messages `ready` is asked (NULL: always) and,
 * if so, `poll` is called, until it returns true; neither may block. A wait is added
 * when what it waits for is submitted, and `ready` stays true once it is: then no wait
 * is polled before one that it follows (wait.c says why). The struct is embedded
 * in the owner's own, which frees itself in poll (when done) or in `cancel` (the session
 * ends first).
 */
struct gpw_wait {
    bool (*ready)(struct gpw_session *s, struct gpw_wait *w);
    bool (*poll)(struct gpw_session *s, struct gpw_wait *w);
    void (*cancel)(struct gpw_session *s, struct gpw_wait *w);
    bool recurs;      /* its work comes again: it may be behind waits that are younger */
    const char *what; /* for whoever debugs */
    struct gpw_wait *older, *younger;
};
void gpw_wait_add(struct gpw_session *s, struct gpw_wait *w);

/* Call done(s, arg, result) from the message loop once everything submitted to
 * `stream` so far has completed (result: success, or the driver's error). An
 * immediate error (stream capturing, sticky error, no memory) is returned and
 * `done` not called. If it is complete already, done is called before the return.
 * When the session ends first, done gets CUDA_ERROR_DEINITIALIZED.
 *
 * Where the last wait was of the message before, and none that had been put off came between, this
 * one ends with it: whoever has submitted something for the message that is dealt with takes the
 * two steps below. */
typedef void gpw_done(struct gpw_session *s, void *arg, CUresult result);
CUresult gpw_after_stream(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg);
/* The same in two steps, for work that uses what `done` gives back: all that can be refused
 * is refused by prepare, before the work is submitted. `r` is what submitting it gave, and is
 * returned: unless it is success, the wait is dropped. */
struct gpw_after;
CUresult gpw_after_prepare(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg,
                           struct gpw_after **after);
CUresult gpw_after_submitted(struct gpw_session *s, struct gpw_after *after, CUstream stream,
                             CUresult r);
/* The same where what is submitted says itself what a failed stream says, and no capture is under way
 * there. */
CUresult gpw_after_prepare_unasked(struct gpw_session *s, gpw_done *done, void *arg,
                                   struct gpw_after **after);
/* Submitted, and the GPU writes the number into the word when it is over, by which the driver is not
 * asked: only now and then, whether anything has failed. */
void gpw_after_written(struct gpw_session *s, struct gpw_after *after, const uint64_t *word,
                       uint64_t number);
/* Likewise once everything submitted to every stream of the current context has. */
CUresult gpw_after_context(struct gpw_session *s, gpw_done *done, void *arg);

/* One line to the log (stderr), level "info", "warn" or "error". */
void gpw_log(const char *level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
