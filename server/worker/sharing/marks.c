#include "marks.h"

#include "loop.h"
#include "monotonic.h"

/* Work between two marks, in time: little while others wait for the GPU, and never so
 * much that somebody who comes must wait long for what was submitted before. */
#define MARK_NS 4000000u
#define MARK_CONTENDED_NS 1000000u
#define EVERY_MOST 32u
/* Behind brief work as much as this may be ahead of who comes. */
#define BRIEF_NS 4000000u

bool gpw_mark_may(struct gpw_session *s, CUstream stream)
{
    CUstreamCaptureStatus status;
    return s->driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Behind what was submitted; where `asks` and a stream's work is over, nothing is recorded there, and
 * the program may ask the stream right behind its own wait. */
static void place(struct gpw_session *s, struct gpw_marks *m, bool asks)
{
    if (m->unmarked == 0 || m->count == GPW_MARKS_MOST)
        return;
    struct gpw_mark *mark = &m->at[(m->first + m->count) % GPW_MARKS_MOST];
    *mark = (struct gpw_mark){.context = m->context, .placed = gp_now_ns()};
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    if (before != m->context)
        s->driver->cuCtxSetCurrent(m->context);
    for (unsigned i = 0; i < m->stream_count; i++) {
        CUevent event;
        if (!gpw_mark_may(s, m->streams[i]) ||
            (asks && s->driver->cuStreamQuery(m->streams[i]) == CUDA_SUCCESS))
            continue;
        if (gpw_event_take(s, m->context, &event) != CUDA_SUCCESS) {
            m->lost = true;
            continue;
        }
        mark->events[mark->count++] = event;
        m->lost |= s->driver->cuEventRecord(event, m->streams[i]) != CUDA_SUCCESS;
    }
    if (before != m->context)
        s->driver->cuCtxSetCurrent(before);
    m->count++;
    m->unmarked = m->stream_count = 0;
}

void gpw_marks_place(struct gpw_session *s, struct gpw_marks *m)
{
    place(s, m, false);
}

void gpw_marks_close(struct gpw_session *s, struct gpw_marks *m)
{
    place(s, m, true);
}

void gpw_marks_stream(struct gpw_session *s, struct gpw_marks *m, CUcontext context,
                      CUstream stream)
{
    if (m->unmarked && context != m->context)
        gpw_marks_place(s, m);
    m->context = context;
    for (unsigned i = 0; i < m->stream_count; i++)
        if (m->streams[i] == stream)
            return;
    if (m->stream_count == GPW_MARK_STREAMS)
        gpw_marks_place(s, m);
    if (m->stream_count < GPW_MARK_STREAMS)
        m->streams[m->stream_count++] = stream;
    else
        m->lost = true;
}

void gpw_marks_submitted(struct gpw_session *s, struct gpw_marks *m)
{
    m->unmarked++;
    if (m->unmarked >= m->every)
        gpw_marks_place(s, m);
}

/* How much work lay before the mark decides how far apart the next ones are. */
static void adapt(struct gpw_marks *m, const struct gpw_mark *mark, bool contended, uint64_t now)
{
    uint64_t aim = contended ? MARK_CONTENDED_NS : MARK_NS;
    m->took = now - (mark->placed > m->passed ? mark->placed : m->passed);
    if (m->took < aim / 2 && m->every < EVERY_MOST)
        m->every *= 2;
    else if (m->took > aim * 2 && m->every > 1)
        m->every /= 2;
    m->passed = now;
}

unsigned gpw_marks_room(const struct gpw_marks *m)
{
    return m->brief ? GPW_MARKS_MOST : GPW_MARKS_FEW;
}

/*
 * Other processes of the tenant have the GPU by turns with this one, in the hardware's slices. What is
 * not ahead when its slice comes waits for the next one, so much of brief work is to be ahead. How brief
 * it is shows within a slice, where marks pass soon behind one another: the work of the latter began when
 * the former had not passed yet, or later. In front of a slice's first, others may have been on the GPU,
 * so one that takes long says nothing, but two in a row are long. And only who waits for room looks so
 * often that it can see either. `since`: when the oldest may have begun.
 */
static void learn(struct gpw_marks *m, unsigned passing, uint64_t since, uint64_t now)
{
    const uint64_t most = BRIEF_NS / GPW_MARKS_MOST;
    if (now - m->unpassed <= passing * most) {
        m->brief = true;
        m->slow = false;
    } else if (m->looked > since + most) {
        m->brief &= !m->slow;
        m->slow = true;
    }
}

static void oldest_end(struct gpw_marks *m)
{
    m->first = (m->first + 1) % GPW_MARKS_MOST;
    m->count--;
}

static bool has_passed(struct gpw_session *s, struct gpw_mark *mark)
{
    while (mark->count &&
           s->driver->cuEventQuery(mark->events[mark->count - 1]) != CUDA_ERROR_NOT_READY)
        gpw_event_give(s, mark->context, mark->events[--mark->count]);
    return mark->count == 0;
}

void gpw_marks_check(struct gpw_session *s, struct gpw_marks *m, bool contended)
{
    unsigned count = m->count;
    if (count == 0)
        return;
    uint64_t now = gp_now_ns(), placed = m->at[m->first].placed;
    uint64_t since = placed > m->passed ? placed : m->passed;
    while (m->count && has_passed(s, &m->at[m->first])) {
        adapt(m, &m->at[m->first], contended, now);
        oldest_end(m);
    }
    unsigned passing = count - m->count;
    if (passing && count >= gpw_marks_room(m))
        learn(m, passing, since, now);
    if (passing)
        m->unpassed = m->looked;
    m->looked = now;
}

bool gpw_marks_drained(const struct gpw_marks *m)
{
    return m->count == 0 && m->unmarked == 0 && m->launching == 0;
}

void gpw_marks_drop(struct gpw_session *s, struct gpw_marks *m)
{
    struct gpw_mark *mark = &m->at[m->first];
    m->lost |= mark->count > 0;
    while (mark->count)
        gpw_event_give(s, mark->context, mark->events[--mark->count]);
    uint64_t placed = mark->placed;
    oldest_end(m);
    if (m->count) /* what is behind it has waited for as long */
        m->at[m->first].placed = placed;
}

void gpw_marks_drop_all(struct gpw_session *s, struct gpw_marks *m)
{
    while (m->count)
        gpw_marks_drop(s, m);
    m->lost |= m->unmarked || m->launching;
    m->unmarked = m->stream_count = m->launching = 0;
}

/* Its work is marked if that may be now; either way nobody asks the driver for it any more,
 * which does not survive that. */
void gpw_marks_stream_ending(struct gpw_session *s, struct gpw_marks *m, CUstream stream)
{
    unsigned kept = 0;
    gpw_marks_place(s, m);
    m->lost |= m->unmarked > 0;
    for (unsigned i = 0; i < m->stream_count; i++)
        if (m->streams[i] != stream)
            m->streams[kept++] = m->streams[i];
    m->stream_count = kept;
}

void gpw_marks_context_ended(struct gpw_marks *m, CUcontext context)
{
    if (m->context == context)
        m->unmarked = m->stream_count = 0;
    for (unsigned n = 0; n < m->count; n++) {
        struct gpw_mark *mark = &m->at[(m->first + n) % GPW_MARKS_MOST];
        if (mark->context == context)
            mark->count = 0; /* its events go with it */
    }
}
