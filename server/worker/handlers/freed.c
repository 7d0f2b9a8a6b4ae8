/*
 * What is freed in stream order a driver may count as taken, and keep, until a wait of its own has
 * come behind the free. A client that reads from a page of ours that its work is over has waited for
 * nothing in the driver, which then trims a pool and gives nothing back. So the first such number
 * behind a free has an event behind it, for which the worker waits as for any other; and what needs
 * the memory waits for that, once the number is there: it is the next thing that the GPU comes to.
 */
#include "freed.h"

#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "handles.h"
#include "memory_internal.h"

/* How long a message waits: events behind what is written pass at once, if the GPU is ours. */
#define PATIENCE_NS UINT64_C(1000000000)
/* Each is a question to the driver whenever the worker looks. */
#define SIGHTS_MOST 64

struct gpw_sight {
    const uint64_t *word;
    uint64_t number;
    bool outlasted; /* a message has waited for it as long as one may: none does again */
    struct gpw_sight *next;
};

bool gpw_freed_in(const struct gpw_session *s, CUstream stream)
{
    const struct gpw_freed *f = &s->memory->freed;
    for (unsigned i = 0; i < f->count; i++)
        if (f->streams[i] == stream)
            return true;
    return false;
}

void gpw_freed_note(struct gpw_session *s, CUstream stream)
{
    struct gpw_freed *f = &s->memory->freed;
    if (gpw_freed_in(s, stream))
        return;
    if (f->count == GPW_FREED_STREAMS) /* the oldest is left to the driver */
        memmove(f->streams, f->streams + 1, --f->count * sizeof f->streams[0]);
    f->streams[f->count++] = stream;
}

static void seen(struct gpw_session *s, void *arg, CUresult result)
{
    struct gpw_freed *f = &s->memory->freed;
    struct gpw_sight **at = &f->sights;
    (void)result;
    while (*at != arg)
        at = &(*at)->next;
    *at = (*at)->next;
    f->sighted--;
    free(arg);
}

static void look(struct gpw_session *s, CUstream stream, const uint64_t *word, uint64_t number)
{
    struct gpw_freed *f = &s->memory->freed;
    struct gpw_sight *one = f->sighted < SIGHTS_MOST ? malloc(sizeof *one) : NULL;
    if (!one)
        return;
    *one = (struct gpw_sight){.word = word, .number = number, .next = f->sights};
    f->sights = one;
    f->sighted++;
    bool before = gpw_strict(s, false);
    if (gpw_after_stream(s, stream, seen, one) != CUDA_SUCCESS)
        seen(s, one, CUDA_SUCCESS);
    gpw_strict(s, before);
}

/* What was freed in a stream that has ended has nobody to tell of it. */
static bool lives(struct gpw_session *s, CUstream stream)
{
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
           gpw_handle_find(s, GP_HANDLE_STREAM, (uint64_t)stream) != 0;
}

void gpw_freed_written(struct gpw_session *s, CUstream stream, bool context, const uint64_t *word,
                       uint64_t number)
{
    struct gpw_freed *f = &s->memory->freed;
    if (f->count == 0 || gpw_captures_any(s))
        return;
    for (unsigned i = 0; i < f->count;) {
        CUstream one = f->streams[i];
        if (!context && one != stream) {
            i++;
            continue;
        }
        f->streams[i] = f->streams[--f->count];
        if (one == stream || lives(s, one))
            look(s, one, word, number);
    }
}

static bool is_written(const struct gpw_sight *one)
{
    /* pairs with the GPU's write, which comes behind the work's */
    return __atomic_load_n(one->word, __ATOMIC_ACQUIRE) >= one->number;
}

bool gpw_freed_admit(struct gpw_session *s, const struct gp_header *h, uint64_t held_ns)
{
    if (!s->memory->freed.sights || !gp_op_info(h->op)->tidies)
        return true;
    for (struct gpw_sight *one = s->memory->freed.sights; one; one = one->next) {
        if (one->outlasted || !is_written(one))
            continue;
        if (held_ns <= PATIENCE_NS)
            return false;
        one->outlasted = true;
    }
    return true;
}
