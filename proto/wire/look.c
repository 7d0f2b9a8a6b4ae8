/* What others write meanwhile, at one moment: copied, and seen to be the same afterwards. */
#include "look.h"

#define TURNS_MOST 4u
#define PAIR ((uint32_t)sizeof(uint64_t)) /* of words, which a processor reads at once */
#define NONE UINT32_MAX

static uint64_t pair_at(const void *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
}

/* From the last pair to the first: what lies behind is read first. */
static void copy(const struct gp_look *l, char *data)
{
    for (uint32_t i = 0; i < l->count; data += l->sizes[i++])
        for (uint32_t at = l->sizes[i]; at; at -= PAIR) {
            uint64_t pair = pair_at((const char *)l->at[i] + at - PAIR);
            memcpy(data + at - PAIR, &pair, PAIR);
        }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static uint32_t moved_in(const char *now, const char *was, uint32_t bytes, uint32_t but)
{
    for (uint32_t step = 0; step < bytes; step += GP_LOOK_STEP) {
        if (memcmp(now + step, was + step, GP_LOOK_STEP) == 0)
            continue;
        for (uint32_t at = step; at < step + GP_LOOK_STEP; at += PAIR)
            if (at != but && memcmp(now + at, was + at, PAIR) != 0)
                return at;
    }
    return NONE;
}

/* Where in `data` the first pair is, but for the one at `but`, that is another one now. */
static uint32_t moved(const struct gp_look *l, const char *data, uint32_t but)
{
    uint32_t first = 0, found = NONE;
    for (uint32_t i = 0; i < l->count && found == NONE; first += l->sizes[i++]) {
        found = moved_in(l->at[i], data + first, l->sizes[i], but - first);
        if (found != NONE)
            found += first;
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return found;
}

static void swap_pair(char *data, uint32_t pair, uint64_t *other)
{
    uint64_t before;
    memcpy(&before, data + pair, PAIR);
    memcpy(data + pair, other, PAIR);
    *other = before;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static uint64_t now_at(const struct gp_look *l, uint32_t pair)
{
    uint32_t first = 0, i = 0;
    while (pair - first >= l->sizes[i])
        first += l->sizes[i++];
    return pair_at((const char *)l->at[i] + (pair - first));
}

/* All but one pair are the same twice, and that one is read in between. If they are not, it is put
 * back: newer than what lies before it, it would be a flag without its data. */
static bool is_still(const struct gp_look *l, char *data)
{
    uint32_t pair = moved(l, data, NONE);
    if (pair == NONE)
        return true;
    if (moved(l, data, pair) != NONE)
        return false;
    uint64_t other = now_at(l, pair);
    swap_pair(data, pair, &other);
    if (moved(l, data, pair) == NONE)
        return true;
    swap_pair(data, pair, &other);
    return false;
}

bool gp_look_take(const struct gp_look *l, char *data)
{
    for (unsigned turn = 0; turn < TURNS_MOST; turn++) {
        copy(l, data);
        if (is_still(l, data))
            return true;
    }
    return false;
}
