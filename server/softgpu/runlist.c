#include "runlist.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Read by threads that do not hold the lock; written only by those who do. */
#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

/* --- turns; the lock is held ---------------------------------------------------- */

static bool wants(const struct sg_runlist_entry *e)
{
    return e->pid && !e->stuck && (e->inside || e->waiting);
}

static uint64_t slice_ns(const struct sg_runlist_entry *e)
{
    return (uint64_t)(e->slice_us ? e->slice_us : SG_SLICE_US) * 1000;
}

static void count_contended(struct sg_runlist_file *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->top; i++)
        n += (int32_t)i != f->holder && wants(&f->entries[i]);
    STORE(f->contended, n);
}

static int32_t next_of(const struct sg_runlist_file *f)
{
    for (uint32_t k = 1; k <= f->top; k++) {
        uint32_t i = (f->last + k) % f->top;
        if (wants(&f->entries[i]))
            return (int32_t)i;
    }
    return -1;
}

static void wake(struct sg_runlist_entry *e)
{
    STORE(e->epoch, e->epoch + 1);
    if (e->waiting)
        syscall(SYS_futex, &e->epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Ends the turn under way, if there is one, and begins the next one's. */
static void advance(struct sg_runlist_file *f, uint64_t now)
{
    if (f->holder >= 0 && now > f->granted_at)
        f->entries[f->holder].held_ns += now - f->granted_at;
    int32_t next = next_of(f);
    STORE(f->holder, next);
    STORE(f->closing, 0);
    if (next >= 0) {
        struct sg_runlist_entry *e = &f->entries[next];
        f->last = (uint32_t)next;
        f->granted_at = now;
        STORE(f->slice_end, now + slice_ns(e));
        STORE(e->turns, e->turns + 1);
        e->granted_us += slice_ns(e) / 1000;
        wake(e);
    }
    count_contended(f);
}

/* A slice that ended while nobody else had work was followed by another one. */
static void renew(struct sg_runlist_file *f, uint64_t now)
{
    if (f->holder < 0 || f->contended || now < f->slice_end)
        return;
    uint64_t slice = slice_ns(&f->entries[f->holder]);
    STORE(f->slice_end, f->slice_end + ((now - f->slice_end) / slice + 1) * slice);
}

static void entry_remove(struct sg_runlist_file *f, int entry, uint64_t now)
{
    bool held = f->holder == entry;
    if (held && now > f->granted_at)
        f->entries[entry].held_ns += now - f->granted_at;
    memset(&f->entries[entry], 0, sizeof(f->entries[entry]));
    while (f->top && !f->entries[f->top - 1].pid)
        f->top--;
    if (held) {
        STORE(f->holder, -1);
        advance(f, now);
    } else {
        count_contended(f);
    }
}

/* Each process locks the byte of its entry, behind the file's end, for as long as it lives. */
static int entry_lock(const struct sg_runlist *list, int entry, int command, short type)
{
    struct flock lock = {.l_type = type,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)sizeof(*list->file) + entry,
                         .l_len = 1};
    if (fcntl(list->fd, command, &lock) != 0)
        return -errno;
    return lock.l_type == F_UNLCK ? 0 : 1;
}

static bool entry_dead(const struct sg_runlist *list, int entry)
{
    const struct sg_runlist_entry *e = &list->file->entries[entry];
    if (!e->pid)
        return false;
    if (list->world->alive)
        return !list->world->alive(list->world->context, e->pid, e->start);
    return !list->own[entry] && entry_lock(list, entry, F_OFD_GETLK, F_WRLCK) == 0;
}

static void reap(struct sg_runlist *list, uint64_t now)
{
    for (int i = SG_RUNLIST_ENTRIES - 1; i >= 0; i--)
        if (entry_dead(list, i))
            entry_remove(list->file, i, now);
}

/* What somebody who died with the lock may have left half done. */
static void repair(struct sg_runlist *list, uint64_t now)
{
    struct sg_runlist_file *f = list->file;
    f->top = 0;
    for (uint32_t i = 0; i < SG_RUNLIST_ENTRIES; i++)
        if (f->entries[i].pid)
            f->top = i + 1;
    if (f->holder < -1 || f->holder >= (int32_t)f->top)
        STORE(f->holder, -1);
    if (f->last >= f->top)
        f->last = 0;
    reap(list, now);
    if (f->holder < 0 || !wants(&f->entries[f->holder]))
        advance(f, now);
    count_contended(f);
}

/* Every process with the device may write there. */
bool sg_runlist_indices_ok(const struct sg_runlist_file *f)
{
    int32_t holder = LOAD(f->holder);
    return LOAD(f->top) <= SG_RUNLIST_ENTRIES && LOAD(f->last) < SG_RUNLIST_ENTRIES &&
           holder >= -1 && holder < SG_RUNLIST_ENTRIES;
}

static uint64_t lock(struct sg_runlist *list)
{
    int r = pthread_mutex_lock(&list->file->lock);
    uint64_t now = list->world->now(list->world->context);
    if (r == EOWNERDEAD || !sg_runlist_indices_ok(list->file))
        repair(list, now);
    if (r == EOWNERDEAD)
        pthread_mutex_consistent(&list->file->lock);
    return now;
}

static void unlock(struct sg_runlist *list)
{
    pthread_mutex_unlock(&list->file->lock);
}

/* --- entries ---------------------------------------------------------------------- */

int sg_runlist_join(struct sg_runlist *list, int32_t pid, uint64_t start)
{
    struct sg_runlist_file *f = list->file;
    int found = -ENOSPC;
    reap(list, lock(list));
    for (int i = 0; i < SG_RUNLIST_ENTRIES && found < 0; i++)
        if (!f->entries[i].pid) {
            if (!list->world->alive && entry_lock(list, i, F_OFD_SETLK, F_WRLCK) < 0)
                continue; /* somebody who has lost the entry has its lock yet */
            f->entries[i] = (struct sg_runlist_entry){.pid = pid, .start = start};
            list->own[i] = true;
            if (f->top <= (uint32_t)i)
                f->top = (uint32_t)i + 1;
            found = i;
        }
    unlock(list);
    return found;
}

void sg_runlist_leave(struct sg_runlist *list, int entry)
{
    uint64_t now = lock(list);
    entry_remove(list->file, entry, now);
    if (!list->world->alive)
        entry_lock(list, entry, F_OFD_SETLK, F_UNLCK);
    list->own[entry] = false;
    unlock(list);
}

int sg_runlist_slice(struct sg_runlist *list, int entry, uint64_t us)
{
    struct sg_runlist_file *f = list->file;
    struct sg_runlist_entry *e = &f->entries[entry];
    if (us > SG_SLICE_MOST_US)
        return -EINVAL;
    lock(list);
    if (e->slice_us != us) {
        e->slice_us = (uint32_t)us;
        if (f->holder == entry)
            STORE(f->slice_end, f->granted_at + slice_ns(e));
    }
    unlock(list);
    return 0;
}

void sg_runlist_memory(struct sg_runlist *list, int entry, uint64_t bytes)
{
    STORE(list->file->entries[entry].memory, bytes);
}

/* --- threads ------------------------------------------------------------------------ */

static bool may_run(const struct sg_runlist_file *f, int entry)
{
    return f->holder == entry && !f->closing;
}

bool sg_runlist_enter(struct sg_runlist *list, int entry)
{
    struct sg_runlist_file *f = list->file;
    struct sg_runlist_entry *e = &f->entries[entry];
    uint64_t now = lock(list);
    e->stuck = 0;
    if (f->holder != entry)
        renew(f, now);
    e->inside++; /* not yet as one that sleeps: who is alone wakes nobody */
    if (f->holder < 0)
        advance(f, now);
    if (!may_run(f, entry)) {
        e->inside--;
        e->waiting++;
    }
    count_contended(f);
    bool runs = may_run(f, entry);
    unlock(list);
    return runs;
}

/* A holder that died, or that has not stopped for far too long. */
static void look_at_holder(struct sg_runlist *list, uint64_t now)
{
    struct sg_runlist_file *f = list->file;
    if (f->holder < 0) {
        advance(f, now);
    } else if (entry_dead(list, f->holder)) {
        entry_remove(f, f->holder, now);
    } else if (f->contended && now >= f->slice_end + SG_RUNLIST_GRACE_NS) {
        f->entries[f->holder].stuck = 1;
        f->entries[f->holder].revoked++;
        advance(f, now);
    }
}

bool sg_runlist_ask(struct sg_runlist *list, int entry)
{
    struct sg_runlist_file *f = list->file;
    struct sg_runlist_entry *e = &f->entries[entry];
    uint64_t now = lock(list);
    e->stuck = 0;
    count_contended(f);
    if (f->holder != entry)
        look_at_holder(list, now);
    bool runs = may_run(f, entry);
    if (runs) {
        e->waiting--;
        e->inside++;
    }
    unlock(list);
    return runs;
}

uint32_t sg_runlist_seen(const struct sg_runlist *list, int entry)
{
    return LOAD(list->file->entries[entry].epoch);
}

void sg_runlist_wait(struct sg_runlist *list, int entry, uint32_t seen, uint64_t most_ns)
{
    struct timespec t = {(time_t)(most_ns / 1000000000u), (long)(most_ns % 1000000000u)};
    syscall(SYS_futex, &list->file->entries[entry].epoch, FUTEX_WAIT, seen, &t, NULL, 0);
}

/* A thread is gone from the entry; its turn may be over with it. */
static void thread_gone(struct sg_runlist_file *f, int entry, uint64_t now)
{
    const struct sg_runlist_entry *e = &f->entries[entry];
    if (f->holder == entry && e->inside == 0 && (e->waiting == 0 || f->closing))
        advance(f, now);
    else
        count_contended(f);
}

void sg_runlist_withdraw(struct sg_runlist *list, int entry)
{
    uint64_t now = lock(list);
    list->file->entries[entry].waiting--;
    thread_gone(list->file, entry, now);
    unlock(list);
}

bool sg_runlist_due(const struct sg_runlist *list, int entry)
{
    const struct sg_runlist_file *f = list->file;
    return LOAD(f->holder) != entry || LOAD(f->closing) ||
           list->world->now(list->world->context) >= LOAD(f->slice_end);
}

bool sg_runlist_pause(struct sg_runlist *list, int entry)
{
    struct sg_runlist_file *f = list->file;
    struct sg_runlist_entry *e = &f->entries[entry];
    /* without the lock first: most looks come before the slice is over */
    if (!sg_runlist_due(list, entry))
        return true;
    uint64_t now = lock(list);
    e->stuck = 0;
    if (f->holder < 0)
        advance(f, now); /* it was revoked, and nobody else is left */
    bool runs = may_run(f, entry) && !(f->contended && now >= f->slice_end);
    if (!runs) {
        e->inside--;
        e->waiting++;
        if (f->holder == entry)
            STORE(f->closing, 1);
        if (f->holder == entry && e->inside == 0)
            e->preempted++;
        thread_gone(f, entry, now);
    }
    unlock(list);
    return runs;
}

void sg_runlist_finish(struct sg_runlist *list, int entry)
{
    uint64_t now = lock(list);
    list->file->entries[entry].stuck = 0;
    list->file->entries[entry].inside--;
    thread_gone(list->file, entry, now);
    unlock(list);
}

/* --- accounts ------------------------------------------------------------------------ */

struct text {
    char *out;
    size_t room, used;
};

static void __attribute__((format(printf, 2, 3))) put(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t left = t->used < t->room ? t->room - t->used : 0;
    int n = vsnprintf(left ? t->out + t->used : NULL, left, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

static void put_entry(struct text *t, const struct sg_runlist_entry *e, uint64_t held_ns)
{
    put(t, "{\"pid\": %d, \"slice_us\": %llu, \"working\": %s, \"turns\": %llu, ", e->pid,
        (unsigned long long)(slice_ns(e) / 1000), wants(e) ? "true" : "false",
        (unsigned long long)e->turns);
    put(t, "\"granted_us\": %llu, \"held_ns\": %llu, \"preempted\": %llu, \"revoked\": %llu, ",
        (unsigned long long)e->granted_us, (unsigned long long)held_ns,
        (unsigned long long)e->preempted, (unsigned long long)e->revoked);
    put(t, "\"memory\": %llu}", (unsigned long long)e->memory);
}

int sg_runlist_describe(const struct sg_runlist_file *f, uint64_t now, char *out, int size)
{
    struct text t = {out, size > 0 ? (size_t)size : 0, 0};
    const char *between = "";
    if (f->holder >= 0)
        put(&t, "{\"holder\": %d", f->entries[f->holder].pid);
    else
        put(&t, "{\"holder\": null");
    put(&t, ", \"contended\": %u, \"entries\": [", f->contended);
    for (uint32_t i = 0; i < f->top; i++) {
        const struct sg_runlist_entry *e = &f->entries[i];
        bool holds = f->holder == (int32_t)i && now > f->granted_at;
        if (!e->pid)
            continue;
        put(&t, "%s", between);
        put_entry(&t, e, e->held_ns + (holds ? now - f->granted_at : 0));
        between = ", ";
    }
    put(&t, "]}");
    return t.used > INT_MAX ? INT_MAX : (int)t.used;
}
