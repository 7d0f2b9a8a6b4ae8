/*
 * One call on its way to the worker and back. The generated gpc_wire_*
 * functions fill a struct gpc_call and hand it to one of the senders below;
 * every exported function starts with gpc_enter and ends with gpc_leave.
 */
#ifndef GPC_CALL_H
#define GPC_CALL_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "gp_messages.h"
#include "gp_ops.h"
#include "route.h"
#include "snapshot.h"

#define GPC_CALL_TAILS 5
#define GPC_CALL_ADDRESSES 2

/* Where an out[N] parameter of the reply goes. */
struct gpc_call_room {
    void *to;
    void *own;          /* where the application has it (gpc_managed_view) */
    uint32_t room;      /* bytes at `to` */
    uint32_t got;       /* bytes that came, at most `room` */
    uint32_t length_at; /* offset of the n_ field in the reply structure */
};

/* Where a call is on its way. One that is waited for is listed in its session while it is
 * SENT, belongs to the thread that reads while it is TAKEN, and is its caller's again from
 * DONE or FAILED on. Under the session's wait_lock once it is listed. */
enum gpc_call_state {
    GPC_CALL_QUEUED, /* its caller's: not numbered yet */
    GPC_CALL_SENT,   /* numbered, listed and on its way, or about to be */
    GPC_CALL_TAKEN,  /* its answer has come and is being filled in */
    GPC_CALL_DONE,   /* answered, whatever the answer */
    GPC_CALL_FAILED, /* no answer will come: not sent, or the session is lost */
};

struct gpc_call {
    struct gpc_route route;
    struct gp_header *request; /* op is set; size, seq and flags are filled when sent */
    uint32_t request_size;     /* of the fixed part */
    struct iovec in[GPC_CALL_TAILS];
    unsigned in_count;
    struct gp_reply *reply; /* NULL: nothing but the result is wanted */
    uint32_t reply_size;
    struct gpc_call_room out[GPC_CALL_TAILS];
    unsigned out_count;

    uint64_t only_behind; /* not sent, NOT_READY, unless this is the last message; 0: always */
    /* likewise unless nothing that tidies was sent behind message `tidied` (memory/spare.h) */
    bool only_tidied;
    uint64_t tidied;
    /* the device addresses that it names; more than there is room for count, too */
    uint64_t address[GPC_CALL_ADDRESSES];
    unsigned address_count;
    uint64_t salt;    /* of a cached call: the state that its answer depends on */
    bool lands;       /* its answer is, or has been, written to where it belongs */
    bool part_of_one; /* one of several pieces that count as one round trip */

    /* the session's, while the call waits */
    uint64_t seq;
    enum gpc_call_state state;
    CUresult result;
    struct gpc_call *next;
};

/* Add `count` elements of `size` bytes as a tail. INVALID_VALUE if they are more
 * than one message carries. `*n` gets the bytes. */
CUresult gpc_call_in(struct gpc_call *call, const void *from, uint64_t count, size_t size,
                     uint32_t *n);
CUresult gpc_call_text(struct gpc_call *call, const char *text, uint32_t *n);
CUresult gpc_call_out(struct gpc_call *call, void *to, uint64_t count, size_t size,
                      size_t length_at);

/* What a worker says came of something: programs look errors up in tables, so it is one. */
static inline CUresult gpc_result_from(int32_t said)
{
    return said < 0 || said > CUDA_ERROR_UNKNOWN ? CUDA_ERROR_UNKNOWN : (CUresult)said;
}

/* Send and do not wait. A failure shows later, as the session's pending error
 * (at once with GPUPOOL_SYNC=1). The bytes are taken over before it returns. */
CUresult gpc_call_post(struct gpc_call *call);
/* Send and wait for the answer: one round trip. */
CUresult gpc_call_exchange(struct gpc_call *call);
/* The two halves of an exchange, so that several can be under way (each still
 * counts as a round trip unless `gpc_call_begin` says it belongs to one). The call
 * and what it points to must stay in place until gpc_call_finish. */
CUresult gpc_call_begin(struct gpc_call *call);
CUresult gpc_call_finish(struct gpc_call *call);
/* Their parts, for a wait that something else than the answer may end (completion.h): block until
 * the call is answered or lost; and note that it was waited for since `begin`, and who ended that. */
void gpc_call_await(const struct gpc_call *call);
/* The same, until `deadline_ns` or somewhat longer; whether it is answered or lost. */
bool gpc_call_await_until(const struct gpc_call *call, int64_t deadline_ns);
/* Read what has come, unless another thread reads; whether the call is over by now. */
bool gpc_call_poll(const struct gpc_call *call);
void gpc_call_waited(const struct gpc_call *call, uint64_t begin, bool gpu_told);
/* The answer of an equal earlier call, else an exchange whose answer is kept. */
CUresult gpc_call_cached(struct gpc_call *call);
/* Send a call that may be refused: wait the first time, post it when an equal one has
 * succeeded before. */
CUresult gpc_call_tried(struct gpc_call *call);
/* Forget the kept answers of one operation. */
void gpc_cache_forget(uint16_t op);

enum gpc_needs {
    GPC_NEEDS_NONE,
    GPC_NEEDS_INIT,    /* cuInit has succeeded in this process */
    GPC_NEEDS_CONTEXT, /* and the thread has a current context */
};

/* Count the call and say whether it may go on: NOT_INITIALIZED, INVALID_CONTEXT,
 * the session's sticky error. */
CUresult gpc_enter(uint16_t op, enum gpc_needs needs);
/* As gpc_enter with GPC_NEEDS_CONTEXT for a call on a stream, whose route `on` becomes: an
 * explicit stream's context counts, whatever the thread has current. */
CUresult gpc_enter_stream(struct gpc_route *on, uint16_t op, CUstream stream);
/* For a call that an event names: it needs no current context. */
CUresult gpc_enter_event(uint16_t op, CUevent event);
/* `result`, or the pending error of an earlier asynchronous call if `result` is
 * success. */
CUresult gpc_leave(CUresult result);
/* Count a call that is answered in place and needs no state. */
void gpc_count(uint16_t op);
/* Count and answer NOT_SUPPORTED, with one line in the log the first time. */
CUresult gpc_refuse(uint16_t op);
/* As gpc_refuse for a case of an implemented function; `why` is one clause. */
CUresult gpc_refuse_because(uint16_t op, const char *why);

/* Whether stream 0 means the per-thread default stream on this thread (inside a
 * _ptsz or _ptds function); returns the former state. */
bool gpc_per_thread_streams(bool on);
/* One line on stderr, if GPUPOOL_LOG asks for that level. */
enum gpc_log_level { GPC_LOG_ERROR, GPC_LOG_WARN, GPC_LOG_INFO, GPC_LOG_DEBUG };
void gpc_log(enum gpc_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* NULL, or who is told of errors and warnings whether they are asked for or not (error_log.c). */
extern void (*gpc_log_also)(enum gpc_log_level level, const char *line);

#endif
