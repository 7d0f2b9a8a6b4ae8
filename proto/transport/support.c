#include "transport/support.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SPIN_LIMIT_NS 50000
#define SPIN_LIMIT_FEW_CORES_NS 5000
#define SPIN_FLOOR_NS 1000

int gp_gather_size(const struct iovec *iov, int count, size_t *size)
{
    if (count < 0 || count > GP_GATHER_MAX || (count > 0 && !iov))
        return -EINVAL;
    size_t sum = 0;
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len > 0 && !iov[i].iov_base)
            return -EINVAL;
        if (iov[i].iov_len > GP_MESSAGE_MAX - sum)
            return -EMSGSIZE;
        sum += iov[i].iov_len;
    }
    if (sum < GP_MESSAGE_MIN)
        return -EMSGSIZE;
    *size = sum;
    return 0;
}

void gp_gather_copy(void *to, const struct iovec *iov, int count)
{
    unsigned char *at = to;
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len == 0)
            continue;
        memcpy(at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    size_t size = (size_t)(at - (unsigned char *)to);
    memset(at, 0, gp_align8(size) - size);
}

static int64_t clock_read_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t gp_clock_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

int64_t gp_clock_coarse_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC_COARSE);
}

int64_t gp_deadline_us(int64_t timeout_us)
{
    if (timeout_us < 0)
        return INT64_MAX;
    int64_t now = gp_clock_ns();
    return timeout_us > (INT64_MAX - now) / 1000 ? INT64_MAX : now + timeout_us * 1000;
}

int gp_deadline_left_ms(int64_t deadline_ns, int most_ms)
{
    if (deadline_ns == INT64_MAX)
        return most_ms;
    int64_t left = deadline_ns - gp_clock_ns();
    if (left <= 0)
        return 0;
    int64_t ms = (left + 999999) / 1000000;
    return ms < most_ms ? (int)ms : most_ms;
}

int gp_poll_until(struct pollfd *items, unsigned count, int64_t deadline_ns, int most_ms)
{
    int64_t ns = (int64_t)most_ms * 1000000;
    if (deadline_ns != INT64_MAX && deadline_ns - gp_clock_ns() < ns)
        ns = deadline_ns - gp_clock_ns();
    if (ns < 0)
        ns = 0;
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return ppoll(items, count, &ts, NULL);
}

static int64_t spin_limit;

static void spin_limit_find(void)
{
    cpu_set_t set;
    int cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = CPU_COUNT(&set);
    spin_limit = cores > 2 ? SPIN_LIMIT_NS : cores == 2 ? SPIN_LIMIT_FEW_CORES_NS : 0;
}

int64_t gp_spin_limit_ns(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, spin_limit_find);
    return spin_limit;
}

bool gp_spin_spares(void)
{
    return gp_spin_limit_ns() == SPIN_LIMIT_NS;
}

void gp_spin_init(struct gp_spin *spin)
{
    spin->budget_ns = gp_spin_limit_ns();
}

bool gp_spin_naps(int64_t timeout_us)
{
    return timeout_us >= 0 && timeout_us <= gp_spin_limit_ns() / 1000;
}

void gp_spin_learn(struct gp_spin *spin, int64_t waited_ns)
{
    int64_t limit = gp_spin_limit_ns();
    bool worth_it = waited_ns <= limit;
    int64_t next = worth_it ? spin->budget_ns * 2 : spin->budget_ns * 3 / 4;
    if (next < SPIN_FLOOR_NS)
        next = worth_it ? SPIN_FLOOR_NS : 0;
    spin->budget_ns = next < limit ? next : limit;
}

void gp_turnstile_init(struct gp_turnstile *t)
{
    pthread_mutex_init(&t->gate, NULL);
    pthread_mutex_init(&t->lock, NULL);
}

void gp_turnstile_destroy(struct gp_turnstile *t)
{
    pthread_mutex_destroy(&t->gate);
    pthread_mutex_destroy(&t->lock);
}

void gp_turnstile_enter(struct gp_turnstile *t)
{
    pthread_mutex_lock(&t->gate);
    pthread_mutex_lock(&t->lock);
    pthread_mutex_unlock(&t->gate);
}

bool gp_turnstile_try(struct gp_turnstile *t)
{
    if (pthread_mutex_trylock(&t->gate) != 0)
        return false;
    bool got = pthread_mutex_trylock(&t->lock) == 0;
    pthread_mutex_unlock(&t->gate);
    return got;
}

void gp_turnstile_leave(struct gp_turnstile *t)
{
    pthread_mutex_unlock(&t->lock);
}

#define RELIEF_FIRST_MS 1
#define RELIEF_MOST_MS 64

void gp_relief_set(struct gp_relief *r, gp_relief_fn *call, void *owner)
{
    *r = (struct gp_relief){.call = call, .owner = owner, .pause_ms = RELIEF_FIRST_MS};
}

int gp_relief_pause_ms(const struct gp_relief *r, int most_ms)
{
    return r->call && r->pause_ms < most_ms ? r->pause_ms : most_ms;
}

void gp_relief_give(struct gp_relief *r)
{
    if (r->call && r->call(r->owner))
        r->pause_ms = RELIEF_FIRST_MS;
    else if (r->pause_ms < RELIEF_MOST_MS)
        r->pause_ms *= 2;
}

static _Atomic unsigned fork_count;

static void fork_count_child(void)
{
    atomic_fetch_add_explicit(&fork_count, 1, memory_order_relaxed);
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, fork_count_child);
}

unsigned gp_fork_generation(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fork_watch);
    /* Relaxed: the child that counts has one thread, and starts the others. */
    return atomic_load_explicit(&fork_count, memory_order_relaxed);
}

void gp_fd_note(struct gp_fd_mark *mark, int fd)
{
    struct stat s;
    *mark = (struct gp_fd_mark){.fd = fd};
    if (fd >= 0 && fstat(fd, &s) == 0) {
        mark->device = s.st_dev;
        mark->inode = s.st_ino;
    }
}

bool gp_fd_is(const struct gp_fd_mark *mark)
{
    struct stat s;
    return mark->fd < 0 ||
           (fstat(mark->fd, &s) == 0 && s.st_dev == mark->device && s.st_ino == mark->inode);
}
