/*
 * How long something took the last times, for who waits for it again: around each of those times
 * it looks closely, and sleeps in between. Not safe between threads.
 */
#ifndef GP_USUAL_H
#define GP_USUAL_H

#include <stdint.h>

/* A step of a program rarely has more waits of different lengths. */
#define GP_USUAL_TIMES 8u
/* What looks closely keeps a processor busy: no longer than this before such a time and behind it. */
#define GP_USUAL_AROUND_NS UINT64_C(5000000)

struct gp_usual {
    uint64_t took_ns[GP_USUAL_TIMES]; /* 0: none */
    unsigned next;
};

static inline void gp_usual_learn(struct gp_usual *u, uint64_t took_ns)
{
    u->took_ns[u->next++ % GP_USUAL_TIMES] = took_ns;
}

/* Around such a time: when to begin to look, and until when, both since the wait began. */
static inline uint64_t gp_usual_soonest_ns(uint64_t took_ns)
{
    uint64_t before = took_ns / 8;
    return took_ns - (before < GP_USUAL_AROUND_NS ? before : GP_USUAL_AROUND_NS);
}

static inline uint64_t gp_usual_latest_ns(uint64_t took_ns)
{
    uint64_t behind = took_ns / 4;
    return took_ns + (behind < GP_USUAL_AROUND_NS ? behind : GP_USUAL_AROUND_NS);
}

/* Of the times around which a wait of `waited_ns` may still end, the least; 0: none. */
static inline uint64_t gp_usual_next_ns(const struct gp_usual *u, uint64_t waited_ns)
{
    uint64_t least = 0;
    for (unsigned i = 0; i < GP_USUAL_TIMES; i++) {
        uint64_t ns = u->took_ns[i];
        if (gp_usual_latest_ns(ns) > waited_ns && (least == 0 || ns < least))
            least = ns;
    }
    return least;
}

#endif
