/* driver_random.c: a thread, its memory, and what every byte of it has to be. */
#ifndef RANDOM_MODEL_H
#define RANDOM_MODEL_H

#include "driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define DEVICE_BUFFERS 8
#define HOST_BUFFERS 6
#define BIGGEST (1300u << 10) /* more than one piece of a long copy */
#define GRAPH_NODES 6
#define GRAPH_HOST_COPIES 16 /* in the life of a thread: they last as long as the process */
#define GRAPH_HOST_BYTES 4096

enum device_kind { PLAIN, PITCHED, MAPPED, ORDERED, FROM_POOL, DEVICE_KINDS };
enum host_kind { PAGEABLE, PINNED, REGISTERED, HOST_KINDS };

struct buffer {
    int kind;
    bool busy; /* host memory that the GPU may read or write until the next wait */
    size_t bytes, pitch;
    size_t mapped; /* bytes of the addresses of MAPPED */
    CUdeviceptr device;
    CUmemoryPool pool; /* of FROM_POOL */
    uint8_t *host, *model;
};

/* What was done to bytes, so that a graph's launches can do it to the model again. */
struct action {
    enum { SET, COPY, INCREMENT } what;
    uint8_t *to;
    const uint8_t *from;
    size_t width, height, to_pitch, from_pitch;
    size_t depth, to_slice, from_slice; /* of more than one slice */
    uint32_t value, unit;
};

struct worker {
    pthread_t thread;
    unsigned number, random;
    struct buffer device[DEVICE_BUFFERS], host[HOST_BUFFERS];
    CUstream streams[2];
    unsigned at; /* the stream in use: the other one has been waited for */
    CUevent event;
    CUmemoryPool pool;
    struct buffer far;             /* on the other device, if there is one */
    unsigned called, calls_wanted; /* of host functions */
    uint64_t operations;
    bool capturing;
    unsigned graph_host_copies;
    struct action actions[GRAPH_NODES];
    unsigned action_count;
    unsigned updates[2]; /* of graphs: done, and refused by the driver */
};

static CUfunction increment;
static CUcontext other_context; /* of another device; NULL: there is none */
static uint64_t operations_each;
static time_t ends;
/* A wait for the whole context is not made while anybody captures. */
static pthread_rwlock_t captures = PTHREAD_RWLOCK_INITIALIZER;

static unsigned pick(struct worker *w, unsigned n)
{
    return check_random(&w->random) % n;
}

static size_t pick_size(struct worker *w)
{
    switch (pick(w, 16)) {
    case 0:
        return 1 + pick(w, BIGGEST);
    case 1:
    case 2:
    case 3:
        return 1 + pick(w, 65536);
    default:
        return 1 + pick(w, 4096);
    }
}

static CUstream stream_of(struct worker *w)
{
    return w->streams[w->at];
}

/* --- the model ---------------------------------------------------------------------- */

static void act_on_row(const struct action *a, uint8_t *to, const uint8_t *from)
{
    switch (a->what) {
    case SET:
        for (size_t i = 0; i < a->width; i++)
            to[i] = (uint8_t)(a->value >> (8 * (i % a->unit)));
        break;
    case COPY:
        memmove(to, from, a->width);
        break;
    case INCREMENT:
        for (size_t i = 0; i + sizeof(int) <= a->width; i += sizeof(int)) {
            uint32_t value;
            memcpy(&value, to + i, sizeof value);
            value++;
            memcpy(to + i, &value, sizeof value);
        }
    }
}

static void act(const struct action *a)
{
    size_t slices = a->depth ? a->depth : 1;
    for (size_t slice = 0; slice < slices; slice++)
        for (size_t row = 0; row < a->height; row++)
            act_on_row(a, a->to + slice * a->to_slice + row * a->to_pitch,
                       a->what == COPY ? a->from + slice * a->from_slice + row * a->from_pitch
                                       : NULL);
}

/* Now, or with every launch of the graph. */
static void happens(struct worker *w, struct action a)
{
    if (w->capturing)
        w->actions[w->action_count++] = a;
    else
        act(&a);
}

static void compare(struct worker *w, const char *what, const uint8_t *found,
                    const struct buffer *b)
{
    if (memcmp(found, b->model, b->bytes) == 0)
        return;
    size_t i = 0, wrong = 0;
    while (found[i] == b->model[i])
        i++;
    for (size_t k = i; k < b->bytes; k++)
        wrong += found[k] != b->model[k];
    REQUIRE(false,
            "thread %u, operation %llu: %s of kind %d, %zu bytes: %zu are wrong, the "
            "first at %zu (%u, not %u)",
            w->number, (unsigned long long)w->operations, what, b->kind, b->bytes, wrong, i,
            found[i], b->model[i]);
}

#endif
