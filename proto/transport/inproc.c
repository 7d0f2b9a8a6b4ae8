/*
 * Both ends in one process: two bounded queues under one mutex. For unit tests,
 * so clarity before speed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "transport/support.h"
#include "wire/condition.h"

/* Bytes that wait in one direction before a sender has to. */
#define QUEUE_BYTES_MAX ((size_t)8 << 20)

struct letter {
    struct letter *next;
    size_t size;
    _Alignas(16) unsigned char bytes[];
};

struct queue {
    struct letter *first, *last;
    size_t bytes;
    pthread_cond_t changed; /* a letter came or went, or an end closed */
};

struct mapping {
    struct mapping *next;
    void *addr;
    size_t size;
    uint64_t id;
    int users; /* sides that have it */
};

/* What the two ends of a channel have in common. */
struct pair {
    pthread_mutex_t lock;   /* everything below */
    struct queue queues[2]; /* [i] is written by end i */
    bool open[2];
    struct mapping *mappings;
    uint64_t next_id;
};

struct gp_channel {
    struct pair *pair;
    int end;
    struct letter *borrowed; /* the receiving thread's */
    struct gp_relief relief;
};

struct gp_listener {
    struct gp_listener *next;
    char *url;
    struct gp_channel *waiting[16]; /* the accepting ends of new pairs */
    int waiting_count;
    pthread_cond_t changed;
};

static pthread_mutex_t listeners_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gp_listener *listeners; /* under listeners_lock, as their fields */

/* false once the deadline has passed. */
static bool cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
    if (deadline == INT64_MAX) {
        pthread_cond_wait(cond, lock);
        return true;
    }
    struct timespec ts = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    return pthread_cond_timedwait(cond, lock, &ts) == 0;
}

/* --- pairs --------------------------------------------------------------- */

static void pair_free(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        while (p->queues[i].first) {
            struct letter *letter = p->queues[i].first;
            p->queues[i].first = letter->next;
            free(letter);
        }
        pthread_cond_destroy(&p->queues[i].changed);
    }
    while (p->mappings) {
        struct mapping *m = p->mappings;
        p->mappings = m->next;
        munmap(m->addr, m->size);
        free(m);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static int pair_new(struct gp_channel *ends[2])
{
    struct pair *p = calloc(1, sizeof *p);
    ends[0] = calloc(1, sizeof *ends[0]);
    ends[1] = calloc(1, sizeof *ends[1]);
    if (!p || !ends[0] || !ends[1]) {
        free(p);
        free(ends[0]);
        free(ends[1]);
        return -ENOMEM;
    }
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < 2; i++) {
        gp_condition_init(&p->queues[i].changed);
        p->open[i] = true;
        *ends[i] = (struct gp_channel){.pair = p, .end = i};
    }
    p->next_id = 1;
    return 0;
}

static void inproc_close(struct gp_channel *ch)
{
    if (!ch)
        return;
    struct pair *p = ch->pair;
    pthread_mutex_lock(&p->lock);
    p->open[ch->end] = false;
    bool last = !p->open[0] && !p->open[1];
    pthread_cond_broadcast(&p->queues[0].changed);
    pthread_cond_broadcast(&p->queues[1].changed);
    pthread_mutex_unlock(&p->lock);
    free(ch->borrowed);
    free(ch);
    if (last)
        pair_free(p);
}

/* --- listening and connecting -------------------------------------------- */

static struct gp_listener *listener_named(const char *url)
{
    for (struct gp_listener *l = listeners; l; l = l->next)
        if (strcmp(l->url, url) == 0)
            return l;
    return NULL;
}

static int inproc_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    if (strcmp(url, "inproc://") == 0) {
        gp_error_set(err, "'%s' has no name: write inproc://NAME", url);
        return -EINVAL;
    }
    struct gp_listener *l = calloc(1, sizeof *l);
    char *copy = strdup(url);
    if (!l || !copy) {
        free(l);
        free(copy);
        gp_error_set(err, "cannot listen at %s: out of memory", url);
        return -ENOMEM;
    }
    l->url = copy;
    gp_condition_init(&l->changed);
    pthread_mutex_lock(&listeners_lock);
    bool taken = listener_named(url) != NULL;
    if (!taken) {
        l->next = listeners;
        listeners = l;
    }
    pthread_mutex_unlock(&listeners_lock);
    if (taken) {
        gp_error_set(err, "cannot listen at %s: somebody in this process does", url);
        pthread_cond_destroy(&l->changed);
        free(copy);
        free(l);
        return -EADDRINUSE;
    }
    *out = l;
    return 0;
}

static const char *inproc_listener_url(const struct gp_listener *l)
{
    return l->url;
}

static int inproc_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out,
                         struct gp_error *err)
{
    int64_t deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000);
    int rc = 0;
    pthread_mutex_lock(&listeners_lock);
    while (l->waiting_count == 0 && rc == 0)
        if (!cond_wait(&l->changed, &listeners_lock, deadline))
            rc = l->waiting_count ? 0 : -EAGAIN;
    if (l->waiting_count > 0) {
        rc = 0;
        *out = l->waiting[0];
        l->waiting_count--;
        memmove(l->waiting, l->waiting + 1, (size_t)l->waiting_count * sizeof l->waiting[0]);
    }
    pthread_mutex_unlock(&listeners_lock);
    if (rc)
        gp_error_set(err, "nobody connected to %s within %d ms", l->url, timeout_ms);
    return rc;
}

static void inproc_listener_close(struct gp_listener *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&listeners_lock);
    struct gp_listener **at = &listeners;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    pthread_mutex_unlock(&listeners_lock);
    for (int i = 0; i < l->waiting_count; i++)
        inproc_close(l->waiting[i]);
    pthread_cond_destroy(&l->changed);
    free(l->url);
    free(l);
}

static int inproc_connect(const char *url, int timeout_ms, struct gp_channel **out,
                          struct gp_error *err)
{
    (void)timeout_ms; /* whoever listens, is there */
    struct gp_channel *ends[2];
    int rc = pair_new(ends);
    if (rc) {
        gp_error_set(err, "cannot connect to %s: out of memory", url);
        return rc;
    }
    pthread_mutex_lock(&listeners_lock);
    struct gp_listener *l = listener_named(url);
    size_t room = l ? sizeof l->waiting / sizeof l->waiting[0] : 0;
    if (!l || (size_t)l->waiting_count == room) {
        rc = l ? -ETIMEDOUT : -ECONNREFUSED;
    } else {
        l->waiting[l->waiting_count++] = ends[1];
        pthread_cond_signal(&l->changed);
    }
    pthread_mutex_unlock(&listeners_lock);
    if (rc) {
        gp_error_set(err,
                     rc == -ECONNREFUSED ? "nobody in this process listens at %s"
                                         : "the listener at %s does not accept",
                     url);
        inproc_close(ends[0]);
        inproc_close(ends[1]);
        return rc;
    }
    *out = ends[0];
    return 0;
}

/* --- messages ------------------------------------------------------------ */

/* With the pair's lock held, which is released meanwhile. `relief` is this sender's own. */
static void room_wait(struct pair *p, struct queue *q, struct gp_relief *relief)
{
    if (!relief->call) {
        pthread_cond_wait(&q->changed, &p->lock);
        return;
    }
    int64_t pause_us = (int64_t)gp_relief_pause_ms(relief, 1000) * 1000;
    if (cond_wait(&q->changed, &p->lock, gp_deadline_us(pause_us)))
        return;
    pthread_mutex_unlock(&p->lock);
    gp_relief_give(relief);
    pthread_mutex_lock(&p->lock);
}

static int queue_push(struct gp_channel *ch, struct letter *letter)
{
    struct pair *p = ch->pair;
    int end = ch->end;
    struct queue *q = &p->queues[end];
    struct gp_relief relief = ch->relief;
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    while (p->open[!end] && p->open[end] && q->bytes + letter->size > QUEUE_BYTES_MAX)
        room_wait(p, q, &relief);
    if (!p->open[!end] || !p->open[end]) {
        rc = -EPIPE;
    } else {
        if (q->last)
            q->last->next = letter;
        else
            q->first = letter;
        q->last = letter;
        q->bytes += letter->size;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static int inproc_send(struct gp_channel *ch, const struct iovec *iov, int count, unsigned flags)
{
    (void)flags; /* every message is with the peer at once */
    size_t size;
    int rc = gp_gather_size(iov, count, &size);
    if (rc)
        return rc;
    struct letter *letter = malloc(sizeof *letter + gp_align8(size));
    if (!letter)
        return -ENOMEM;
    letter->next = NULL;
    letter->size = size;
    gp_gather_copy(letter->bytes, iov, count);
    rc = queue_push(ch, letter);
    if (rc)
        free(letter);
    return rc;
}

static void inproc_relieve(struct gp_channel *ch, gp_relief_fn *relief, void *owner)
{
    gp_relief_set(&ch->relief, relief, owner);
}

static int inproc_flush(struct gp_channel *ch)
{
    pthread_mutex_lock(&ch->pair->lock);
    int rc = ch->pair->open[!ch->end] ? 0 : -EPIPE;
    pthread_mutex_unlock(&ch->pair->lock);
    return rc;
}

static int inproc_recv(struct gp_channel *ch, int64_t timeout_us, const void **message,
                       size_t *size)
{
    struct pair *p = ch->pair;
    struct queue *q = &p->queues[!ch->end];
    int64_t deadline = timeout_us == 0 ? 0 : gp_deadline_us(timeout_us);
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    while (!q->first && rc == 0) {
        if (!p->open[!ch->end])
            rc = -EPIPE;
        else if (timeout_us == 0 || !cond_wait(&q->changed, &p->lock, deadline))
            rc = q->first ? 0 : -EAGAIN;
    }
    if (rc == 0) {
        struct letter *letter = q->first;
        q->first = letter->next;
        if (!q->first)
            q->last = NULL;
        q->bytes -= letter->size;
        pthread_cond_broadcast(&q->changed);
        ch->borrowed = letter;
        *message = letter->bytes;
        *size = letter->size;
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static void inproc_release(struct gp_channel *ch)
{
    free(ch->borrowed);
    ch->borrowed = NULL;
}

/* --- shares -------------------------------------------------------------- */

static int inproc_share(struct gp_channel *ch, void *hint, size_t size, struct gp_share *out)
{
    struct pair *p = ch->pair;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size == 0 || size > SIZE_MAX / 2)
        return -EINVAL;
    size = (size + page - 1) & ~(page - 1);
    struct mapping *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    m->addr = MAP_FAILED;
    if (hint)
        m->addr = mmap(hint, size, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (m->addr == MAP_FAILED)
        m->addr = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (m->addr == MAP_FAILED) {
        free(m);
        return -ENOMEM;
    }
    m->size = size;
    m->users = 1;
    pthread_mutex_lock(&p->lock);
    m->id = p->next_id++;
    m->next = p->mappings;
    p->mappings = m;
    *out = (struct gp_share){.addr = m->addr, .size = size, .id = m->id, .same_address = true};
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static struct mapping **mapping_find(struct pair *p, uint64_t id)
{
    struct mapping **at = &p->mappings;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static int inproc_accept_share(struct gp_channel *ch, uint64_t id, struct gp_share *out)
{
    struct pair *p = ch->pair;
    pthread_mutex_lock(&p->lock);
    struct mapping *m = *mapping_find(p, id);
    bool fits = m && m->users == 1;
    if (fits) {
        m->users++;
        *out = (struct gp_share){.addr = m->addr, .size = m->size, .id = id, .same_address = true};
    }
    pthread_mutex_unlock(&p->lock);
    return fits ? 0 : -ENOENT;
}

static void inproc_unshare(struct gp_channel *ch, struct gp_share *share)
{
    struct pair *p = ch->pair;
    if (!share || !share->addr)
        return;
    pthread_mutex_lock(&p->lock);
    struct mapping **at = mapping_find(p, share->id);
    struct mapping *m = *at;
    if (m && --m->users == 0) {
        *at = m->next;
        munmap(m->addr, m->size);
        free(m);
    }
    pthread_mutex_unlock(&p->lock);
    share->addr = NULL;
}

static const char *const inproc_schemes[] = {"inproc://", NULL};

const struct gp_transport gp_transport_inproc = {
    .abi = GP_TRANSPORT_ABI,
    .name = "inproc",
    .schemes = inproc_schemes,
    .caps = GP_CAP_SHARE,
    .listen = inproc_listen,
    .listener_url = inproc_listener_url,
    .accept = inproc_accept,
    .listener_close = inproc_listener_close,
    .connect = inproc_connect,
    .send = inproc_send,
    .flush = inproc_flush,
    .relieve = inproc_relieve,
    .recv = inproc_recv,
    .release = inproc_release,
    .share = inproc_share,
    .accept_share = inproc_accept_share,
    .unshare = inproc_unshare,
    .close = inproc_close,
};
