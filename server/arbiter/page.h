/*
 * The page that a worker shares with the arbiter of its GPU, and with nobody else: a sealed
 * memfd, which can be neither cut nor grown. The worker says there what it does and what it
 * asks for; the arbiter answers, and says whether the worker has its turn.
 *
 * Either side may find anything there. The arbiter loads each word of the worker's once,
 * believes it within bounds that are its own, and never reads back what it has written. A
 * worker that writes what is the arbiter's misleads itself.
 */
#ifndef GP_PAGE_H
#define GP_PAGE_H

#include <stdint.h>

#include "board.h"

#define GP_PAGE_VERSION 2u
#define GP_PAGE_BYTES 4096

/* What a worker asks for: one at a time, `asked` counts them. */
enum gp_page_op {
    GP_PAGE_ENTER = 1, /* -> 1: it may submit; 0: it waits now */
    GP_PAGE_STARTED,   /* its turn has begun on the GPU */
    GP_PAGE_TAKE,      /* a: bytes that it wants to hold in all -> 1: granted; 0: over the limit */
    GP_PAGE_LOOK,      /* look at all pages, and say anew what is left of the memory */
    GP_PAGE_COPY,      /* a: enum gp_board_way, b: bytes -> 1 or 0: ask again */
    GP_PAGE_LEAVE,
};

/* What the arbiter says of a turn. */
enum gp_page_flag {
    GP_PAGE_HOLDS = 1,     /* its tenant has the turn */
    GP_PAGE_YIELD = 2,     /* and must end it */
    GP_PAGE_OPEN = 4,      /* the policy knows no turns */
    GP_PAGE_CONTENDED = 8, /* somebody waits for it to end */
    GP_PAGE_FRESH = 16,    /* nothing has run in this turn */
    GP_PAGE_BESIDE = 32,   /* it was let in without having the turn */
    GP_PAGE_TELL = 64,     /* ring the bell whenever work begins or ends */
    GP_PAGE_WAITS = 128,   /* it is counted as one that waits */
};

/* Whether a worker sees the end of all that it has put on the GPU. */
enum gp_page_sight {
    GP_PAGE_UNSAID, /* it is of an earlier release, or no worker of ours */
    GP_PAGE_SEES,
    GP_PAGE_LOST, /* it has given a turn back, or had none, with work there that it did not see end */
};

/* No memory of anything is so much. */
#define GP_PAGE_MEMORY_MOST GP_BOARD_MEMORY_MOST

struct gp_page {
    /* the worker's */
    uint32_t asked;
    uint32_t op; /* enum gp_page_op */
    uint64_t a, b;
    uint32_t runs;         /* odd: it has work on the GPU; changes when that begins and ends */
    uint32_t sight;        /* enum gp_page_sight; only rises */
    uint64_t began, ended; /* ns: when it did so last */
    uint64_t busy_ns;      /* the runs that are over */
    uint64_t launches, bytes_copied, host_used;
    uint64_t copied[GP_BOARD_WAYS]; /* bytes that went without asking (alone_until) */
    uint64_t held;                  /* bytes of the GPU's memory that it has */
    uint64_t claims;                /* and with what it is about to take of what it was granted */
    uint64_t most;                  /* it has held since the arbiter looked last, which leaves 0 */
    uint64_t collective;            /* that it has begun last: GP_PAGE_COLLECTIVE, 0: none */
    /* the arbiter's */
    uint32_t version __attribute__((aligned(128)));
    uint32_t answered; /* the request that `result` is of; a futex */
    uint32_t result;
    uint32_t flags; /* enum gp_page_flag */
    uint32_t epoch; /* changes with the flags: what one that waits sleeps on */
    uint64_t check_at;
    uint64_t alone_until[GP_BOARD_WAYS];
    uint64_t granted;       /* bytes that it may hold without asking: charged to its tenant */
    uint64_t memory_others; /* bytes that its tenant's other workers held at the last look */
    uint64_t memory_limit;  /* of its tenant */
    uint32_t members;       /* likewise: its workers */
    uint64_t slice_us;
    uint64_t collective_most; /* of its own communicator, the latest that a worker of its tenant has
                                 begun; 0: nothing is said */
};

/* Which communicator, and which of its collectives, counted by each rank for itself. */
#define GP_PAGE_COLLECTIVE(communicator, number) ((uint64_t)(communicator) << 32 | (number))

/* A new page and its bell (an eventfd): 0 or a negative errno. */
int gp_page_make(int *page_fd, int *bell_fd);
/* Map a page that was handed in. -EPROTO: it is none, or can be cut. */
int gp_page_map(int page_fd, struct gp_page **page);
void gp_page_unmap(struct gp_page *page);

/* A word that the other side writes, and one that it reads. */
#define GP_PAGE_LOAD(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
#define GP_PAGE_STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)
/* Between a word of ours and a look at one of theirs that must not be swapped. */
#define GP_PAGE_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)

#endif
