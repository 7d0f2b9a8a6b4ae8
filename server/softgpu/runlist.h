/*
 * Who runs on a soft device: a small file that all processes with that device have
 * mapped. As on hardware's runlist, each process with work has an entry (its channel
 * group), entries take turns, and a turn lasts for the entry's time slice unless its
 * work ends before. Several threads of a process run in its turn together.
 *
 * It says only whose turn it is; the threads keep to it by themselves (timeslice.c). A
 * process that dies, even with the file's lock, is taken out by those who wait, and one
 * that is stopped in its turn loses it. The clock and who is alive come from a world,
 * so that a test can make both up (tests/c/test_softgpu_slices.c).
 */
#ifndef SG_RUNLIST_H
#define SG_RUNLIST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SG_RUNLIST_ENTRIES 512
#define SG_RUNLIST_VERSION 3u
#define SG_SLICE_US 2000u          /* where none is set, as hardware's */
#define SG_SLICE_MOST_US 10000000u /* that can be set */
/* So long after its slice has ended, a holder that lives but does not stop loses its turn. */
#define SG_RUNLIST_GRACE_NS UINT64_C(500000000)

struct sg_runlist_entry {
    int32_t pid;    /* 0: free */
    uint32_t stuck; /* it lost a turn that it did not give up, and has not been heard since */
    uint64_t start; /* of the process, in clock ticks since boot */
    uint32_t slice_us;
    uint32_t inside;  /* threads that run */
    uint32_t waiting; /* threads with work, until it is their turn */
    uint32_t epoch;   /* changes with each grant: what they sleep on */
    /* accounts */
    uint64_t turns;      /* grants */
    uint64_t granted_us; /* their slices */
    uint64_t held_ns;    /* how long it has really had the device */
    uint64_t preempted;  /* turns that ended with its slice, not with its work */
    uint64_t revoked;    /* turns that were taken away */
    uint64_t memory;     /* bytes of the device's that it has */
};

struct sg_runlist_file {
    uint64_t magic;
    uint32_t version;
    uint32_t size; /* sizeof(struct sg_runlist_file) */
    pthread_mutex_t lock;
    /* read without the lock, by all who run */
    int32_t holder;     /* whose turn it is, -1: nobody's */
    uint32_t contended; /* other entries with work */
    uint32_t closing;   /* the holder's threads are stopping */
    uint32_t top;       /* entries from here on are free */
    uint64_t slice_end; /* ns */
    /* under the lock */
    uint64_t granted_at; /* ns */
    uint32_t last;       /* the holder, or who was it last: the next one follows it */
    struct sg_runlist_entry entries[SG_RUNLIST_ENTRIES];
};

struct sg_runlist_world {
    uint64_t (*now)(void *context); /* ns, the same for all processes */
    /* NULL: an entry is alive as long as its process has the entry's lock, which works
     * whatever pid namespaces the processes are in. */
    bool (*alive)(void *context, int32_t pid, uint64_t start);
    void *context;
};
extern const struct sg_runlist_world sg_runlist_real;

struct sg_runlist {
    struct sg_runlist_file *file;
    const struct sg_runlist_world *world;
    int fd;
    bool own[SG_RUNLIST_ENTRIES]; /* entries that this process has through it */
};

/* A file that all processes of a folder may write to, made if it is not there: a descriptor, or -1
 * with errno. */
int sg_shared_file(const char *path);
/* Make (if it is not there) and map. 0 or a negative errno; -EPROTO: not such a file. */
int sg_runlist_open(const char *path, const struct sg_runlist_world *world,
                    struct sg_runlist **out);
void sg_runlist_close(struct sg_runlist *list);

/* When a process started, for join; 0: there is none. */
uint64_t sg_process_start(int32_t pid);
/* An entry for a process; takes out what is dead. Its index, or -ENOSPC. */
int sg_runlist_join(struct sg_runlist *list, int32_t pid, uint64_t start);
void sg_runlist_leave(struct sg_runlist *list, int entry);
/* In force at once, also for the turn under way. 0: the default. -EINVAL: too long. */
int sg_runlist_slice(struct sg_runlist *list, int entry, uint64_t us);

/* What the process has of the device's memory now. */
void sg_runlist_memory(struct sg_runlist *list, int entry, uint64_t bytes);

/* A thread has work. True: it runs, and calls pause or finish. False: it waits, and calls
 * ask until that is true, or withdraw. */
bool sg_runlist_enter(struct sg_runlist *list, int entry);
bool sg_runlist_ask(struct sg_runlist *list, int entry);
/* Sleep until ask may be true, at most for `most_ns`. */
void sg_runlist_wait(struct sg_runlist *list, int entry, uint32_t seen, uint64_t most_ns);
/* What to give to wait: taken before ask. */
uint32_t sg_runlist_seen(const struct sg_runlist *list, int entry);
void sg_runlist_withdraw(struct sg_runlist *list, int entry);
/* A thread that runs stops if the turn is over. True: it still runs. False: it waits. */
bool sg_runlist_pause(struct sg_runlist *list, int entry);
/* It has no more work. */
void sg_runlist_finish(struct sg_runlist *list, int entry);

/* Whether a thread that runs need not look closer; called very often. */
static inline bool sg_runlist_alone(const struct sg_runlist *list, int entry)
{
    const struct sg_runlist_file *f = list->file;
    return __atomic_load_n(&f->contended, __ATOMIC_RELAXED) == 0 &&
           __atomic_load_n(&f->holder, __ATOMIC_RELAXED) == entry;
}

/* Whether a thread that runs must call pause now: the turn may be over. */
bool sg_runlist_due(const struct sg_runlist *list, int entry);

/* Whether what is counted with in it can be. */
bool sg_runlist_indices_ok(const struct sg_runlist_file *f);
/* JSON: {"holder": pid or null, "contended", "entries": [{pid, slice_us, working, and the
 * accounts}]}, at this moment. Its length as snprintf has it. */
int sg_runlist_describe(const struct sg_runlist_file *f, uint64_t now, char *out, int size);
/* A copy of the file, without its lock and without a mapping: whoever writes to it, or cuts it,
 * stops nobody who looks. 0 or a negative errno; -EPROTO: not such a file. */
int sg_runlist_copy(const char *path, struct sg_runlist_file *copy);

#endif
