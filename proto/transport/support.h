/*
 * What the transports share among themselves: gather lists, clocks, spinning,
 * a fair lock, and noticing fork(). Nothing here is for users of transport.h.
 */
#ifndef GP_TRANSPORT_SUPPORT_H
#define GP_TRANSPORT_SUPPORT_H

#include <sys/types.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "transport/transport.h"
#include "wire/wire.h"

#define GP_GATHER_MAX 8
#define GP_MESSAGE_MIN sizeof(struct gp_header)

extern const struct gp_transport gp_transport_inproc;
extern const struct gp_transport gp_transport_shm;

/* The bytes of a gather list: 0, -EINVAL for a list that is none (too many
 * pieces, a length without an address), -EMSGSIZE outside 16..GP_MESSAGE_MAX. */
int gp_gather_size(const struct iovec *iov, int count, size_t *size);
/* Copy the list to `to` and zero what is missing to the next 8 bytes, so that
 * no stale byte of ours reaches the peer. */
void gp_gather_copy(void *to, const struct iovec *iov, int count);

int64_t gp_clock_ns(void);        /* monotonic, exact */
int64_t gp_clock_coarse_ns(void); /* monotonic, a few ms coarse, ~5 ns to ask */

/* A point in time `timeout_us` from now; INT64_MAX for -1. */
int64_t gp_deadline_us(int64_t timeout_us);
/* ms until `deadline_ns`, rounded up, at most `most_ms`, for poll(). */
int gp_deadline_left_ms(int64_t deadline_ns, int most_ms);
/* poll() until `deadline_ns`, at most `most_ms`: to the microsecond, as who waits for a GPU asks. */
struct pollfd;
int gp_poll_until(struct pollfd *items, unsigned count, int64_t deadline_ns, int most_ms);

/* How long a waiting thread may usefully spin, in ns: little where the peer
 * may need the core that we would burn. */
int64_t gp_spin_limit_ns(void);
/* Whether the process has more processors than a thread that spins and its peer need. */
bool gp_spin_spares(void);

static inline void gp_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/*
 * A spin that learns how long waits are, however they were waited: after those that a spin up to
 * the limit would have ended it spins up to that, after longer ones ever less and then not at all.
 */
struct gp_spin {
    int64_t budget_ns;
};
void gp_spin_init(struct gp_spin *spin);
/* Whether such a wait is slept, and teaches nothing: who waits for less than a spin may take has
 * something else to look at in between, so that says nothing of when messages come. */
bool gp_spin_naps(int64_t timeout_us);
/* A wait took so long; INT64_MAX: it has not ended. */
void gp_spin_learn(struct gp_spin *spin, int64_t waited_ns);

/*
 * A lock that nobody can overtake a waiter of: whoever comes must pass `gate`,
 * and the first waiter holds the gate until it has the lock. Without it a
 * thread that streams large messages starves the others.
 */
struct gp_turnstile {
    pthread_mutex_t gate;
    pthread_mutex_t lock;
};
void gp_turnstile_init(struct gp_turnstile *t);
void gp_turnstile_destroy(struct gp_turnstile *t);
void gp_turnstile_enter(struct gp_turnstile *t);
bool gp_turnstile_try(struct gp_turnstile *t);
void gp_turnstile_leave(struct gp_turnstile *t);

/*
 * What a blocked sender does between two looks for room (transport.h, relieve): under the
 * channel's sending lock. Zeroed: nothing, and it waits as long as its transport likes.
 */
struct gp_relief {
    gp_relief_fn *call;
    void *owner;
    int pause_ms; /* from one call to the next: more, the longer nothing comes */
};
void gp_relief_set(struct gp_relief *r, gp_relief_fn *call, void *owner);
/* Until when to wait for room before gp_relief_give, at most `most_ms`. */
int gp_relief_pause_ms(const struct gp_relief *r, int most_ms);
void gp_relief_give(struct gp_relief *r);

/* How many forks this process is away from its ancestor that first asked.
 * A channel that remembers another number belongs to the parent. */
unsigned gp_fork_generation(void);

/*
 * A descriptor as it was when it was opened. Programs close descriptors that are not theirs,
 * and the number is then somebody else's: whoever lives in a foreign process asks before it
 * uses one. A mark of -1 is always right.
 */
struct gp_fd_mark {
    int fd;
    dev_t device;
    ino_t inode;
};
void gp_fd_note(struct gp_fd_mark *mark, int fd);
bool gp_fd_is(const struct gp_fd_mark *mark);

#endif
