/* What the files of managed memory keep together. All of it is under one lock, of rank 6
 * (session.h), which is held while messages are sent and while blocks are fetched, never while
 * work is waited for that may depend on another thread. */
#ifndef GPC_MANAGED_INTERNAL_H
#define GPC_MANAGED_INTERNAL_H

#include "area.h"
#include "managed.h"

enum gpc_block { GPC_BLOCK_WRITTEN, GPC_BLOCK_SAME, GPC_BLOCK_STALE };

/* How far touches follow each other, of one kind. */
struct gpc_stride {
    uint32_t next, run; /* blocks */
};

/* Addresses, the last one not among them. */
struct gpc_span {
    uint64_t begin, end;
};

struct gpc_parts;

enum gpc_managed_kind {
    GPC_MANAGED_ALLOCATED,  /* cuMemAllocManaged: a part of its window's area */
    GPC_MANAGED_VARIABLE,   /* a module's; it has an area of its own, as the two below have */
    GPC_MANAGED_PINNED,     /* mapped memory of cuMemHostAlloc */
    GPC_MANAGED_REGISTERED, /* and of cuMemHostRegister: its pages stay when it is closed */
};

struct gpc_managed {
    uint64_t begin, bytes; /* whole pages */
    struct gpc_area *area;
    struct gpc_parts *parts; /* the variables in it; NULL: all of it is memory (parts.c) */
    char *twin; /* mapped memory: what the GPU's host had last (mapped.c); NULL: managed */
    CUcontext context;
    CUstream own;           /* a stream of this library's, on which blocks travel */
    unsigned flags;         /* CUmemAttach_flags that it was allocated with, */
    unsigned attached;      /* and that it has now */
    uint64_t attached_to;   /* the stream, for CU_MEM_ATTACH_SINGLE */
    uint64_t attached_at;   /* the epoch then */
    uint64_t epoch, waited; /* of the last work that might touch it, and what was waited for */
    bool open;              /* some block is not STALE */
    enum gpc_managed_kind kind;
    bool whole; /* the host is going to use all of it, or its parts are too many */
    struct gpc_stride fetch, write;
    struct gpc_advice *advice; /* of each block; NULL: none (advice.c) */
    uint64_t block_bytes;
    uint32_t blocks;
    uint8_t state[]; /* enum gpc_block */
};

void gpc_managed_lock(void);
void gpc_managed_unlock(void);
/* Whether there is any, without the lock. */
bool gpc_managed_any(void);
/* The allocation that an address lies in; NULL: none. */
struct gpc_managed *gpc_managed_find(uint64_t address);
/* The first one that ends behind an address; NULL: none. */
struct gpc_managed *gpc_managed_behind(uint64_t address);
/* A new one, all WRITTEN and of the current context; NULL: no memory. Its area and twin are the
 * table's once it is there; before that its maker frees it. */
struct gpc_managed *gpc_managed_record(CUdeviceptr at, uint64_t bytes, uint64_t page,
                                       unsigned flags);
CUresult gpc_managed_add(struct gpc_managed *m);
/* Out of the table, and closed here; `m` is gone. */
void gpc_managed_remove(struct gpc_managed *m);
/* Call `each` for all of them. */
void gpc_managed_each(void (*each)(struct gpc_managed *m, void *arg), void *arg);
/* Blocks from `first` on become `state`. 0, or -errno when that would be too many mappings. */
int gpc_managed_set(struct gpc_managed *m, uint32_t first, uint32_t count, enum gpc_block state);
/* Send what was touched of these blocks to the GPU's host: whether there was anything. */
bool gpc_managed_bring_there(struct gpc_managed *m, uint32_t first, uint32_t count);
/* And wait until they are here. */
CUresult gpc_managed_bring_here(struct gpc_managed *m, uint32_t first, uint32_t count);
/* The same for any of its addresses, of what is no mapped memory. */
CUresult gpc_managed_bring_span(struct gpc_managed *m, struct gpc_span span);
/* The bytes of a run of blocks: the last one may be shorter. */
uint64_t gpc_managed_bytes(const struct gpc_managed *m, uint32_t first, uint32_t count);
/* Calls between these two are this library's own: they bring nothing over, and leave no trace in
 * the thread's state. */
struct gpc_own_calls {
    struct gpc_session *last;
    uint64_t last_answer;
    bool may_end, managed;
};
void gpc_own_calls_begin(struct gpc_own_calls *before);
void gpc_own_calls_end(const struct gpc_own_calls *before);

/* before.c: contexts on the host of `m` in which work was submitted that may still be under way,
 * and forget those in which everything up to an epoch was waited for. */
#define GPC_MANAGED_CONTEXTS 64
uint64_t gpc_managed_epoch(void); /* of the last work that may have seen any of it */
uint64_t gpc_managed_touched_at(const struct gpc_managed *m); /* and all of this one */
void gpc_managed_note_open(void);                             /* a block is not STALE any more */
unsigned gpc_managed_busy(const struct gpc_managed *m, CUcontext contexts[GPC_MANAGED_CONTEXTS]);
void gpc_managed_idle(const CUcontext *contexts, unsigned count, uint64_t up_to);
/* Whether work may be under way that changes mapped memory. */
bool gpc_managed_busy_mapped(void);
/* All contexts with work under way. */
unsigned gpc_managed_busy_all(CUcontext contexts[GPC_MANAGED_CONTEXTS]);
/* What the host has written of these blocks goes over. */
void gpc_managed_bring_written(struct gpc_managed *m, uint32_t first, uint32_t end);

/* touch.c: all of it is one mapping from now on, and what is not here yet is brought. */
void gpc_managed_open_whole(struct gpc_managed *m);

/* parts.c: the first addresses of [from, to) that are memory; false: none. */
bool gpc_parts_next(const struct gpc_managed *m, uint64_t from, uint64_t to, struct gpc_span *next);
bool gpc_parts_have(const struct gpc_managed *m, uint64_t address);
/* OUT_OF_MEMORY, or UNKNOWN where one lies there. */
CUresult gpc_parts_add(struct gpc_managed *m, struct gpc_span part);
/* Whether any is left without those that meet the span. */
bool gpc_parts_remove(struct gpc_managed *m, struct gpc_span span);
size_t gpc_parts_count(const struct gpc_managed *m);
struct gpc_span gpc_parts_at(const struct gpc_managed *m, size_t i);

/* registered.c: kernels reach it no more, and it is the program's own again. */
void gpc_registered_give_back(uint64_t begin);

/* mapped.c: the two ways of mapped memory's bytes, */
void gpc_mapped_bring_there(struct gpc_managed *m, uint32_t first, uint32_t count);
CUresult gpc_mapped_bring_here(struct gpc_managed *m, uint32_t first, uint32_t count);
/* and (mapped_watch.c) who closes it again: a block is about to be opened while work is under way,
 * for an instruction at `pc` (0: nobody knows); or several are open already. */
void gpc_mapped_focus(struct gpc_managed *m, uint32_t block, uintptr_t pc);
void gpc_mapped_for_now(void);
/* Close blocks from `first` up to `end`: what the host has written goes over. */
void gpc_mapped_close_part(struct gpc_managed *m, uint32_t first, uint32_t end);
/* All of mapped memory that mapped_hot.c has not open. */
void gpc_mapped_close_others(void);
/* Before the first one, by one thread at a time. 0, or -errno. */
int gpc_mapped_watch(void);
/* What differs between `now`, which lies at `begin` of the allocation, and the twin goes over. */
void gpc_mapped_send_changed(struct gpc_managed *m, uint64_t begin, uint64_t bytes,
                             const char *now);

/* mapped_hot.c: blocks that stay open while work is under way. Whether those of `m` can; */
bool gpc_hot_may(const struct gpc_managed *m);
/* open one for a touch: 0, or -errno; */
int gpc_hot_open(struct gpc_managed *m, uint32_t block, const struct gpc_touch *t);
bool gpc_hot_has(const struct gpc_managed *m, uint32_t block);
/* send what the host has written. False: nothing is open, or nothing has changed for long; else for
 * how long nothing has; */
bool gpc_hot_scan(uint64_t *still_ns);
/* bring what the GPU has written; the lock is given up meanwhile. False: nothing is open; */
bool gpc_hot_refresh(uint64_t *still_ns);
/* whether it waits for an answer just now (for tests, whose session ends before the process); */
bool gpc_hot_asks(void);
/* bytes of the host's go over; its allocation is closed. */
void gpc_hot_sent(const struct gpc_managed *m, uint64_t into, uint64_t bytes);
void gpc_hot_forget(const struct gpc_managed *m);

/* fault.c: from now on faults may come. 0, or -errno. */
int gpc_faults_watch(void);
/* And in these pages, which lie in no window: pinned memory, which lies near to each other; */
void gpc_faults_expect(uint64_t begin, uint64_t end);
/* or others, which may lie anywhere, until they are given back. False: that would be more places. */
#define GPC_PLACES 256u
bool gpc_faults_expect_here(uint64_t begin, uint64_t end);
void gpc_faults_given_back(uint64_t begin);
/* Whether an address may lie in memory that is opened by faults. */
bool gpc_faults_may(uint64_t address);
/* A thread of this library's, which takes no signals. 0, or -errno. */
int gpc_faults_thread(void *(*run)(void *));

#endif
