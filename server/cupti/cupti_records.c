#include "cupti_records.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cupti.h"
#include "monotonic.h"

#define BUFFER ((size_t)1 << 20)
#define BUFFERS (GPA_BYTES / BUFFER)
#define SEQS 65536u /* calls of which it is known which message they are for, the latest */

/* The call of the driver that CUPTI knows by `correlation`. */
struct asked {
    uint32_t correlation;
    uint64_t seq;
};

static struct cupti {
    void *library;
#define X(name, parameters) uint32_t(*name) parameters;
    GP_CUPTI_FUNCTIONS(X)
#undef X
} cupti;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* CUPTI fills buffers on its threads */
static struct buffer {
    uint8_t *bytes; /* BUFFER of them */
    size_t valid;
    enum { FREE, FILLING, FULL } state;
    uint64_t order; /* in which they became full */
} buffers[BUFFERS];
static uint64_t last_order, dropped;
static bool on;
static struct asked *asked; /* by correlation, the message's thread alone */
static uint64_t ahead_ns;   /* of CUPTI's clock before ours, modulo 2^64 */

static bool find(void *library)
{
    bool all = true;
#define X(name, parameters)                                                                        \
    cupti.name = (uint32_t(*) parameters)dlsym(library, #name);                                    \
    all = all && cupti.name;
    GP_CUPTI_FUNCTIONS(X)
#undef X
    return all;
}

bool gpa_open(void *driver, const char *path, char *why, size_t size)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    if (cupti.library)
        return true;
    void *library = find(driver) ? driver : NULL;
    for (size_t i = 0; !library && i < (path ? 1 : 2); i++) {
        void *opened = dlopen(path ? path : names[i], RTLD_NOW | RTLD_LOCAL);
        if (opened && find(opened))
            library = opened;
        else if (opened)
            dlclose(opened);
    }
    cupti.library = library;
    if (!library)
        snprintf(why, size,
                 "the GPU host has no CUPTI at %s; its server's setting `cupti` names it",
                 path ? path : names[0]);
    return library != NULL;
}

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = NULL;
    *size = *records = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUFFERS && !*buffer; i++)
        if (on && buffers[i].bytes && buffers[i].state == FREE) {
            buffers[i].state = FILLING;
            *buffer = buffers[i].bytes;
            *size = BUFFER;
        }
    pthread_mutex_unlock(&lock);
}

static void completed(CUcontext context, uint32_t stream, uint8_t *bytes, size_t size, size_t valid)
{
    size_t lost = 0;
    (void)size;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUFFERS; i++)
        if (bytes && buffers[i].bytes == bytes) {
            buffers[i].valid = valid <= BUFFER ? valid : 0;
            buffers[i].state = FULL;
            buffers[i].order = ++last_order;
        }
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &lost) == GP_CUPTI_SUCCESS)
        dropped += lost;
    pthread_mutex_unlock(&lock);
}

/* Of CUPTI's clock, by looking at ours before and behind; the shortest of some looks. */
static void compare_clocks(void)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t theirs = 0, before = gp_now_ns();
        if (cupti.cuptiGetTimestamp(&theirs) != GP_CUPTI_SUCCESS)
            return;
        uint64_t took = gp_now_ns() - before;
        if (took < best) {
            best = took;
            ahead_ns = theirs - (before + took / 2);
        }
    }
}

/* CUPTI says which message a call is for only of calls that it records. */
static const uint32_t kinds[] = {GP_CUPTI_CONCURRENT_KERNEL,
                                 GP_CUPTI_MEMCPY,
                                 GP_CUPTI_MEMCPY2,
                                 GP_CUPTI_MEMSET,
                                 GP_CUPTI_DRIVER,
                                 GP_CUPTI_EXTERNAL_CORRELATION};
#define KINDS (sizeof kinds / sizeof kinds[0])

static void buffers_free(void)
{
    for (size_t i = 0; i < BUFFERS; i++)
        if (buffers[i].state != FILLING) { /* CUPTI still has those */
            free(buffers[i].bytes);
            buffers[i] = (struct buffer){0};
        }
}

static bool buffers_make(void)
{
    for (size_t i = 0; i < BUFFERS; i++)
        if (!buffers[i].bytes && !(buffers[i].bytes = aligned_alloc(8, BUFFER)))
            return false;
    if (!asked)
        asked = calloc(SEQS, sizeof *asked);
    return asked != NULL;
}

bool gpa_start(char *why, size_t size)
{
    if (on)
        return true;
    pthread_mutex_lock(&lock);
    on = buffers_make();
    dropped = 0;
    if (!on)
        buffers_free();
    pthread_mutex_unlock(&lock);
    uint32_t r = on ? cupti.cuptiActivityRegisterCallbacks(requested, completed)
                    : GP_CUPTI_OUT_OF_MEMORY;
    for (size_t i = 0; r == GP_CUPTI_SUCCESS && i < KINDS; i++)
        r = cupti.cuptiActivityEnable(kinds[i]);
    if (r != GP_CUPTI_SUCCESS) {
        snprintf(why, size, "CUPTI of the GPU host answers %u to the recording of activity", r);
        gpa_stop();
        return false;
    }
    compare_clocks();
    return true;
}

void gpa_stop(void)
{
    if (!on)
        return;
    for (size_t i = 0; i < KINDS; i++)
        cupti.cuptiActivityDisable(kinds[i]);
    cupti.cuptiActivityFlushAll(GP_CUPTI_FLUSH_FORCED);
    pthread_mutex_lock(&lock);
    on = false;
    buffers_free();
    pthread_mutex_unlock(&lock);
    free(asked);
    asked = NULL;
}

bool gpa_on(void)
{
    return on;
}

void gpa_enter(uint64_t seq)
{
    if (on)
        cupti.cuptiActivityPushExternalCorrelationId(GP_CUPTI_CUSTOM0, seq);
}

void gpa_leave(void)
{
    if (on)
        cupti.cuptiActivityPopExternalCorrelationId(GP_CUPTI_CUSTOM0, NULL);
}

void gpa_flush(bool forced)
{
    if (on)
        cupti.cuptiActivityFlushAll(forced ? GP_CUPTI_FLUSH_FORCED : 0);
}

uint64_t gpa_dropped(void)
{
    return __atomic_load_n(&dropped, __ATOMIC_RELAXED);
}

static uint64_t seq_of(uint32_t correlation)
{
    const struct asked *a = &asked[correlation % SEQS];
    return a->correlation == correlation ? a->seq : 0;
}

/* Of what has not ended CUPTI gives 0. */
static uint64_t our_time(uint64_t theirs)
{
    return theirs ? theirs - ahead_ns : 0;
}

static void from_kernel(const struct gp_cupti_kernel *k, struct gp_activity_record *r)
{
    r->kind = GP_ACTIVITY_KERNEL;
    r->seq = seq_of(k->correlation);
    r->start = our_time(k->start);
    r->end = our_time(k->end);
    r->device = k->device;
    r->context = k->context;
    r->stream = k->stream;
    r->graph = k->graph;
    r->graph_node = k->graph_node;
    memcpy(r->grid, k->grid, sizeof r->grid);
    memcpy(r->block, k->block, sizeof r->block);
    memcpy(r->cluster, k->cluster, sizeof r->cluster);
    r->static_shared = k->static_shared;
    r->dynamic_shared = k->dynamic_shared;
    r->local_per_thread = k->local_per_thread;
    r->local_total = k->local_total;
    r->registers = k->registers;
    r->grid_id = k->grid_id;
}

static void from_memcpy(const struct gp_cupti_memcpy *c, struct gp_activity_record *r)
{
    r->kind = GP_ACTIVITY_COPY;
    r->seq = seq_of(c->correlation);
    r->start = our_time(c->start);
    r->end = our_time(c->end);
    r->device = c->device;
    r->context = c->context;
    r->stream = c->stream;
    r->graph = c->graph;
    r->graph_node = c->graph_node;
    r->bytes = c->bytes;
    r->copy = c->copy;
    r->from = c->from;
    r->to = c->to;
    r->async = c->flags & GP_CUPTI_ASYNC;
}

static void from_memcpy2(const struct gp_cupti_memcpy2 *c, struct gp_activity_record *r)
{
    r->kind = GP_ACTIVITY_COPY;
    r->seq = seq_of(c->correlation);
    r->start = our_time(c->start);
    r->end = our_time(c->end);
    r->device = c->device;
    r->context = c->context;
    r->stream = c->stream;
    r->graph = c->graph;
    r->graph_node = c->graph_node;
    r->bytes = c->bytes;
    r->copy = GP_CUPTI_PTOP;
    r->from = c->from;
    r->to = c->to;
    r->async = c->flags & GP_CUPTI_ASYNC;
    r->from_device = c->from_device;
    r->from_context = c->from_context;
    r->to_device = c->to_device;
    r->to_context = c->to_context;
}

static void from_memset(const struct gp_cupti_memset *m, struct gp_activity_record *r)
{
    r->kind = GP_ACTIVITY_SET;
    r->seq = seq_of(m->correlation);
    r->start = our_time(m->start);
    r->end = our_time(m->end);
    r->device = m->device;
    r->context = m->context;
    r->stream = m->stream;
    r->graph = m->graph;
    r->graph_node = m->graph_node;
    r->bytes = m->bytes;
    r->value = m->value;
    r->to = (uint8_t)m->memory;
    r->async = m->flags & GP_CUPTI_ASYNC;
}

static void note(const struct gp_cupti_external *e)
{
    if (e->external_kind == GP_CUPTI_CUSTOM0)
        asked[e->correlation % SEQS] = (struct asked){e->correlation, e->external};
}

/* False: it is of another kind. */
static bool translate(const void *record, struct gp_activity_record *r, const char **name)
{
    *r = (struct gp_activity_record){0};
    *name = NULL;
    switch (*(const uint32_t *)record) {
    case GP_CUPTI_KERNEL:
    case GP_CUPTI_CONCURRENT_KERNEL:
        from_kernel(record, r);
        *name = ((const struct gp_cupti_kernel *)record)->name;
        return true;
    case GP_CUPTI_MEMCPY:
        from_memcpy(record, r);
        return true;
    case GP_CUPTI_MEMCPY2:
        from_memcpy2(record, r);
        return true;
    case GP_CUPTI_MEMSET:
        from_memset(record, r);
        return true;
    case GP_CUPTI_EXTERNAL_CORRELATION:
        note(record);
        return false;
    default:
        return false;
    }
}

/* The full buffer that became so first. */
static struct buffer *oldest(void)
{
    struct buffer *first = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUFFERS; i++)
        if (buffers[i].state == FULL && (!first || buffers[i].order < first->order))
            first = &buffers[i];
    pthread_mutex_unlock(&lock);
    return first;
}

void gpa_take(gpa_record *each, void *arg)
{
    struct gp_activity_record r;
    const char *name;
    if (on)
        compare_clocks(); /* CUPTI's may be set anew by the system */
    for (struct buffer *b; on && (b = oldest()) != NULL;) {
        void *record = NULL;
        while (cupti.cuptiActivityGetNextRecord(b->bytes, b->valid, &record) == GP_CUPTI_SUCCESS)
            if (translate(record, &r, &name))
                each(arg, &r, name);
        pthread_mutex_lock(&lock);
        b->state = FREE;
        pthread_mutex_unlock(&lock);
    }
}
