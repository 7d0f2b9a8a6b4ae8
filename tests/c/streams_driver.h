/* A driver whose streams finish when the test says so. */
#ifndef GP_STREAMS_DRIVER_H
#define GP_STREAMS_DRIVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loop.h"

#define STREAMS 4
#define EVENTS 256
#define CONTEXT_A ((CUcontext)(uintptr_t)0xa0)
#define CONTEXT_B ((CUcontext)(uintptr_t)0xb0)

/* Work is numbered; an event has passed once its stream has done that much. */
struct fake_stream {
    unsigned submitted, done;
    CUresult error;
    CUcontext context;
    CUstreamCaptureStatus capture;
    unsigned flags;
};

struct fake_gpu {
    struct fake_stream streams[STREAMS]; /* 0 is the legacy one */
    struct fake_event {
        bool alive, synchronized;
        unsigned stream, mark;
    } events[EVENTS];
    unsigned event_last, events_alive, records;
    CUresult create_fails, record_fails;
    CUcontext current;
    bool per_thread_busy;
    unsigned stream_queries;
};

extern struct fake_gpu gpu;
extern struct gpw_driver streams_driver;

CUstream stream_at(unsigned i);

#endif
