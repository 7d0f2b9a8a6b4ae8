/*
 * Mapped memory that host and GPU use at the same time. A few blocks stay open, and nobody faults in
 * them: what the host writes there is found by comparing it with the twin, and what the GPU writes
 * by asking for the blocks again and again. Both have to look as if the memory were one:
 *
 *   - what the host writes goes over in the order of its blocks, because one block is open for
 *     writing at a time. What another one has is sent when a write to the next one faults;
 *   - the open blocks are asked for together, and are of one moment over there: what the host reads
 *     in one of them is no older than what it has read in another. A block that is opened is
 *     asked for together with those that are open already;
 *   - a word alone is put in its place as it is. More than one are put there while the blocks are
 *     closed, so a flag is not seen without its data;
 *   - what is found of the host's is of one moment as well: the same twice, or closed meanwhile;
 *   - where a kernel writes all the time nothing is of one moment, and all is closed.
 *
 * A word is changed by one side at a time. One that the host has sent since the blocks were asked
 * for is not the GPU's, whatever the answer has there; and one that it has just written stays.
 *
 * mapped_watch.c has the threads that do it, and ends it when nothing has changed for a while.
 */
#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "look.h"
#include "managed_internal.h"
#include "monotonic.h"
#include "operations_there.h"
#include "session.h"

/* Larger blocks are opened one by one, for a moment. */
#define BLOCK_MOST ((uint32_t)16 << 10)
/* So many stay open, unless an instruction needs more at once. */
#define USUAL 4u
/* Without a change for so long they are closed. */
#define HOT_NS (UINT64_C(10) * 1000000)

#define WORD sizeof(uint32_t)

struct block {
    struct gpc_managed *m;
    uint32_t index;
};

/* Under managed.c's lock; the oldest first. */
static struct block open[GP_LOOK_MOST];
static uint32_t count;
static uint64_t generation; /* counts what makes an answer that is under way too old */
static uint64_t changed_ns;

/* What is being asked for, and what came. Of one question at a time, but that the one of a touch
 * takes the place of the refresher's, whose answer is too old then. */
struct question {
    struct block of[GP_LOOK_MOST];
    uint32_t count, bytes, sizes[GP_LOOK_MOST];
    uint64_t addresses[GP_LOOK_MOST], digests[GP_LOOK_MOST], generation, changed;
    bool moves;                                  /* what came is not of one moment */
    char base[GP_LOOK_MOST * BLOCK_MOST];        /* what the GPU's host had, as far as is known */
    char came[GP_LOOK_MOST * BLOCK_MOST];        /* of what has changed */
    bool mine[GP_LOOK_MOST * BLOCK_MOST / WORD]; /* words that the host has sent since */
};

static struct question of_touch, of_refresh;

static void note_change(void)
{
    changed_ns = gp_now_ns();
}

static uint64_t at_of(const struct block *b)
{
    return b->index * b->m->block_bytes;
}

static uint32_t bytes_of(const struct block *b)
{
    return (uint32_t)gpc_managed_bytes(b->m, b->index, 1);
}

static enum gpc_block state_of(const struct block *b)
{
    return (enum gpc_block)b->m->state[b->index];
}

static bool same_block(const struct block *a, const struct block *b)
{
    return a->m == b->m && a->index == b->index;
}

static void drop(uint32_t i)
{
    memmove(open + i, open + i + 1, (--count - i) * sizeof open[0]);
    generation++;
}

/* Without those that a call has closed meanwhile. */
static void drop_closed(void)
{
    for (uint32_t i = count; i-- > 0;)
        if (state_of(&open[i]) == GPC_BLOCK_STALE)
            drop(i);
}

void gpc_hot_forget(const struct gpc_managed *m)
{
    for (uint32_t i = count; i-- > 0;)
        if (open[i].m == m)
            drop(i);
    generation++;
}

bool gpc_hot_has(const struct gpc_managed *m, uint32_t block)
{
    const struct block b = {(struct gpc_managed *)(uintptr_t)m, block};
    for (uint32_t i = 0; i < count; i++)
        if (same_block(&open[i], &b))
            return true;
    return false;
}

static void protect(const struct block *b, enum gpc_open how)
{
    gpc_area_protect(b->m->begin + at_of(b), bytes_of(b), how);
}

/* --- what the host writes --------------------------------------------------------------------- */

void gpc_hot_sent(const struct gpc_managed *m, uint64_t into, uint64_t bytes)
{
    struct question *q = &of_refresh;
    uint32_t first = 0;
    for (uint32_t i = 0; i < q->count; first += q->sizes[i++]) {
        if (q->of[i].m != m)
            continue;
        uint64_t begin = at_of(&q->of[i]), end = begin + q->sizes[i];
        uint64_t from = into > begin ? into : begin, to = into + bytes < end ? into + bytes : end;
        if (from < to)
            memset(q->mine + (first + from - begin) / WORD, true, (to - from) / WORD);
    }
    note_change();
}

/* While the host goes on. */
static bool scan_open(const struct block *b)
{
    static char found[BLOCK_MOST];
    const struct gp_look l = {.count = 1,
                              .at = {gpc_area_alias(b->m->area, b->m->begin + at_of(b))},
                              .sizes = {bytes_of(b)}};
    bool still = gp_look_take(&l, found);
    if (still)
        gpc_mapped_send_changed(b->m, at_of(b), bytes_of(b), found);
    return still;
}

static void scan(const struct block *b)
{
    const char *now = gpc_area_alias(b->m->area, b->m->begin + at_of(b));
    if (state_of(b) != GPC_BLOCK_WRITTEN || memcmp(now, b->m->twin + at_of(b), bytes_of(b)) == 0)
        return;
    if (!scan_open(b)) {
        protect(b, GPC_OPEN_READ);
        gpc_managed_bring_there(b->m, b->index, 1);
        protect(b, GPC_OPEN_WRITE);
    }
    struct gpc_session *s = gpc_session_of_handle((uint64_t)b->m->context);
    if (gpc_session_works(s))
        s->transport->flush(s->channel);
}

bool gpc_hot_scan(uint64_t *still_ns)
{
    drop_closed();
    for (uint32_t i = 0; i < count; i++)
        scan(&open[i]);
    *still_ns = gp_now_ns() - changed_ns;
    return count && *still_ns < HOT_NS;
}

/* What it has goes over, and it is written no more. An instruction may write two that lie side by
 * side at once. */
static void end_writing(const struct block *next, bool same_instruction)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct block *b = &open[i];
        bool beside = b->m == next->m &&
                      (b->index + 1 == next->index || next->index + 1 == b->index);
        if (state_of(b) != GPC_BLOCK_WRITTEN || same_block(b, next) || (same_instruction && beside))
            continue;
        protect(b, GPC_OPEN_READ);
        scan(b);
        gpc_managed_set(b->m, b->index, 1, GPC_BLOCK_SAME);
    }
}

/* --- what the GPU writes ------------------------------------------------------------------------ */

static void question_add(struct question *q, const struct block *b)
{
    uint32_t i = q->count++;
    q->of[i] = *b;
    q->sizes[i] = bytes_of(b);
    q->addresses[i] = b->m->begin + at_of(b);
    memcpy(q->base + q->bytes, b->m->twin + at_of(b), q->sizes[i]);
    q->bytes += q->sizes[i];
}

static void question_begin(struct question *q)
{
    q->count = q->bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        question_add(q, &open[i]);
    memset(q->mine, false, q->bytes / WORD);
}

/* The lock need not be held. */
static CUresult ask(struct question *q, const struct gpc_route *on)
{
    uint32_t got = q->bytes, expected = 0, first = 0;
    for (uint32_t i = 0; i < q->count; first += q->sizes[i++])
        q->digests[i] = gp_look_digest(q->base + first, q->sizes[i]);
    CUresult r = gpc_wire_gp_mapped_look_on(on, q->count, q->addresses, q->sizes, q->digests,
                                            q->bytes, &q->changed, q->came, &got);
    for (uint32_t i = 0; i < q->count; i++)
        expected += q->changed >> i & 1 ? q->sizes[i] : 0;
    q->moves = (q->changed & GP_LOOK_MOVES) != 0;
    return r == CUDA_SUCCESS && got != expected ? CUDA_ERROR_UNKNOWN : r;
}

/* What the GPU has changed: words, or pairs of them that are one for a processor. */
struct found {
    uint32_t units;
    uint64_t last;
};

/* The host has it as it was, or goes on to send its own. */
static bool put_word(char *to, const char *was, const char *came)
{
    uint32_t expected, next;
    memcpy(&expected, was, WORD);
    memcpy(&next, came, WORD);
    return __atomic_compare_exchange_n((uint32_t *)(void *)to, &expected, next, false,
                                       __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static bool put_pair(char *to, const char *was, const char *came)
{
    uint64_t expected, next;
    memcpy(&expected, was, sizeof expected);
    memcpy(&next, came, sizeof next);
    return __atomic_compare_exchange_n((uint64_t *)(void *)to, &expected, next, false,
                                       __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* Where the host's and the GPU's words meet in a pair, each word by itself. */
static void put(const struct block *b, uint64_t into, const char *was, const char *came,
                const bool *mine)
{
    char *to = gpc_area_alias(b->m->area, b->m->begin + at_of(b) + into);
    char *twin = b->m->twin + at_of(b) + into;
    if (!mine[0] && !mine[1] && put_pair(to, was, came)) {
        memcpy(twin, came, 2 * WORD);
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        if (!mine[i] && memcmp(was + i * WORD, came + i * WORD, WORD) != 0 &&
            put_word(to + i * WORD, was + i * WORD, came + i * WORD))
            memcpy(twin + i * WORD, came + i * WORD, WORD);
}

static bool is_news(const char *was, const char *came, const bool *mine)
{
    return (!mine[0] && memcmp(was, came, WORD) != 0) ||
           (!mine[1] && memcmp(was + WORD, came + WORD, WORD) != 0);
}

/* Count pairs that have something new, or put them in their places. */
static uint32_t go_through(const struct question *q, bool puts)
{
    const char *came = q->came;
    uint32_t first = 0, units = 0;
    for (uint32_t i = 0; i < q->count; first += q->sizes[i++]) {
        if (!(q->changed >> i & 1))
            continue;
        for (uint32_t at = 0; at < q->sizes[i]; at += 2 * WORD) {
            const char *was = q->base + first + at;
            const bool *mine = q->mine + (first + at) / WORD;
            if (!is_news(was, came + at, mine))
                continue;
            units++;
            if (puts)
                put(&q->of[i], at, was, came + at, mine);
        }
        came += q->sizes[i];
    }
    return units;
}

static void protect_all(const struct question *q, bool closed)
{
    static const enum gpc_open how[] = {
        [GPC_BLOCK_WRITTEN] = GPC_OPEN_WRITE,
        [GPC_BLOCK_SAME] = GPC_OPEN_READ,
        [GPC_BLOCK_STALE] = GPC_OPEN_NOT,
    };
    for (uint32_t i = 0; i < q->count; i++)
        if (state_of(&q->of[i]) != GPC_BLOCK_STALE)
            protect(&q->of[i], closed ? GPC_OPEN_NOT : how[state_of(&q->of[i])]);
}

static void take(const struct question *q)
{
    uint32_t units = q->changed ? go_through(q, false) : 0;
    if (units == 0)
        return;
    note_change();
    if (units > 1)
        protect_all(q, true);
    go_through(q, true);
    if (units > 1)
        protect_all(q, false);
}

/* So each is brought when it is touched, which is later than what was read before. */
static void close_open(void)
{
    while (count) {
        const struct block b = open[0];
        drop(0);
        gpc_mapped_close_part(b.m, b.index, b.index + 1);
    }
}

/* About all that is open, and the lock is given up until there is an answer. */
static CUresult ask_again(struct question *q)
{
    question_begin(q);
    q->generation = generation;
    const struct gpc_route on = gpc_route_in(open[0].m->context);
    gpc_managed_unlock();
    CUresult r = ask(q, &on);
    gpc_managed_lock();
    drop_closed();
    if (q->generation == generation) {
        if (r == CUDA_SUCCESS && !q->moves)
            take(q);
        else
            close_open();
    }
    q->count = 0;
    return r;
}

bool gpc_hot_asks(void)
{
    gpc_managed_lock();
    bool asks = of_refresh.count != 0;
    gpc_managed_unlock();
    return asks;
}

bool gpc_hot_refresh(uint64_t *still_ns)
{
    drop_closed();
    bool goes_on = count && ask_again(&of_refresh) == CUDA_SUCCESS;
    *still_ns = gp_now_ns() - changed_ns;
    return goes_on;
}

/* --- opening ------------------------------------------------------------------------------------ */

bool gpc_hot_may(const struct gpc_managed *m)
{
    const struct gpc_session *s = gpc_session_of_handle((uint64_t)m->context);
    return m->block_bytes <= BLOCK_MOST && gpc_session_has(s, GP_OP_gp_mapped_look) &&
           (count == 0 || gpc_session_of_handle((uint64_t)open[0].m->context) == s);
}

/* What one instruction has faulted at, one time after another. */
static struct {
    uintptr_t pc;
    bool needs_more;                   /* what was closed for it, too */
    struct block closed[GP_LOOK_MOST]; /* the last ones */
    uint32_t count;
} instruction;

static bool is_same_instruction(uintptr_t pc, const struct block *b)
{
    bool same = pc && pc == instruction.pc;
    if (!same)
        instruction.needs_more = false, instruction.count = 0;
    for (uint32_t i = 0; i < instruction.count && i < GP_LOOK_MOST; i++)
        instruction.needs_more |= same_block(&instruction.closed[i], b);
    instruction.pc = pc;
    return same;
}

static void make_room(void)
{
    while (count >= (instruction.needs_more ? GP_LOOK_MOST : USUAL)) {
        const struct block oldest = open[0];
        instruction.closed[instruction.count++ % GP_LOOK_MOST] = oldest;
        drop(0);
        gpc_mapped_close_part(oldest.m, oldest.index, oldest.index + 1);
    }
}

/* With all that is open already, so that none is older than another. */
static CUresult bring(const struct block *b)
{
    struct question *q = &of_touch;
    gpc_managed_bring_there(b->m, b->index, 1);
    question_begin(q);
    question_add(q, b);
    memset(q->mine, false, q->bytes / WORD);
    generation++;
    const struct gpc_route on = gpc_route_in(b->m->context);
    CUresult r = ask(q, &on);
    if (r == CUDA_SUCCESS && q->moves)
        close_open();
    if (r == CUDA_SUCCESS)
        take(q);
    return r;
}

static int add(const struct block *b, enum gpc_block state)
{
    make_room();
    gpc_mapped_close_others();
    if (bring(b) != CUDA_SUCCESS)
        return gpc_managed_set(b->m, 0, b->m->blocks, GPC_BLOCK_WRITTEN);
    open[count++] = *b;
    return gpc_managed_set(b->m, b->index, 1, state);
}

int gpc_hot_open(struct gpc_managed *m, uint32_t index, const struct gpc_touch *t)
{
    const struct block b = {m, index};
    bool same = is_same_instruction(t->pc, &b);
    drop_closed();
    note_change();
    for (uint32_t i = 0; i < count; i++)
        scan(&open[i]);
    if (t->write)
        end_writing(&b, same);
    if (!gpc_hot_has(m, index))
        return add(&b, t->write ? GPC_BLOCK_WRITTEN : GPC_BLOCK_SAME);
    return gpc_managed_set(m, index, 1, t->write ? GPC_BLOCK_WRITTEN : state_of(&b));
}
