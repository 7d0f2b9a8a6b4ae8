/*
 * The board's lock: one word in the shared file, which any process on the board may have
 * written. So nothing in it is a pointer, no value of it blocks for ever, and one whose
 * owner has died, or does not come back, is taken over by the next.
 */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "board_internal.h"

#define WAITERS 0x80000000u
/* Between two looks at the owner; what is done under the lock takes microseconds. */
#define LOOK_NS 5000000
/* Looks until it is taken from an owner that lives: it may be stopped, or mean harm. */
#ifndef LOOKS
#define LOOKS 200
#endif
/* And if the word changes all the time without ever being free. */
#define TRIES 1000000

static bool take(struct board_file *f, uint32_t before, uint32_t owner)
{
    return __atomic_compare_exchange_n(&f->lock, &before, owner, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

/* False after LOOK_NS in which nobody has let go. */
static bool wait_for(struct board_file *f, uint32_t seen)
{
    const struct timespec t = {0, LOOK_NS};
    if (!(seen & WAITERS) && !take(f, seen, seen | WAITERS))
        return true;
    return syscall(SYS_futex, &f->lock, FUTEX_WAIT, seen | WAITERS, &t, NULL, 0) == 0 ||
           errno != ETIMEDOUT;
}

static bool is_dead(uint32_t owner)
{
    return gp_board_process_start((int32_t)owner) == 0;
}

/* True: the lock is taken from an owner that cannot give it back. */
static bool take_over(struct board_file *f, uint32_t seen, uint32_t me, unsigned looks)
{
    bool dead = is_dead(seen & ~WAITERS);
    if ((!dead && looks < LOOKS) || !take(f, seen, me | WAITERS))
        return false;
    if (!dead)
        __atomic_fetch_add(&f->forced, 1, __ATOMIC_RELAXED);
    return true;
}

/* Whoever has waited leaves the word marked, as there may be others. */
void gp_board_lock(struct board_file *f)
{
    uint32_t me = (uint32_t)getpid();
    if (take(f, 0, me))
        return;
    unsigned looks = 0;
    for (unsigned tries = 0; tries < TRIES; tries++) {
        uint32_t seen = __atomic_load_n(&f->lock, __ATOMIC_RELAXED);
        if (seen == 0 || seen == WAITERS) {
            if (take(f, seen, me | WAITERS))
                return;
        } else if (!wait_for(f, seen) && take_over(f, seen | WAITERS, me, ++looks)) {
            gp_board_recount(f);
            return;
        }
    }
    __atomic_fetch_add(&f->forced, 1, __ATOMIC_RELAXED);
    __atomic_exchange_n(&f->lock, me | WAITERS, __ATOMIC_ACQUIRE);
}

/* If it is another's by now, it is left to that. */
void gp_board_unlock(struct board_file *f)
{
    uint32_t me = (uint32_t)getpid();
    if (take(f, me, 0))
        return;
    if (take(f, me | WAITERS, 0))
        syscall(SYS_futex, &f->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}
