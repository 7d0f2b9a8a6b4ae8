/*
 * What is known of a stream without asking: that it is idle, because nothing was sent since an
 * answer said so, or that there are only uploads behind that. All of it is told by the numbers of
 * the session's messages, under its submit_lock.
 */
#include "session.h"

/* Nothing has been sent since this call was: the stream is as idle as it was then. */
void gpc_session_settle(const struct gpc_route *on, uint64_t seq)
{
    struct gpc_session *s = on->session;
    pthread_mutex_lock(&s->submit_lock);
    s->settled_stream = on->stream;
    s->settled_context = on->context; /* each has a default stream of its own */
    s->settled_seq = seq;
    s->uploaded_seq = 0;
    pthread_mutex_unlock(&s->submit_lock);
}

/* Under submit_lock: the marks are of this stream. */
static bool marks(const struct gpc_session *s, const struct gpc_route *on)
{
    return s->settled_stream == on->stream && s->settled_context == on->context;
}

bool gpc_session_settled(const struct gpc_route *on)
{
    struct gpc_session *s = on->session;
    pthread_mutex_lock(&s->submit_lock);
    bool settled = s->settled_seq && s->settled_seq == s->last_seq && marks(s, on);
    pthread_mutex_unlock(&s->submit_lock);
    return settled;
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
        s->settled_seq = s->last_seq;
    s->uploaded_seq = 0;
    pthread_mutex_unlock(&s->submit_lock);
}
