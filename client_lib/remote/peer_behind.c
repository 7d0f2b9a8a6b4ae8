#include "peer_behind.h"

#include <pthread.h>

#include "context.h"
#include "handle.h"
#include "session.h"

/* Events that are remembered; another one of the same place takes it over. */
#define EVENTS 256u

/* The last copy that a session's work ended with. */
struct copy {
    uint64_t work; /* of the session, with the copy; 0: none */
    CUcontext context;
    uint64_t stream;
    struct gpc_route end;
    uint64_t end_work; /* of the end's session, with the copy */
};

struct event {
    CUevent event;
    uint64_t work; /* of its session, with the record */
    uint64_t graphs;
    struct gpc_route end;
    uint64_t end_work;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct copy copies[GP_SESSIONS_MAX];
static struct event events[EVENTS];

uint64_t gpc_behind_work(const struct gpc_session *s)
{
    return __atomic_load_n(&s->busy_count, __ATOMIC_ACQUIRE);
}

static uint64_t graphs(const struct gpc_session *s)
{
    return __atomic_load_n(&s->graph_launches, __ATOMIC_ACQUIRE);
}

/* Other threads' work may have come between. */
void gpc_behind_copy(const struct gpc_route *named, const struct gpc_route *writes,
                     uint64_t work_before, unsigned messages)
{
    const struct gpc_session *s = named->session;
    uint64_t work = gpc_behind_work(s);
    pthread_mutex_lock(&lock);
    copies[s->index] = (struct copy){.work = work == work_before + messages ? work : 0,
                                     .context = named->context,
                                     .stream = named->stream,
                                     .end = *writes,
                                     .end_work = gpc_behind_work(writes->session)};
    pthread_mutex_unlock(&lock);
}

uint64_t gpc_behind_now(struct gpc_route on, CUstream stream)
{
    uint64_t wire;
    if (gpc_session_count() < 2 || !on.session ||
        gpc_route_stream(&on, stream, &wire) != CUDA_SUCCESS)
        return 0;
    pthread_mutex_lock(&lock);
    const struct copy *c = &copies[on.session->index];
    bool is = c->work == gpc_behind_work(on.session) && c->stream == on.stream &&
              c->context == on.context;
    uint64_t work = is ? c->work : 0;
    pthread_mutex_unlock(&lock);
    return work;
}

void gpc_behind_recorded(const struct gpc_session *s, CUevent event, uint64_t work, bool adds)
{
    if (gpc_session_count() < 2 || !s)
        return;
    struct event *e = &events[gp_handle_index((uint64_t)event) % EVENTS];
    pthread_mutex_lock(&lock);
    struct copy *c = &copies[s->index];
    if (work && c->work == work) {
        c->work += adds;
        *e = (struct event){event, c->work, graphs(s), c->end, c->end_work};
    } else if (e->event == event) {
        e->event = NULL;
    }
    pthread_mutex_unlock(&lock);
}

/* Whether what would be recorded there stands for the copy alone: a default stream has all that came
 * since, of other streams, too. One of ours has copies only. */
static bool nothing_since(const struct event *e)
{
    return e->end.stream != GP_STREAM_LEGACY || e->end_work == gpc_behind_work(e->end.session);
}

bool gpc_behind_end(const struct gpc_route *waits, CUevent event, struct gpc_route *end)
{
    const struct event *e = &events[gp_handle_index((uint64_t)event) % EVENTS];
    const struct gpc_session *s = gpc_session_of_handle((uint64_t)event);
    pthread_mutex_lock(&lock);
    *end = e->end;
    /* a graph that ran since may have recorded it again */
    bool known = event && e->event == event && s && e->graphs == graphs(s);
    bool last = known && e->work == gpc_behind_work(s) && nothing_since(e);
    pthread_mutex_unlock(&lock);
    bool same = known && end->stream == waits->stream && end->context == waits->context;
    return known && end->session == waits->session &&
           (same || (last && gpc_context_live(end->context)));
}
