/*
 * The client's sessions, one on each server of GPUPOOL_SERVER: the connection to a
 * worker, what the handshake said, and one submission order of all threads.
 *
 * Their devices are numbered one session after the other. A handle has its session's
 * index in its id, a device address lies in a window that only one session has; a call
 * that names neither goes to the session of the thread's current context.
 *
 * The locks of the client, outermost first. A thread takes those below while it holds those
 * above, never the reverse; locks of one rank are never held together, and none of two
 * sessions.
 *
 *   rank  lock                       guards
 *   1     process.c init_lock        opening the sessions
 *   2     context.c lock             primary contexts, how often they are retained *
 *         library.c modules_lock     the modules of libraries, by context *
 *         kernel.c lock              the kernels of images, functions of kernels *
 *   3     attributes.c lock          what is known of kernels and set on them *
 *         variable.c opening         managed variables becoming reachable *
 *   4     replica.c lock             libraries and kernels loaded on other hosts *
 *         peer_link.c lock           the links between workers *
 *         peer_move.c lock           streams of our own *
 *         mapped.c opening           pinned memory becoming mapped memory *
 *         ipc.c lock                 other processes' allocations that are open *
 *         pool.c lock                the devices' own pools, while they are made *
 *   5     image_load.c locks         images from their first piece until they are loaded *
 *   6     managed.c lock             managed memory: its blocks, whose bytes are newer where *
 *   7     session submit_lock        the order of submission: numbers, the channel's sending
 *                                    side, what the worker has current, what has settled
 *   8     captures.c lock            captures under way
 *         pinned.c lock              bytes on their way into memory that is not shared
 *   9     session wait_lock          the listed calls, their states, the right to read
 *   10    handle.c, capture.c lock, context.c records_lock, ipc.c pools_lock, ranges.c, spare.c, cache.c,
 *         host_function.c, trace.c, timeline.c, activity_table.c, and those of private_tables/:
 *                                    their own tables; nothing is locked under them
 *
 *   * held while calls are sent and waited for, so that one thread asks for all. The thread
 *     that reads never takes one of these: it acts on notices under ranks 8 to 10 alone. So do
 *     threads of a transport's that ask where bytes belong (landing.h), under a lock of its own.
 */
#ifndef GPC_SESSION_H
#define GPC_SESSION_H

#include <pthread.h>

#include "call.h"
#include "cancel.h"
#include "operations.h"
#include "thread_local.h"
#include "transport/transport.h"
#include "usual.h"

/* Streams, or contexts with all of theirs, that a wait has seen idle: the last few. */
#define GPC_IDLE_KNOWN 4

struct gpc_idle {
    CUcontext context;
    uint64_t stream; /* 0: every one of the context */
    uint64_t behind; /* the message that they are idle behind; 0: none */
};

struct gpc_session {
    const struct gp_transport *transport;
    struct gp_channel *channel;
    struct gp_snapshot *snapshot;
    char server[256];                  /* the address, for messages */
    char id[64];                       /* as the server named it */
    uint32_t index;                    /* among the sessions: in the ids of handles */
    CUdevice first;                    /* the ordinal of its first device */
    uint64_t window_begin, window_end; /* of all its devices' windows */
    uint32_t wire;                     /* the protocol that is spoken */
    struct gp_shared shared;           /* the operations that its worker has, too */
    bool knows_image_names;            /* those of now (images/image.c) */

    pthread_mutex_t submit_lock; /* held while a message is numbered and sent */
    uint64_t last_seq;
    uint64_t graph_launches; /* sent; read without the lock */
    CUcontext wire_context;  /* what the worker has current */
    bool several_contexts;   /* calls have been made in more than one; read without the lock */
    uint32_t wire_capture_mode;
    uint64_t settled_seq, settled_stream;
    CUcontext settled_context;
    uint64_t uploaded_seq; /* of settled_stream: 0 none */
    struct gpc_idle idle[GPC_IDLE_KNOWN];
    /* the last message that is not quiet, and the last that tidies; read without the lock */
    uint64_t busy_seq, tidied_seq;
    uint64_t busy_count;               /* of those that are not quiet; read without the lock */
    struct gpc_event_page *event_page; /* event_page.h; without a lock */
    bool event_page_wanted;
    struct gpc_completions *completions; /* completion.h; without a lock */
    unsigned completions_asked;          /* how often before there were any */

    pthread_mutex_t wait_lock; /* the waiting calls, and the right to read */
    pthread_cond_t wait_changed;
    struct gpc_call *waiting;
    bool reading;
    bool leaving; /* said goodbye: the end of the connection is no news */
    bool broken;
    char why[512];        /* the session ends, as the server says; for who has the right to read */
    uint64_t clock_ahead; /* of its machine's clock before ours, modulo 2^64 (activity.c) */
    uint64_t notices;     /* messages read, under wait_lock */
    int sticky, pending;  /* CUresult */
};

/* The sessions that cuInit has opened; 0 before it and in a forked child. */
unsigned gpc_session_count(void);
/* The session of this index, broken or not. */
struct gpc_session *gpc_session_at(uint32_t index);
/* GPUPOOL_SYNC: whether every call waits. */
bool gpc_session_sync(void);
/* The connection is over: say so once, let every listed call fail. */
void gpc_session_lose(struct gpc_session *s, const char *what);
/* Likewise, for an error of the transport's. */
void gpc_session_lose_for(struct gpc_session *s, int error);
/* Whether its worker can still be reached. */
bool gpc_session_works(const struct gpc_session *s);
/* Of a handle that the application holds. */
struct gpc_session *gpc_session_of_handle(uint64_t id);
/* NULL if there is no such device. */
struct gpc_session *gpc_session_of_device(CUdevice device);
/* And the device's ordinal there. */
struct gpc_session *gpc_device_find(CUdevice device, int32_t *ordinal);
/* The program's number of a session's device; -1: CUDA_VISIBLE_DEVICES hides it, or
 * there is none. */
CUdevice gpc_device_of(const struct gpc_session *s, uint32_t ordinal);
/* Of a device address; NULL if it lies in no session's windows. */
struct gpc_session *gpc_session_of_address(uint64_t address);
/* Where calls of this thread go that name nothing: the session of the current context, else
 * the first. NULL without sessions. */
struct gpc_session *gpc_session(void);

/* Connect to every server (from cuInit, once). A CUDA error, after one line on stderr,
 * else; then no session is open. */
CUresult gpc_sessions_open(void);
/* Tell the workers that the process ends, without blocking for long. */
void gpc_sessions_goodbye(void);
/* In a forked child: the sessions are the parent's. Sends nothing. */
void gpc_sessions_forget(void);
/* The name of the transport, or of the transports that differ. */
const char *gpc_sessions_transport(void);

/* For session_open.c: locks and numbers of a session that is about to greet. */
void gpc_session_start(struct gpc_session *s, bool sync);
void gpc_session_goodbye(struct gpc_session *s);

/* The devices of all sessions. */
uint32_t gpc_device_count(void);
/* NULL if there is no such device. */
const struct gp_device_info *gpc_device_info(CUdevice device);
/* Memory can be shared with the worker (the transport is shm). */
bool gpc_session_shares(const struct gpc_session *s);
/* The worker no longer has this context current: it has ended. */
void gpc_session_context_gone(CUcontext context);
/* Wait until the channel reads nothing more of what calls took along on a route that lends. */
CUresult gpc_session_take_back(struct gpc_session *s);
/* Act on what the worker has sent unasked so far, without waiting. */
void gpc_session_poll(struct gpc_session *s);
/* How many messages have been read so far. */
uint64_t gpc_session_notices(const struct gpc_session *s);
/* Block until more than `seen` messages have been read and acted on. */
CUresult gpc_session_wait_notice(struct gpc_session *s, uint64_t seen);
/* Note that the route's stream had nothing left to do when the call `seq` was answered, or all of a
 * context when this call was; and ask whether the stream still has not, because nothing but what is
 * quiet was sent since. */
void gpc_session_settle(const struct gpc_route *on, uint64_t seq);
void gpc_session_settle_context(const struct gpc_call *call);
bool gpc_session_settled(const struct gpc_route *on);
/* Whether all of the route's context was idle so, and still is. */
bool gpc_session_settled_context(const struct gpc_route *on);
/* Note that nothing was sent since the stream was settled but `messages` that copy bytes which
 * are taken over already to its device; and ask whether that still holds: the number of the
 * last message then, else 0. */
void gpc_session_note_upload(const struct gpc_route *on, unsigned messages);
uint64_t gpc_session_only_uploads(const struct gpc_route *on);
/* A gp_fence behind these was the last message: whatever follows finds the stream idle. */
void gpc_session_settle_fence(struct gpc_session *s);
/* Errors of calls that nobody waited for: the first stays until it is taken. Sticky ones
 * end a session: every call in a context of it answers them. */
void gpc_session_set_pending(struct gpc_session *s, CUresult error);
CUresult gpc_session_take_pending(struct gpc_session *s);
void gpc_session_set_sticky(struct gpc_session *s, CUresult error);
/* What calls say of a session that is no more. It ends with its process, too, beside which other
 * threads may still be at work: what ends them then must be what programs take for that. */
CUresult gpc_session_gone(const struct gpc_session *s);

/* A text of a server's, as far as there is room: it may go to a terminal, so nothing in it moves
 * the cursor, and it ends. */
void gpc_printable(char *to, size_t room, const char *from, uint32_t bytes);

/* The calling thread's state. */
struct gpc_thread {
    CUcontext *stack; /* contexts pushed, the last is current */
    unsigned depth, room;
    CUcontext current;
    bool per_thread_streams;
    uint32_t capture_mode;             /* CUstreamCaptureMode */
    uint64_t number;                   /* of the thread: none ever has another's */
    uint32_t correlation;              /* of its call, while somebody observes; 0: none */
    bool correlated;                   /* that has sent something */
    uint8_t host_memory;               /* of which kind what it copies is, a gp_cupti_memory */
    int id, process;                   /* the kernel's names, once somebody asked (timeline.c) */
    uint64_t last_answer;              /* seq of the last call that was waited for */
    int64_t spin_ns;                   /* so long it looks for what the GPU says (spin.h) */
    bool has_spun;                     /* and has learned from that */
    struct gp_usual waits;             /* those that were longer */
    int64_t crowded_until;             /* ns: somebody else needed its processor */
    unsigned inside;                   /* how deep in what a signal's handler must not enter */
    bool may_end;                      /* it waited for the GPU: here cancellation is acted upon */
    bool own_calls;                    /* it sends what the application did not ask for */
    bool host_function;                /* it runs one */
    bool in_log_callback;              /* it tells the program of an error */
    struct gpc_session *last;          /* of the last call, for its pending error */
    struct gpc_thread_stream *streams; /* per-thread default streams, one per context */
    void *told;                        /* of a capture: lists that the application may read */
};
/* Pointer-sized, so that the static TLS block has room for it even when this library is
 * opened late. */
extern __thread struct gpc_thread *gpc_thread_self
    __attribute__((GPC_TLS_MODEL, visibility("hidden")));
struct gpc_thread *gpc_thread_make(void);
static inline struct gpc_thread *gpc_thread(void)
{
    return gpc_thread_self ? gpc_thread_self : gpc_thread_make();
}
/* A thread in here holds submit_lock or may have the right to read: what a handler of a signal
 * calls meanwhile would wait for this very thread (gpc_enter). */
static inline int gpc_inside_begin(void)
{
    gpc_thread()->inside++;
    return gpc_cancel_off();
}
static inline void gpc_inside_end(int cancel)
{
    gpc_cancel_back(cancel);
    gpc_thread()->inside--;
}
/* This thread's default stream in the route's context, made on first use. */
CUresult gpc_thread_stream(const struct gpc_route *on, CUstream *stream);
static inline CUcontext gpc_current(void)
{
    return gpc_thread()->current;
}
/* Device of a context (client handle), or -1. */
CUdevice gpc_context_device(CUcontext context);
/* Which of the contexts it is that have had this handle, one after the other. */
uint32_t gpc_context_life(CUcontext context);
/* Some context of this session that the worker has, of the device if it has one there; NULL if
 * there is none. */
CUcontext gpc_context_any(const struct gpc_session *s, CUdevice device);
/* Count of stream captures under way in this process: when 0, no stream is capturing. */
bool gpc_capture_active(void);

#endif
