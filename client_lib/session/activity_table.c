/*
 * The client's side of our libcupti.so: which call asked for what a GPU did, and who is told.
 *
 * A call has a number, its correlation, while somebody observes; of the messages it sends those
 * are remembered, so that a record that names a message finds the call.
 */
#include "activity_table.h"

#include <pthread.h>

#include "activity.h"
#include "context.h"
#include "cupti.h"
#include "module.h"
#include "observe.h"

#define SENT 65536u /* the latest messages; of earlier ones the call is not known */

static const struct gpc_activity_observer *observer;
static bool wanted;
static uint32_t last_correlation;
static pthread_mutex_t sent_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t seq;
    uint32_t session, correlation;
    uint8_t host_memory;
} sent[SENT];

bool gpc_activity_wanted(void)
{
    return __atomic_load_n(&wanted, __ATOMIC_ACQUIRE);
}

static const struct gpc_activity_observer *who(void)
{
    return __atomic_load_n(&observer, __ATOMIC_ACQUIRE);
}

/* Whoever is told may make calls, which have numbers of their own. */
void gpc_activity_call_begin(struct gpc_observed *call)
{
    struct gpc_thread *t = gpc_thread();
    const struct gpc_activity_observer *o = who();
    call->correlation = __atomic_add_fetch(&last_correlation, 1, __ATOMIC_RELAXED);
    if (o)
        o->calling(call);
    t->correlation = call->correlation;
    t->correlated = false;
    t->host_memory = GP_CUPTI_MEMORY_UNKNOWN;
}

void gpc_activity_call_end(struct gpc_observed *call, CUresult result)
{
    struct gpc_thread *t = gpc_thread();
    const struct gpc_activity_observer *o = who();
    t->correlation = 0;
    if (o)
        o->called(call, result, t->correlated);
}

void gpc_activity_context(CUcontext context, bool made)
{
    const struct gpc_activity_observer *o = who();
    if (o)
        o->context(context, made);
}

void gpc_activity_host_memory(uint8_t memory)
{
    gpc_thread()->host_memory = memory;
}

void gpc_activity_note_sent(const struct gpc_session *s, uint64_t seq)
{
    struct gpc_thread *t = gpc_thread();
    if (!t->correlation)
        return;
    t->correlated = true;
    pthread_mutex_lock(&sent_lock);
    sent[seq % SENT].seq = seq;
    sent[seq % SENT].session = s->index;
    sent[seq % SENT].correlation = t->correlation;
    sent[seq % SENT].host_memory = t->host_memory;
    pthread_mutex_unlock(&sent_lock);
}

void gpc_activity_tell(const struct gpc_session *s, const struct gp_activity_record *r,
                       const char *name)
{
    const struct gpc_activity_observer *o = who();
    struct gp_activity_record told = *r;
    pthread_mutex_lock(&sent_lock);
    uint64_t at = r->seq % SENT;
    bool known = r->seq && sent[at].seq == r->seq && sent[at].session == s->index;
    uint32_t correlation = known ? sent[at].correlation : 0;
    uint8_t memory = known ? sent[at].host_memory : GP_CUPTI_MEMORY_UNKNOWN;
    pthread_mutex_unlock(&sent_lock);
    if (memory && r->kind == GP_ACTIVITY_COPY && r->copy == GP_CUPTI_HTOD)
        told.from = memory;
    if (memory && r->kind == GP_ACTIVITY_COPY && r->copy == GP_CUPTI_DTOH)
        told.to = memory;
    if (o)
        o->record(&told, name, correlation);
}

static void set(enum gpc_observer what, bool on)
{
    if (on)
        gpc_observe(what);
    else
        gpc_observe_no_more(what);
}

static void observe(const struct gpc_activity_observer *o, bool calls)
{
    __atomic_store_n(&observer, o, __ATOMIC_RELEASE);
    set(GPC_OBSERVER_CONTEXTS, o);
    set(GPC_OBSERVER_ACTIVITY, o && calls);
}

static CUresult record(bool on)
{
    __atomic_store_n(&wanted, on, __ATOMIC_RELEASE);
    if (gpc_session_count() == 0)
        return CUDA_SUCCESS; /* with the sessions */
    if (on)
        return gpc_activity_start();
    if (!GPC_OBSERVED(GPC_OBSERVER_TIMELINE))
        gpc_activity_stop();
    return CUDA_SUCCESS;
}

static CUresult flush(bool forced, uint64_t *dropped)
{
    if (dropped)
        *dropped = 0;
    return gpc_session_count() ? gpc_activity_flush(forced, dropped) : CUDA_SUCCESS;
}

static const char *kernel(CUfunction function)
{
    const struct gpc_kernel *k = gpc_kernel_of(function);
    return k ? k->name : NULL;
}

const struct gpc_activity_table gpc_activity_table = {.observe = observe,
                                                      .record = record,
                                                      .flush = flush,
                                                      .current = gpc_current_context,
                                                      .number = gpc_context_unique_id,
                                                      .device = gpc_context_device,
                                                      .kernel = kernel};
