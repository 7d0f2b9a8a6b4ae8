/* What a board is made of, and what its parts ask of each other. */
#ifndef GP_BOARD_INTERNAL_H
#define GP_BOARD_INTERNAL_H

#include <stddef.h>

#include "board.h"

/* What a tenant has copied one way, to or from its host (copy.c). */
struct copy_account {
    uint64_t vtime;       /* ns of the engine * 1000 / weight */
    uint64_t seen_at;     /* it asked last */
    uint64_t waits_since; /* ns, 0: does not wait */
    uint64_t paced_to;    /* the ceiling's time for what was let through */
};

/* Whether now is the time of a gang (gang.c). */
enum gang_window { GANG_NONE, GANG_INSIDE, GANG_OUTSIDE };

struct tenant_slot {
    char name[GP_BOARD_NAME]; /* empty: free */
    struct gp_board_grant grant;
    struct gp_board_usage usage;
    uint64_t memory_given; /* to its members: at least what they use */
    /* what the policy makes of the grant (entitle.c) */
    uint32_t weight;  /* of the time that is contended for, 0: none */
    uint32_t ceiling; /* permille of all time, 1000: no ceiling */
    /* the turn's bookkeeping (turn.c) */
    uint64_t vtime;         /* charged ns * 1000 / weight */
    uint64_t paid_outside;  /* of that, since its last turn: what gp_board_charge need not add */
    int64_t tokens;         /* ns that the ceiling still allows */
    uint64_t tokens_at;     /* when they were counted */
    uint64_t charged_to;    /* ns: until when it has been charged */
    uint64_t idle_since;    /* no member has been at work since */
    uint64_t busy_from;     /* counted in usage.busy_ns until here */
    uint64_t step;          /* ns of the GPU from one wait of its client's to the next, in the mean;
                               0: it does not wait */
    uint64_t step_so_far;   /* of the one under way */
    uint64_t drain;         /* ns: from when its turn is to end to its end, in the mean */
    uint32_t starved;       /* the ceiling holds it back until enough tokens are there */
    uint32_t amnesty;       /* what it has on the GPU is not charged */
    uint32_t wanting;       /* members that wait at the gate */
    uint32_t busy;          /* members with work on the GPU */
    uint32_t window;        /* enum gang_window, as of the last look */
    uint32_t ranks;         /* members of it take part in the same collectives */
    uint32_t behind;        /* a member has still to begin a collective that another one has */
    uint64_t window_opened; /* the number of the period in which its window has begun, and 1 */
    struct copy_account copies[GP_BOARD_WAYS];
};

struct member_slot {
    int32_t pid; /* 0: free */
    uint32_t tenant;
    uint64_t memory_given;
    uint64_t memory_used; /* of that */
    uint64_t host_used;
    uint64_t questions;   /* that it has asked */
    uint64_t wants_since; /* ns, 0: does not wait */
    uint64_t early;       /* it asked while it had work, in front of which that may have come */
    uint64_t slice_us;
    uint64_t busy_ns;  /* it has been let in, or has said that it works, for so long */
    uint32_t overdue;  /* turns that it did not give back in time */
    uint32_t late;     /* it is still at the work of the last of them, or needed none for it */
    const char *fault; /* what it has done that no worker of ours does; NULL: nothing */
    uint32_t busy;
    uint32_t beside; /* it was let in without having the turn */
    uint32_t sight;  /* enum gp_page_sight, as it says */
};

/* A turn that is over. */
struct turn_slot {
    int32_t tenant; /* its index; -1: it has been removed since */
    uint64_t began, ended;
};

struct gp_board {
    struct gp_board_gpu gpu;
    int32_t holder;     /* the tenant whose turn it is, -1: nobody's */
    uint32_t yielding;  /* it must end its turn */
    uint32_t open;      /* the policy knows no turns */
    uint32_t contended; /* others wait, or a high-priority tenant is there */
    uint64_t check_at;  /* ns: when the holder must look more closely */
    uint64_t quantum_end, yield_at;
    uint32_t relaxed; /* the weights alone keep everybody under the ceiling */
    uint64_t turn_began;
    uint64_t turn_before;  /* when the one before it began */
    uint64_t turns_over;   /* how many have been, the last of which are in `turns` */
    uint64_t contended_at; /* somebody waited for a turn last */
    uint32_t turn_fresh;   /* its tenant has not begun to use it */
    uint64_t vclock;       /* no tenant with work is further behind than this */
    uint64_t longest;      /* ns: of the turns of late */
    int64_t high_tokens;   /* ns that prio_ratio still allows */
    uint64_t high_tokens_at;
    uint64_t window_end;  /* ns: when another gang's time begins, or this one's ends; 0: there are
                             no gangs at work */
    uint64_t window_lead; /* of charged time: how far ahead a gang may be and keep its time */
    uint64_t entitled;    /* how often weights and ceilings have been found anew */
    struct {
        uint64_t vclock;  /* of the copy that was let through last */
        uint64_t free_at; /* when the engine has done what was let through */
    } copies[GP_BOARD_WAYS];
    struct turn_slot turns[GP_BOARD_TURNS]; /* number N at N % GP_BOARD_TURNS */
    struct tenant_slot tenants[GP_BOARD_TENANTS];
    struct member_slot members[GP_BOARD_MEMBERS];
    /* Tells an idle tenant's members that its turn ends; true: one of them has begun work
     * meanwhile. NULL: members do nothing that they have not asked for. */
    bool (*shut)(struct gp_board *b, const struct tenant_slot *t);
    /* Takes back what a member was given and does not use; returns what it keeps. NULL: what it
     * uses, as far as is known. */
    uint64_t (*keeps)(struct gp_board *b, int member);
    void *context; /* of both */
};

/* Whether a name, settings, a grant can be on a board. */
bool gp_board_name_ok(const char name[GP_BOARD_NAME]);
bool gp_board_gpu_ok(const struct gp_board_gpu *gpu);
bool gp_board_grant_ok(const struct gp_board_grant *grant);

/* NULL: there is none of that name. */
struct tenant_slot *gp_board_find(struct gp_board *f, const char *name);
/* Of the member. */
struct tenant_slot *gp_board_tenant_of(struct gp_board *f, const struct member_slot *m);
/* Whose turn it is, NULL: nobody's. */
struct tenant_slot *gp_board_holder(struct gp_board *f);
/* Its index. */
int32_t gp_board_index(const struct gp_board *f, const struct tenant_slot *t);
/* Its weight, at least 1; its ceiling, 1 to 1000. */
uint64_t gp_board_weight(const struct tenant_slot *t);
uint64_t gp_board_ceiling(const struct tenant_slot *t);
/* Whether its members' memory fits into this limit; for that they may lose their advances. */
bool gp_board_memory_fits(struct gp_board *f, struct tenant_slot *t, uint64_t limit);
/* Sums over members, which are the truth, for each tenant. */
void gp_board_recount(struct gp_board *f);

/* Weights and ceilings after any change of policy, grants or presence. */
void gp_board_entitle(struct gp_board *f);
/* Whether the weights alone keep all that are at work under their ceilings (charge.c). */
bool gp_board_weights_suffice(const struct gp_board *f);
/* Whether a tenant may have turns now, as far as its ceiling goes. */
bool gp_board_eligible(const struct gp_board *f, struct tenant_slot *t, uint64_t now);
/* Whether those of high priority may go first, and work beside others. */
bool gp_board_high_allowed(struct gp_board *f, uint64_t now);
/* The tenant pays for the time until `now`, from where it has paid last. */
void gp_board_charge_to(struct gp_board *f, struct tenant_slot *t, uint64_t now);
/* Move the turn on if it is time to. */
void gp_board_turn(struct gp_board *f, uint64_t now);
/* ns: a turn is given for no longer at once, but to a gang. */
#define GP_QUANTUM_MOST UINT64_C(20000000)
/* It has been charged for so long; its work has run out; it has some again (step.c). */
void gp_step_charged(struct tenant_slot *t, uint64_t ns);
void gp_step_idle(const struct gp_board *f, struct tenant_slot *t);
void gp_step_wakes(struct tenant_slot *t, uint64_t now);
/* Whether somebody but the holder is between two steps: nobody may fill the GPU's queue then. */
bool gp_step_expected(const struct gp_board *f, const struct tenant_slot *holder, uint64_t now);
/* When the turn ends, since somebody waits for each of its steps; 0: nobody does. */
uint64_t gp_step_turn_end(const struct gp_board *f, const struct tenant_slot *t, uint64_t now);
/* Whether its step was what its turn has room for, and `other` is next. */
bool gp_step_over(const struct gp_board *f, const struct tenant_slot *t,
                  const struct tenant_slot *other, uint64_t now);
/* Whether it has work, or had some a moment ago: without any between two windows it is still at
 * work (gang.c). */
bool gp_board_at_work(const struct tenant_slot *t, uint64_t now);
/* Whose time it is, for all tenants. */
void gp_gangs_look(struct gp_board *f, uint64_t now);
/* What a tenant's charged time counts as when turns are given: least is next. */
uint64_t gp_gang_due(const struct gp_board *f, const struct tenant_slot *t);
/* When a turn ends that begins now and could last until `end`. */
uint64_t gp_gang_turn_end(const struct gp_board *f, const struct tenant_slot *t, uint64_t now,
                          uint64_t end);
/* Whether a gang that has nothing to do may begin nothing more in its turn, since `other` waits and
 * its window is over: its other GPUs' arbiters see to the same. */
bool gp_gang_over(const struct gp_board *f, const struct tenant_slot *t,
                  const struct tenant_slot *other, uint64_t now);
/* How long it may have nothing to do in its turn; `grace`: anybody may. */
uint64_t gp_gang_grace(const struct tenant_slot *t, uint64_t grace);
/* The member no longer waits or works. */
void gp_board_member_quiet(struct gp_board *f, struct member_slot *m, uint64_t since);
/* Since then it has had nothing on the GPU. */
void gp_board_member_idle(struct gp_board *f, int member, uint64_t since);
/* Since then it has had work there, which it began in its tenant's turn without asking. */
void gp_board_member_begins(struct gp_board *f, int member, uint64_t since);
/* While nobody else wanted the GPU, its tenant's only member has worked for `ns`. */
void gp_board_member_worked(struct gp_board *f, int member, uint64_t ns, uint64_t now);
/* Bring usage.busy_ns up to date. */
void gp_board_busy_count(struct tenant_slot *t, uint64_t now);

#endif
