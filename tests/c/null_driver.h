/*
 * A session of the worker's over a driver that does nothing and counts what it is asked: its loop,
 * gate, dispatch, handlers and books are the real ones, its transport hands over the same message
 * again and again. So what a message costs is what the worker adds. For bench/messages.c and
 * test_message_cost.c; one to a process.
 */
#ifndef NULL_DRIVER_H
#define NULL_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

/* What of the driver is counted, and asked at all once the session stands. */
#define NULL_CALLS(F)                                                                              \
    F(cuLaunchKernel)                                                                              \
    F(cuEventRecord)                                                                               \
    F(cuStreamWaitEvent)                                                                           \
    F(cuMemsetD8Async)                                                                             \
    F(cuMemcpyAsync)                                                                               \
    F(cuMemcpyDtoHAsync)                                                                           \
    F(cuPointerGetAttribute)                                                                       \
    F(cuEventQuery)                                                                                \
    F(cuEventSynchronize)                                                                          \
    F(cuEventCreate)                                                                               \
    F(cuEventDestroy_v2)                                                                           \
    F(cuStreamIsCapturing)                                                                         \
    F(cuStreamQuery)                                                                               \
    F(cuStreamWriteValue64)                                                                        \
    F(cuCtxGetCurrent)                                                                             \
    F(cuCtxSetCurrent)                                                                             \
    F(cuCtxGetDevice)                                                                              \
    F(cuStreamGetCtx)                                                                              \
    F(cuMemCreate)                                                                                 \
    F(cuMemRelease)                                                                                \
    F(cuMemMap)                                                                                    \
    F(cuMemUnmap)                                                                                  \
    F(cuMemSetAccess)

enum null_call {
#define NULL_ENUM(name) NULL_##name,
    NULL_CALLS(NULL_ENUM)
#undef NULL_ENUM
        NULL_CALLS_COUNT
};
extern const char *const null_call_names[NULL_CALLS_COUNT];

/* Messages, and the call of the driver that each is for. */
enum null_kind {
    NULL_LAUNCH,
    NULL_LAUNCH_LEGACY, /* in the stream that needs no handle */
    NULL_RECORD,
    NULL_WAIT,
    NULL_SET,
    NULL_COPY, /* on the device */
    NULL_READ, /* from there into pinned memory */
    NULL_KINDS
};
extern const char *const null_kind_names[NULL_KINDS];
extern const enum null_call null_kind_call[NULL_KINDS];

struct null_counts {
    uint64_t calls[NULL_CALLS_COUNT];
};

/* Open the session: with a turn on a GPU that nobody else wants if `seat`, else without a board.
 * Aborts where it cannot. */
void null_session_open(bool seat);
/* Whether the GPU is a little behind, or has always done what was submitted. */
void null_session_behind(bool behind);
/* Have the worker handle `count` messages of a kind; what it has asked when it waits for more.
 * `between` is called before each; NULL: nothing is. */
struct null_counts null_session_run(enum null_kind kind, unsigned count, void (*between)(void));
/* Likewise for launches each of which is waited for, as a client does that looks for what the GPU
 * writes: the next one comes soon behind that. `signals`: no answer is sent to it. */
struct null_counts null_session_waits(bool signals, unsigned count, void (*between)(void));
/* Whether a fence in the stream that such messages name, but for the legacy one, lets one through;
 * `every`: one that holds back all. */
bool null_session_fence(enum null_kind kind, bool every);
/* Likewise for allocations of so many bytes, each freed before the next. */
struct null_counts null_session_churn(uint64_t bytes, unsigned count);

#endif
