/* Memory of a module: taken piece by piece, given back all at once. */
#include <stdlib.h>

#include "ptx_internal.h"

struct sg_chunk {
    struct sg_chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

#define CHUNK_BYTES ((size_t)64 * 1024)
#define ARENA_LIMIT ((uint64_t)4 << 30) /* of one module, all its text decoded */

void *sg_pool_take(struct sg_pool *arena, size_t bytes)
{
    struct sg_chunk *chunk = arena->chunks;

    if (bytes > ARENA_LIMIT || arena->total > ARENA_LIMIT - bytes)
        return NULL;
    bytes = bytes ? (bytes + 15) & ~(size_t)15 : 16;
    if (!chunk || chunk->size - chunk->used < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        chunk = calloc(1, sizeof(*chunk) + size);
        if (!chunk)
            return NULL;
        chunk->size = size;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        arena->total += size;
    }
    void *taken = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return taken;
}

void sg_pool_free(struct sg_pool *arena)
{
    while (arena->chunks) {
        struct sg_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
    arena->total = 0;
}
