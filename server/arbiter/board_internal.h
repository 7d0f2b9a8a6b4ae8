/* The board as it lies in the shared file, and what its parts ask of each other. */
#ifndef GP_BOARD_INTERNAL_H
#define GP_BOARD_INTERNAL_H

#include "board.h"

#define GP_BOARD_MAGIC UINT64_C(0x6472616f62706770) /* "pgpboard" */
#define GP_BOARD_VERSION 3u

/* What a tenant has copied one way, to or from its host (copy.c). */
struct copy_account {
    uint64_t vtime;       /* ns of the engine * 1000 / weight */
    uint64_t seen_at;     /* it asked last */
    uint64_t waits_since; /* ns, 0: does not wait */
    uint64_t paced_to;    /* the ceiling's time for what was let through */
};

struct tenant_slot {
    char name[GP_BOARD_NAME]; /* empty: free */
    struct gp_board_grant grant;
    struct gp_board_usage usage;
    /* what the policy makes of the grant (entitle.c) */
    uint32_t weight;  /* of the time that is contended for, 0: none */
    uint32_t ceiling; /* permille of all time, 1000: no ceiling */
    /* the turn's bookkeeping (turn.c) */
    uint64_t vtime;      /* charged ns * 1000 / weight */
    int64_t tokens;      /* ns that the ceiling still allows */
    uint64_t tokens_at;  /* when they were counted */
    uint64_t charged_to; /* ns: until when it has been charged */
    uint64_t idle_since; /* no member has been at work since */
    uint64_t busy_from;  /* counted in usage.busy_ns until here */
    uint32_t starved;    /* the ceiling holds it back until enough tokens are there */
    uint32_t amnesty;    /* what it has on the GPU is not charged */
    uint32_t wanting;    /* members that wait at the gate */
    uint32_t busy;       /* members with work on the GPU */
    struct copy_account copies[GP_BOARD_WAYS];
};

struct member_slot {
    int32_t pid; /* 0: free */
    uint32_t tenant;
    uint64_t start_time; /* of the process, in clock ticks since boot */
    uint64_t memory_used;
    uint64_t host_used;
    uint64_t wants_since; /* ns, 0: does not wait */
    uint64_t slice_us;
    uint32_t busy;
    uint32_t beside; /* it was let in without having the turn */
};

struct board_file {
    uint64_t magic;
    uint32_t version;
    uint32_t size;   /* sizeof(struct board_file) */
    uint32_t lock;   /* the pid of its owner (lock.c); 0: free */
    uint32_t forced; /* times it was taken from an owner that lives */
    struct gp_board_gpu gpu;
    /* read without the lock, by every submission */
    uint32_t epoch;     /* changes with every turn: what waiters sleep on */
    int32_t holder;     /* the tenant whose turn it is, -1: nobody's */
    uint32_t yielding;  /* it must end its turn */
    uint32_t open;      /* the policy knows no turns */
    uint32_t contended; /* others wait, or a high-priority tenant is there */
    uint64_t check_at;  /* ns: when the holder must look more closely */
    /* under the lock */
    uint64_t quantum_end, yield_at, reaped_at;
    uint32_t relaxed; /* the weights alone keep everybody under the ceiling */
    uint64_t turn_began;
    uint64_t contended_at; /* somebody waited for a turn last */
    uint32_t turn_fresh;   /* its tenant has not begun to use it */
    uint64_t vclock;       /* no tenant with work is further behind than this */
    uint64_t longest;      /* ns: of the turns of late */
    int64_t high_tokens;   /* ns that prio_ratio still allows */
    uint64_t high_tokens_at;
    struct {
        uint64_t vclock;  /* of the copy that was let through last */
        uint64_t free_at; /* when the engine has done what was let through */
    } copies[GP_BOARD_WAYS];
    struct tenant_slot tenants[GP_BOARD_TENANTS];
    struct member_slot members[GP_BOARD_MEMBERS];
};

struct gp_board {
    struct board_file *file;
    int fd;
    uint32_t seen; /* the epoch at the last refusal: what gp_board_wait sleeps on */
};

uint64_t gp_board_now(void); /* clock.c; tests have a clock of their own */
/* The lock survives its owner's death: what it left half done is counted anew. */
void gp_board_lock(struct board_file *f);
void gp_board_unlock(struct board_file *f);
/* From now on (until it is unmapped) this process outlives that the file is cut short. */
void gp_board_guard(struct board_file *f);
void gp_board_unguard(struct board_file *f);
/* Whether a name, settings, a grant can be on a board. */
bool gp_board_name_ok(const char name[GP_BOARD_NAME]);
bool gp_board_gpu_ok(const struct gp_board_gpu *gpu);
bool gp_board_grant_ok(const struct gp_board_grant *grant);
/* When a process started, 0 if there is none: a pid alone may be another's by now. */
uint64_t gp_board_process_start(int32_t pid);

/*
 * What lies in the file may have been written by anybody who has it mapped. An index is read
 * once and checked before it is used, and so is a divisor; sums are counted anew now and then.
 */
/* Of the member; one of no name and no rights, and not on the board, if it has none. */
struct tenant_slot *gp_board_tenant_of(struct board_file *f, const struct member_slot *m);
/* Whose turn it is, NULL: nobody's. */
struct tenant_slot *gp_board_holder(struct board_file *f);
/* Its index, -2 if it is not on the board. */
int32_t gp_board_index(const struct board_file *f, const struct tenant_slot *t);
/* Its weight, at least 1; its ceiling, 1 to 1000. */
uint64_t gp_board_weight(const struct tenant_slot *t);
uint64_t gp_board_ceiling(const struct tenant_slot *t);
/* With the lock held: sums over members, which are the truth, for each tenant. */
void gp_board_recount(struct board_file *f);

/* With the lock held. Weights and ceilings after any change of policy, grants or presence. */
void gp_board_entitle(struct board_file *f);
/* Move the turn on if it is time to. */
void gp_board_turn(struct board_file *f, uint64_t now);
/* The member no longer waits or works. */
void gp_board_member_quiet(struct board_file *f, struct member_slot *m, uint64_t since);
/* Take out what is dead; returns how many. */
int gp_board_reap_locked(struct board_file *f);
/* Bring usage.busy_ns up to date. */
void gp_board_busy_count(struct tenant_slot *t, uint64_t now);

#endif
