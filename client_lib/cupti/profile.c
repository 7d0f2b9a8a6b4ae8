#include "profile.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_numbers.h"
#include "monotonic.h"
#include "queue.h"

#define KINDS 64
#define STACK 64u        /* external ids of one kind that a thread has pushed */
#define EXTERNALS 6u     /* kinds of them */
#define DELIVER_AT 16384 /* records, and they are handed over without being asked for */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;       /* the queue, what is enabled */
static pthread_mutex_t delivering = PTHREAD_MUTEX_INITIALIZER; /* taken first */
static const struct gpc_activity_table *table;
static struct gpc_queue queue;
static uint64_t enabled; /* a bit for each kind */
static bool skipped[GPC_CUPTI_NUMBERS];
static gp_cupti_requested *requested;
static gp_cupti_completed *completed;
static gpc_cupti_clock *own_clock;
static struct gpc_clock_pair first, latest;
static uint64_t lost, hosts_lost;
static bool owed; /* GPUs did something since the last flush that was told of it all */
static uint64_t ended_ns[KINDS]; /* when a kind was switched off: it is told until then */
static uint64_t since_ns;        /* nobody wants what GPUs did before, for a timeline perhaps */
static const struct gpc_profile_listener *listener;
static bool listens_to_calls;
static uint32_t thread_type; /* gp_cupti_thread */

static __thread struct {
    uint64_t ids[STACK];
    unsigned depth;
} pushed[EXTERNALS];
static __thread bool busy; /* this thread runs the application's callbacks */

const struct gpc_activity_table *gpc_profile_link(void)
{
    static const CUuuid name = GPC_ACTIVITY_TABLE;
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    const struct gpc_activity_table *known = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
    const void *found = NULL;
    if (known)
        return known;
    pthread_mutex_lock(&once);
    if (!table) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        __typeof__(&cuGetExportTable) ask = library ? (__typeof__(&cuGetExportTable))dlsym(
                                                          library, "cuGetExportTable")
                                                    : NULL;
        if (ask && ask(&found, &name) == CUDA_SUCCESS)
            __atomic_store_n(&table, found, __ATOMIC_RELEASE);
    }
    known = table;
    pthread_mutex_unlock(&once);
    return known;
}

/* --- clocks --------------------------------------------------------------- */

uint64_t gpc_profile_now(void)
{
    return own_clock ? own_clock() : gp_real_ns();
}

static struct gpc_clock_pair look_at_clocks(void)
{
    uint64_t before = gp_now_ns(), theirs = gpc_profile_now();
    return (struct gpc_clock_pair){before + (gp_now_ns() - before) / 2, theirs};
}

/* Under the lock. */
static void clocks_begin(void)
{
    first = look_at_clocks();
    first.ours -= 1; /* two looks are never one */
    latest = look_at_clocks();
}

/* --- what comes ------------------------------------------------------------ */

static bool wants(uint32_t kind)
{
    return __atomic_load_n(&enabled, __ATOMIC_RELAXED) >> kind & 1;
}

/* A record may come when its kind has been switched off: the worker hands over what it has. */
static bool wanted_then(uint32_t kind, uint64_t start)
{
    return wants(kind) || start < __atomic_load_n(&ended_ns[kind], __ATOMIC_RELAXED);
}

static bool wants_record(const struct gp_activity_record *r)
{
    switch (r->kind) {
    case GP_ACTIVITY_KERNEL:
        return wanted_then(GP_CUPTI_CONCURRENT_KERNEL, r->start) ||
               wanted_then(GP_CUPTI_KERNEL, r->start);
    case GP_ACTIVITY_COPY:
        return wanted_then(gp_activity_between_gpus(r) ? GP_CUPTI_MEMCPY2 : GP_CUPTI_MEMCPY,
                           r->start);
    default:
        return wanted_then(GP_CUPTI_MEMSET, r->start);
    }
}

static void record(const struct gp_activity_record *r, const char *name, uint32_t correlation)
{
    if (!wants_record(r) || r->start < __atomic_load_n(&since_ns, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&lock);
    if (!gpc_queue_activity(&queue, r, name, correlation))
        lost++;
    pthread_mutex_unlock(&lock);
}

static int by_name(const void *name, const void *row)
{
    return strcmp(name, ((const struct gpc_driver_number *)row)->name);
}

static uint32_t number_of(const char *name)
{
    const struct gpc_driver_number *row = bsearch(name, gpc_driver_numbers, gpc_driver_number_count,
                                                  sizeof *row, by_name);
    return row ? row->number : 0;
}

static void deliver(void);
static void hold_buffer(void);

static uint32_t thread_id(void)
{
    if (gpc_profile_thread_type() == GP_CUPTI_THREAD_SYSTEM)
        return (uint32_t)gpc_observed_thread();
    return (uint32_t)(uintptr_t)pthread_self();
}

static const struct gpc_profile_listener *who_listens(void)
{
    return __atomic_load_n(&listener, __ATOMIC_ACQUIRE);
}

static void calling(struct gpc_observed *call)
{
    const struct gpc_profile_listener *l = who_listens();
    call->number = number_of(call->name);
    if (l)
        l->call(call, NULL);
}

/* What a call has to be told of it; returns whether there is much to deliver. */
static bool keep_call(const struct gpc_observed *call, const struct gp_cupti_api *api, bool shown,
                      bool sent)
{
    pthread_mutex_lock(&lock);
    if (wants(GP_CUPTI_EXTERNAL_CORRELATION) && (sent || shown))
        for (uint32_t kind = 0; kind < EXTERNALS; kind++)
            if (pushed[kind].depth &&
                !gpc_queue_external(&queue, kind, pushed[kind].ids[pushed[kind].depth - 1],
                                    call->correlation))
                lost++;
    if (shown && !gpc_queue_api(&queue, api))
        lost++;
    bool much = queue.count > DELIVER_AT;
    pthread_mutex_unlock(&lock);
    return much;
}

static void called(struct gpc_observed *call, CUresult result, bool sent)
{
    const struct gp_cupti_api api = {.kind = GP_CUPTI_DRIVER,
                                     .cbid = call->number,
                                     .start = call->began_ns,
                                     .end = gp_now_ns(),
                                     .process = (uint32_t)getpid(),
                                     .thread = thread_id(),
                                     .correlation = call->correlation,
                                     .result = (uint32_t)result};
    const struct gpc_profile_listener *l = who_listens();
    if (l)
        l->call(call, &result);
    bool shown = call->number && wants(GP_CUPTI_DRIVER) && !skipped[call->number];
    if (keep_call(call, &api, shown, sent) && !busy)
        deliver();
    else if (__atomic_load_n(&enabled, __ATOMIC_RELAXED))
        hold_buffer();
}

static void context(CUcontext ctx, bool made)
{
    const struct gpc_profile_listener *l = who_listens();
    if (l)
        l->context(ctx, made);
}

static const struct gpc_activity_observer observer = {.record = record,
                                                      .calling = calling,
                                                      .called = called,
                                                      .context = context};

/* --- what goes ------------------------------------------------------------- */

/* The application's buffer that is being filled. */
struct filling {
    uint8_t *bytes;
    size_t size, used, count, most;
};

/* The next one, and whether the application was asked for it; both under `delivering`. */
static struct filling held;
static bool holds;

static void hand_over(struct filling *f)
{
    if (f->bytes)
        completed(NULL, 0, f->bytes, f->size, f->used);
    *f = (struct filling){0};
}

static bool write_record(void *arg, const void *record_bytes, size_t size)
{
    struct filling *f = arg;
    if (f->bytes && (f->size - f->used < size || (f->most && f->count == f->most)))
        hand_over(f);
    if (!f->bytes)
        requested(&f->bytes, &f->size, &f->most);
    if (!f->bytes || f->size < size)
        return false;
    memcpy(f->bytes + f->used, record_bytes, size);
    f->used += size;
    f->count++;
    return true;
}

/* CUPTI asks for a buffer when the first record comes, and a profiler may flush only if it was
 * asked for one: PyTorch's does. */
static void hold_buffer(void)
{
    if (busy || __atomic_load_n(&holds, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&delivering);
    if (requested && !holds) {
        busy = true;
        requested(&held.bytes, &held.size, &held.most);
        busy = false;
        __atomic_store_n(&holds, true, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&delivering);
}

static void deliver(void)
{
    if (busy) /* the application flushes from within its own callback */
        return;
    pthread_mutex_lock(&delivering);
    struct filling f = held;
    held = (struct filling){0};
    __atomic_store_n(&holds, false, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    struct gpc_queue taken = queue;
    queue = (struct gpc_queue){.names = taken.names};
    latest = look_at_clocks();
    pthread_mutex_unlock(&lock);
    busy = true;
    size_t failed = taken.count;
    if (requested && completed) {
        failed = gpc_queue_write(&taken, &first, &latest, write_record, &f);
        hand_over(&f);
    }
    busy = false;
    gpc_queue_free(&taken);
    pthread_mutex_lock(&lock);
    lost += failed;
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&delivering);
}

/* --- what is asked --------------------------------------------------------- */

#define BIT(kind) (UINT64_C(1) << (kind))
#define OF_GPUS                                                                                    \
    (BIT(GP_CUPTI_KERNEL) | BIT(GP_CUPTI_CONCURRENT_KERNEL) | BIT(GP_CUPTI_MEMCPY) |               \
     BIT(GP_CUPTI_MEMCPY2) | BIT(GP_CUPTI_MEMSET))
/* Of overhead there is nothing to tell: CUPTI's own is the worker's. */
#define KNOWN                                                                                      \
    (OF_GPUS | BIT(GP_CUPTI_DRIVER) | BIT(GP_CUPTI_OVERHEAD) | BIT(GP_CUPTI_EXTERNAL_CORRELATION))

/* What is wanted has changed. What GPUs still owe is told of by its calls. Under the lock. */
static void observe(const struct gpc_activity_table *t)
{
    bool calls = enabled || owed || listens_to_calls;
    t->observe(calls || listener ? &observer : NULL, calls);
}

uint32_t gpc_profile_enable(uint32_t kind, bool on)
{
    const struct gpc_activity_table *t = gpc_profile_link();
    if (kind == 0 || kind >= KINDS)
        return GP_CUPTI_INVALID_KIND;
    if (!(KNOWN & BIT(kind)))
        return GP_CUPTI_NOT_SUPPORTED;
    if (!t)
        return GP_CUPTI_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    uint64_t before = enabled, now = on ? before | BIT(kind) : before & ~BIT(kind);
    __atomic_store_n(&enabled, now, __ATOMIC_RELAXED);
    if (before & ~now)
        __atomic_store_n(&ended_ns[kind], gp_now_ns(), __ATOMIC_RELAXED);
    if (!before)
        clocks_begin();
    bool owed_before = owed;
    owed = owed || (now & OF_GPUS);
    observe(t);
    if (!(before & OF_GPUS) && (now & OF_GPUS))
        __atomic_store_n(&since_ns, gp_now_ns(), __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    CUresult r = CUDA_SUCCESS;
    if (!(before & OF_GPUS) != !(now & OF_GPUS))
        r = t->record((now & OF_GPUS) != 0);
    if (on && r != CUDA_SUCCESS) { /* no GPU host has CUPTI */
        pthread_mutex_lock(&lock);
        __atomic_store_n(&enabled, before, __ATOMIC_RELAXED);
        owed = owed_before;
        observe(t);
        pthread_mutex_unlock(&lock);
    }
    return on && r != CUDA_SUCCESS ? GP_CUPTI_NOT_SUPPORTED : GP_CUPTI_SUCCESS;
}

uint32_t gpc_profile_skip(uint32_t number, bool skip)
{
    if (number == 0 || number >= GPC_CUPTI_NUMBERS)
        return GP_CUPTI_INVALID_PARAMETER;
    skipped[number] = skip;
    return GP_CUPTI_SUCCESS;
}

uint32_t gpc_profile_buffers(gp_cupti_requested *request, gp_cupti_completed *complete)
{
    if (!request || !complete)
        return GP_CUPTI_INVALID_PARAMETER;
    if (requested)
        deliver(); /* to the callbacks until now */
    pthread_mutex_lock(&delivering);
    requested = request;
    completed = complete;
    pthread_mutex_unlock(&delivering);
    return GP_CUPTI_SUCCESS;
}

uint32_t gpc_profile_clock(gpc_cupti_clock *clock)
{
    if (!clock)
        return GP_CUPTI_INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    own_clock = clock;
    clocks_begin();
    pthread_mutex_unlock(&lock);
    return GP_CUPTI_SUCCESS;
}

uint32_t gpc_profile_threads(uint32_t type)
{
    if (type > GP_CUPTI_THREAD_SYSTEM)
        return GP_CUPTI_NOT_SUPPORTED;
    __atomic_store_n(&thread_type, type, __ATOMIC_RELAXED);
    return GP_CUPTI_SUCCESS;
}

uint32_t gpc_profile_thread_type(void)
{
    return __atomic_load_n(&thread_type, __ATOMIC_RELAXED);
}

uint32_t gpc_profile_flush(bool forced)
{
    const struct gpc_activity_table *t = gpc_profile_link();
    uint64_t all = 0;
    if (!t)
        return GP_CUPTI_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    bool on = enabled & OF_GPUS, ask = on || owed;
    owed = on;
    pthread_mutex_unlock(&lock);
    if (ask) { /* what is over is had whole */
        t->flush(forced || !on, &all);
        pthread_mutex_lock(&lock);
        lost += all > hosts_lost ? all - hosts_lost : 0;
        hosts_lost = all;
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    observe(t);
    pthread_mutex_unlock(&lock);
    deliver();
    return GP_CUPTI_SUCCESS;
}

uint64_t gpc_profile_dropped(void)
{
    pthread_mutex_lock(&lock);
    uint64_t n = lost;
    lost = 0;
    pthread_mutex_unlock(&lock);
    return n;
}

uint32_t gpc_profile_push(uint32_t kind, uint64_t id)
{
    if (kind == 0 || kind >= EXTERNALS)
        return GP_CUPTI_INVALID_PARAMETER;
    if (pushed[kind].depth == STACK)
        return GP_CUPTI_OUT_OF_MEMORY;
    pushed[kind].ids[pushed[kind].depth++] = id;
    return GP_CUPTI_SUCCESS;
}

uint32_t gpc_profile_pop(uint32_t kind, uint64_t *last)
{
    if (kind == 0 || kind >= EXTERNALS)
        return GP_CUPTI_INVALID_PARAMETER;
    if (pushed[kind].depth == 0)
        return GP_CUPTI_QUEUE_EMPTY;
    uint64_t id = pushed[kind].ids[--pushed[kind].depth];
    if (last)
        *last = id;
    return GP_CUPTI_SUCCESS;
}

void gpc_profile_listen(const struct gpc_profile_listener *whom, bool calls)
{
    const struct gpc_activity_table *t = gpc_profile_link();
    pthread_mutex_lock(&lock);
    __atomic_store_n(&listener, whom, __ATOMIC_RELEASE);
    listens_to_calls = whom && calls;
    if (t)
        observe(t);
    pthread_mutex_unlock(&lock);
}

void gpc_profile_end(void)
{
    for (uint32_t kind = 1; kind < KINDS; kind++)
        if (wants(kind))
            gpc_profile_enable(kind, false);
    deliver();
    pthread_mutex_lock(&lock);
    owed = false;
    pthread_mutex_unlock(&lock);
    gpc_profile_listen(NULL, false);
}
