/*
 * What is known of a stream without asking: that it is idle, because nothing but what is quiet was
 * sent since an answer said so, or that there are only uploads behind that. All of it is told by the
 * numbers of the session's messages, under its submit_lock.
 *
 * The worker could not always say so: what it records there itself, behind work that is over, may
 * still be under way when the program asks.
 */
#include "message_fields.h"
#include "session.h"

/* Under submit_lock. What was seen longest ago makes room. */
static void idle_note(struct gpc_session *s, CUcontext context, uint64_t stream, uint64_t behind)
{
    struct gpc_idle *at = &s->idle[0];
    for (unsigned i = 0; i < GPC_IDLE_KNOWN; i++) {
        struct gpc_idle *each = &s->idle[i];
        if (each->behind && each->context == context && each->stream == stream) {
            at = each;
            break;
        }
        if (each->behind < at->behind)
            at = each;
    }
    *at = (struct gpc_idle){.context = context, .stream = stream, .behind = behind};
}

void gpc_session_settle_context(const struct gpc_call *call)
{
    struct gpc_session *s = call->route.session;
    uint16_t at = gp_op_table[call->request->op].idle_at;
    CUcontext named = at ? (CUcontext)gp_message_id(call->request, at) : NULL;
    pthread_mutex_lock(&s->submit_lock);
    idle_note(s, named ? named : call->route.context, 0, call->seq);
    pthread_mutex_unlock(&s->submit_lock);
}

/* Nothing has been sent since this call was: the stream is as idle as it was then. */
void gpc_session_settle(const struct gpc_route *on, uint64_t seq)
{
    struct gpc_session *s = on->session;
    pthread_mutex_lock(&s->submit_lock);
    s->settled_stream = on->stream;
    s->settled_context = on->context; /* each has a default stream of its own */
    s->settled_seq = seq;
    s->uploaded_seq = 0;
    idle_note(s, on->context, on->stream, seq);
    pthread_mutex_unlock(&s->submit_lock);
}

/* Under submit_lock: the marks are of this stream. */
static bool marks(const struct gpc_session *s, const struct gpc_route *on)
{
    return s->settled_stream == on->stream && s->settled_context == on->context;
}

static bool is_settled(const struct gpc_route *on, uint64_t stream)
{
    struct gpc_session *s = on->session;
    pthread_mutex_lock(&s->submit_lock);
    bool settled = false;
    for (unsigned i = 0; i < GPC_IDLE_KNOWN && !settled; i++) {
        const struct gpc_idle *each = &s->idle[i];
        settled = each->behind && each->behind >= s->busy_seq && each->context == on->context &&
                  (each->stream == 0 || each->stream == stream);
    }
    pthread_mutex_unlock(&s->submit_lock);
    return settled;
}

bool gpc_session_settled(const struct gpc_route *on)
{
    return is_settled(on, on->stream);
}

bool gpc_session_settled_context(const struct gpc_route *on)
{
    return is_settled(on, 0);
}

void gpc_session_note_upload(const struct gpc_route *on, unsigned messages)
{
    struct gpc_session *s = on->session;
    pthread_mutex_lock(&s->submit_lock);
    uint64_t before = s->uploaded_seq ? s->uploaded_seq : s->settled_seq;
    if (before && before + messages == s->last_seq && marks(s, on))
        s->uploaded_seq = s->last_seq;
    pthread_mutex_unlock(&s->submit_lock);
}

uint64_t gpc_session_only_uploads(const struct gpc_route *on)
{
    struct gpc_session *s = on->session;
    pthread_mutex_lock(&s->submit_lock);
    bool only = s->uploaded_seq && s->uploaded_seq == s->last_seq && marks(s, on);
    uint64_t last = s->last_seq;
    pthread_mutex_unlock(&s->submit_lock);
    return only && !gpc_session_sync() ? last : 0;
}

void gpc_session_settle_fence(struct gpc_session *s)
{
    pthread_mutex_lock(&s->submit_lock);
    if (s->uploaded_seq && s->uploaded_seq + 1 == s->last_seq)
        idle_note(s, s->settled_context, s->settled_stream, s->settled_seq = s->last_seq);
    s->uploaded_seq = 0;
    pthread_mutex_unlock(&s->submit_lock);
}
