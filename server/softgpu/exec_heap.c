/* Device malloc: one heap of CUDA's default size for the process, first fit. */
#include "exec_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HEAP_BYTES ((uint64_t)8 << 20)
#define HEAP_ALIGN 16u

struct piece {
    struct piece *next; /* by offset */
    uint64_t offset, size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *heap;
static struct piece *pieces;

static struct piece *insert(uint64_t size)
{
    struct piece **at = &pieces;
    uint64_t free_from = HEAP_ALIGN;
    while (*at && (*at)->offset - free_from < size) {
        free_from = (*at)->offset + (*at)->size;
        at = &(*at)->next;
    }
    if (!*at && HEAP_BYTES - free_from < size)
        return NULL;
    struct piece *p = malloc(sizeof(*p));
    if (p) {
        *p = (struct piece){*at, free_from, size};
        *at = p;
    }
    return p;
}

uint64_t sg_heap_take(uint64_t size)
{
    if (size == 0 || size > HEAP_BYTES)
        return 0;
    size = (size + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
    pthread_mutex_lock(&lock);
    if (!heap)
        heap = aligned_alloc(HEAP_ALIGN, HEAP_BYTES);
    struct piece *p = heap ? insert(size) : NULL;
    uint64_t address = p ? SG_WINDOW_HEAP | p->offset : 0;
    pthread_mutex_unlock(&lock);
    return address;
}

bool sg_heap_give(uint64_t address)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct piece **at = &pieces; *at && !found; at = &(*at)->next) {
        struct piece *p = *at;
        if ((SG_WINDOW_HEAP | p->offset) != address)
            continue;
        *at = p->next;
        free(p);
        found = true;
        break;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void *sg_heap_look(uint64_t address, uint64_t size)
{
    uint64_t offset = address & SG_OFFSET_MASK;
    void *host = NULL;
    pthread_mutex_lock(&lock);
    for (struct piece *p = pieces; p && !host; p = p->next)
        if (offset >= p->offset && offset - p->offset < p->size &&
            size <= p->size - (offset - p->offset))
            host = heap + offset;
    pthread_mutex_unlock(&lock);
    return host;
}
