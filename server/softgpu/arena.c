/*
 * Device memory: address space reserved once per device, committed in pieces
 * of 2 MiB while something in them is allocated.
 *
 * Blocks (free and used) form one list in address order; taking is next-fit,
 * giving merges with free neighbours.
 */
#include "ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE SG_GRANULARITY

struct block {
    struct block *before, *after;
    uint64_t begin, size;
    bool used;
};
struct sg_arena {
    uint64_t begin, size;
    uint32_t *pieces; /* blocks in use that touch each piece */
    int file;         /* whose memory it is; -1: this process's own */
    struct block *first, *next_fit;
};

struct sg_arena *sg_arena_create(uint64_t size)
{
    size = (size + PIECE - 1) / PIECE * PIECE;
    struct sg_arena *arena = calloc(1, sizeof(*arena));
    struct block *block = calloc(1, sizeof(*block));
    uint32_t *pieces = calloc(size / PIECE, sizeof(*pieces));
    /* One piece more, so that the first can be aligned. */
    void *space = mmap(NULL, size + PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
    if (!arena || !block || !pieces || space == MAP_FAILED) {
        if (space != MAP_FAILED)
            munmap(space, size + PIECE);
        free(arena);
        free(block);
        free(pieces);
        return NULL;
    }
    arena->begin = ((uint64_t)(uintptr_t)space + PIECE - 1) / PIECE * PIECE;
    arena->size = size;
    arena->pieces = pieces;
    arena->file = -1;
    arena->first = arena->next_fit = block;
    block->begin = arena->begin;
    block->size = size;
    return arena;
}

static void decommit(const struct sg_arena *arena, uint64_t piece)
{
    void *at = (void *)(uintptr_t)(arena->begin + piece * PIECE);
    if (arena->file >= 0) {
        fallocate(arena->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(piece * PIECE),
                  (off_t)PIECE);
        mprotect(at, PIECE, PROT_NONE);
        return;
    }
    /* A new mapping drops the pages and the rights at once. */
    mmap(at, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void uncount(struct sg_arena *arena, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end; i++)
        if (--arena->pieces[i] == 0)
            decommit(arena, i);
}

static bool commit(struct sg_arena *arena, uint64_t begin, uint64_t size)
{
    uint64_t first = (begin - arena->begin) / PIECE;
    uint64_t end = (begin - arena->begin + size + PIECE - 1) / PIECE;
    for (uint64_t i = first; i < end;) {
        uint64_t run = i;
        while (run < end && arena->pieces[run] == 0)
            run++;
        void *at = (void *)(uintptr_t)(arena->begin + i * PIECE);
        if (run > i && mprotect(at, (run - i) * PIECE, PROT_READ | PROT_WRITE) != 0) {
            uncount(arena, first, i);
            return false;
        }
        if (run == i)
            run++; /* committed already by a neighbour */
        for (; i < run; i++)
            arena->pieces[i]++;
    }
    return true;
}

static struct block *find_fit(struct sg_arena *arena, uint64_t size)
{
    struct block *start = arena->next_fit;
    for (struct block *b = start; b; b = b->after)
        if (!b->used && b->size >= size)
            return b;
    for (struct block *b = arena->first; b && b != start; b = b->after)
        if (!b->used && b->size >= size)
            return b;
    return NULL;
}

/* Cuts `size` bytes off the front of a free block. */
static bool split(struct block *block, uint64_t size)
{
    if (block->size == size)
        return true;
    struct block *rest = calloc(1, sizeof(*rest));
    if (!rest)
        return false;
    *rest = (struct block){block, block->after, block->begin + size, block->size - size, false};
    if (rest->after)
        rest->after->before = rest;
    block->after = rest;
    block->size = size;
    return true;
}

/* Joins a free block with its free successor. */
static void merge(struct sg_arena *arena, struct block *block)
{
    struct block *after = block->after;
    if (!after || after->used || block->used)
        return;
    block->size += after->size;
    block->after = after->after;
    if (block->after)
        block->after->before = block;
    if (arena->next_fit == after)
        arena->next_fit = block;
    free(after);
}

uint64_t sg_arena_take(struct sg_arena *arena, uint64_t size)
{
    size = (size + SG_ALIGNMENT - 1) / SG_ALIGNMENT * SG_ALIGNMENT;
    struct block *block = find_fit(arena, size);
    if (!block || !split(block, size))
        return 0;
    if (!commit(arena, block->begin, size)) {
        merge(arena, block);
        return 0;
    }
    block->used = true;
    arena->next_fit = block->after ? block->after : arena->first;
    return block->begin;
}

void sg_arena_give(struct sg_arena *arena, uint64_t address)
{
    struct block *block = arena->first;
    while (block && block->begin != address)
        block = block->after;
    if (!block || !block->used)
        return;
    uint64_t first = (block->begin - arena->begin) / PIECE;
    uint64_t end = (block->begin - arena->begin + block->size + PIECE - 1) / PIECE;
    uncount(arena, first, end);
    block->used = false;
    merge(arena, block);
    if (block->before && !block->before->used)
        merge(arena, block->before);
}

/* A file with the bytes that are there now; -1: no room. */
static int file_of(const struct sg_arena *arena)
{
    int file = memfd_create("gpupool-soft-arena", MFD_CLOEXEC);
    bool well = file >= 0 && ftruncate(file, (off_t)arena->size) == 0;
    for (uint64_t i = 0; well && i < arena->size / PIECE; i++) {
        const void *at = (const void *)(uintptr_t)(arena->begin + i * PIECE);
        well = !arena->pieces[i] || pwrite(file, at, PIECE, (off_t)(i * PIECE)) == (ssize_t)PIECE;
    }
    if (!well && file >= 0)
        close(file);
    return well ? file : -1;
}

int sg_arena_share(struct sg_arena *arena, uint64_t address, uint64_t *offset)
{
    *offset = address - arena->begin;
    if (arena->file >= 0)
        return arena->file;
    int file = file_of(arena);
    void *at = (void *)(uintptr_t)arena->begin;
    if (file >= 0 && mmap(at, arena->size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                          0) == MAP_FAILED) {
        close(file);
        file = -1;
    }
    if (file < 0)
        return -1;
    arena->file = file;
    for (uint64_t i = 0; i < arena->size / PIECE; i++)
        if (arena->pieces[i])
            mprotect((char *)at + i * PIECE, PIECE, PROT_READ | PROT_WRITE);
    return file;
}
