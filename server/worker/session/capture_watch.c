#include "capture_watch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "graph.h"
#include "handles.h"

struct step {
    const char *step, *what;
};

void gpw_capture_watch_open(struct gpw_session *s)
{
    const char *wanted = getenv("GPUPOOL_WATCH_CAPTURES");
    s->watches_captures = wanted && *wanted && *wanted != '0';
}

/* As the driver has it for this thread. */
static const char *thread_mode(struct gpw_session *s)
{
    static const char *const names[] = {"global", "thread-local", "relaxed"};
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED, ours;
    s->driver->cuThreadExchangeStreamCaptureMode(&mode);
    ours = mode;
    s->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return (unsigned)ours <= CU_STREAM_CAPTURE_MODE_RELAXED ? names[ours] : "unknown";
}

static void look_at(struct gpw_session *s, uint64_t id, uint64_t real, void *arg)
{
    const struct step *after = arg;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!s->watches_captures ||
        s->driver->cuStreamIsCapturing((CUstream)real, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return;
    s->watches_captures = false;
    gpw_log("warn",
            "the capture of stream %#" PRIx64 " became invalid in %s%s%s: this thread's mode %s, "
            "strict %d, strict_now %d",
            id, after->step, *after->what ? " " : "", after->what, thread_mode(s), s->strict,
            s->strict_now);
}

void gpw_capture_look(struct gpw_session *s, const char *step, const char *what)
{
    struct step after = {step, what ? what : ""};
    if (gpw_captures_any(s))
        gpw_handle_each(s, GP_HANDLE_STREAM, look_at, &after);
}
