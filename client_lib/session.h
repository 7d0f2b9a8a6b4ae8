/*
 * The client's session: the connection to a worker, what the handshake said,
 * and the one submission order of all threads.
 */
#ifndef GPC_SESSION_H
#define GPC_SESSION_H

#include "call.h"
#include "transport/transport.h"

struct gpc_session {
    const struct gp_transport *transport;
    struct gp_channel *channel;
    struct gp_snapshot *snapshot;
    char server[256]; /* the address, for messages */
    char id[64];      /* as the server named it */
};

/* The session, or NULL before cuInit, in a forked child, or once it broke. */
struct gpc_session *gpc_session(void);
/* Connect (from cuInit, once). A CUDA error, after one line on stderr, else. */
CUresult gpc_session_open(void);
/* Tell the worker that the process ends, without blocking for long. */
void gpc_session_goodbye(void);
/* In a forked child: the session is the parent's. Sends nothing. */
void gpc_session_forget(void);
/* The devices of the snapshot. */
uint32_t gpc_device_count(void);
/* NULL if there is no such device. */
const struct gp_device_info *gpc_device_info(CUdevice device);
/* Memory can be shared with the worker (the transport is shm). */
bool gpc_session_shares(void);
/* The worker no longer has this context current: it has ended. */
void gpc_session_context_gone(CUcontext context);
/* Act on what the worker has sent unasked so far, without waiting. */
void gpc_session_poll(void);
/* How many messages have been read so far. */
uint64_t gpc_session_notices(void);
/* Block until more than `seen` messages have been read and acted on. */
CUresult gpc_session_wait_notice(uint64_t seen);
/* Note that the stream (as it travels) had nothing left to do when the call `seq` was
 * answered; and ask whether that still holds, because nothing was sent since. */
void gpc_session_settle(uint64_t stream, uint64_t seq);
bool gpc_session_settled(uint64_t stream);

/* The calling thread's state. */
struct gpc_thread {
    CUcontext *stack; /* contexts pushed, the last is current */
    unsigned depth, room;
    CUcontext current;
    bool per_thread_streams;
    uint32_t capture_mode; /* CUstreamCaptureMode */
    uint64_t last_answer;  /* seq of the last call that was waited for */
    struct gpc_thread_stream *streams; /* per-thread default streams, one per context */
};
struct gpc_thread *gpc_thread(void);
static inline CUcontext gpc_current(void)
{
    return gpc_thread()->current;
}
/* Device of a context (client handle), or -1. */
CUdevice gpc_context_device(CUcontext context);
/* Count of stream captures under way in this process: when 0, no stream is capturing. */
bool gpc_capture_active(void);

#endif
