/*
 * The board of one GPU: which tenants there are, what each may have and what each has, and
 * whose turn it is. It lies in the memory of the GPU's arbiter (arbiter.h), a process of the
 * server's, and nobody else can read or write it: workers ask (seat.h), the server commands.
 *
 * One thread only. Functions that can fail return 0 or a negative errno. Times are
 * CLOCK_MONOTONIC nanoseconds, sizes bytes, fractions of a GPU are thousandths (permille).
 */
#ifndef GP_BOARD_H
#define GP_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#ifndef GP_BOARD_TENANTS /* fewer in a fuzz target and where boards are simulated */
#define GP_BOARD_TENANTS 64
#define GP_BOARD_MEMBERS 512
#endif
#define GP_BOARD_TURNS 1024 /* that are over, and not forgotten: a second's, or more */
#define GP_BOARD_NAME 96    /* with its NUL: "TENANT" or "TENANT/GROUP" */
/* No memory of anything is so much. */
#define GP_BOARD_MEMORY_MOST (UINT64_C(1) << 50)
/* The pid of a member whose process has not been started yet. */
#define GP_BOARD_NOT_STARTED (-1)

/* What every tenant of a GPU is held to (../../docs/sharing.md). */
enum gp_policy {
    GP_POLICY_AVERAGE = 0,    /* each 1/max_inst, whoever else is there */
    GP_POLICY_PREEMPTIVE = 1, /* 1/(tenants that have opened the GPU) of what is wanted */
    GP_POLICY_WEIGHTED = 2,   /* weights of those that have opened it; alone: everything */
    GP_POLICY_FIXED = 3,      /* weight/max_inst, never more */
    GP_POLICY_WEAK = 4,       /* as preemptive, by the hardware's slices alone */
    GP_POLICY_NATIVE = 5,     /* memory limits only */
    GP_POLICY_SHARE = 6,      /* each its own share, up to its own ceiling (the default) */
};

struct gp_board;

/* Settings of the GPU. */
struct gp_board_gpu {
    uint32_t policy;     /* enum gp_policy */
    uint32_t max_inst;   /* 1..25 slices */
    uint32_t prio_ratio; /* 20..99 percent: the most that high-priority tenants take */
    uint32_t hardware;   /* 1: workers set their channel groups' time slices */
    uint64_t memory_total;
};

/* What a tenant may have on this GPU. */
struct gp_board_grant {
    uint64_t memory_limit; /* 0: all of the GPU */
    uint32_t weight;       /* 0..25, of policies 2 and 3; 0: no compute */
    uint32_t share;        /* permille 1..1000, of policy 6 */
    uint32_t ceiling;      /* permille share..1000, of policy 6 */
    uint32_t high_priority;
    uint32_t forced; /* 1: the limit holds for what is new, whatever is in use already */
    uint32_t gang;   /* 1: it is on other boards of this machine as well, and has its turns at the
                        same time on all of them (gang.c), as it has where members of it take part
                        in the same collectives */
};

/* What it has had, since it came. */
struct gp_board_usage {
    uint64_t memory_used;   /* by its members, of what they were given */
    uint64_t memory_peak;   /* exact of one worker; of several between two looks: what one of
                               them had at most, beside what the others had at the first */
    uint64_t memory_denied; /* allocations over the limit */
    uint64_t busy_ns;       /* of the GPU, charged */
    uint64_t held_ns;       /* the turn was its own, by the arbiter's clock alone */
    uint64_t ending_ns;     /* of that, after it should have ended: work that ran out, and what
                               other ranks waited for */
    uint64_t waited_ns;     /* at the gate with work in hand */
    uint64_t turns;
    uint64_t launches; /* kernels and graphs */
    uint64_t bytes_copied;
    uint64_t copy_ns;   /* of copy engines, as its copies' sizes say */
    uint64_t host_used; /* of the host's memory, as its workers say */
    uint32_t members;   /* workers */
    uint32_t entitled;  /* permille that the policy gives it now, ceiling */
    uint32_t due;       /* its weight beside others' in what is contended for, 0: none */
};

struct gp_board_tenant {
    char name[GP_BOARD_NAME];
    struct gp_board_grant grant;
    struct gp_board_usage usage;
};

uint64_t gp_board_now(void); /* clock.c; tests have a clock of their own */

/* -ENOMEM */
int gp_board_new(struct gp_board **board);
void gp_board_free(struct gp_board *b);

int gp_board_gpu_set(struct gp_board *b, const struct gp_board_gpu *gpu); /* -EINVAL */
void gp_board_gpu_get(struct gp_board *b, struct gp_board_gpu *gpu);

/* Add a tenant or change its grant. -ENOSPC; -EINVAL; -EBUSY if more memory is in use
 * than the new limit (then nothing is changed), unless that is forced. */
int gp_board_tenant_set(struct gp_board *b, const char *name, const struct gp_board_grant *grant);
/* -ENOENT; -EBUSY while it has workers. */
int gp_board_tenant_remove(struct gp_board *b, const char *name);
/* All tenants; returns how many, at most `room`. */
int gp_board_tenants(struct gp_board *b, struct gp_board_tenant *tenants, int room);
/* Work of `name` went on for `ns` in turns of `whose`, unasked: it pays for that, and for what `whose`
 * was charged meanwhile, with turns that others have then: less what the clock has charged for work
 * behind a lost turn. Nothing is where the policy knows no turns; an unknown `whose` has been
 * removed. -ENOENT; -EINVAL: longer than GP_BOARD_CHARGE_MOST. */
#define GP_BOARD_CHARGE_MOST UINT64_C(60000000000)
int gp_board_charge(struct gp_board *b, const char *name, const char *whose, uint64_t ns);
/* JSON of everything: {"gpu": {policy, max_inst, prio_ratio, hardware, memory_total},
 * "tenants": [{name, grant's and usage's fields}], "processes": [{pid, tenant (its
 * name), memory_used, memory_given, questions, slice_us, busy_ns, overdue, late (it is still at
 * work for which it lost its turn, or needed none), unseen (it says that work of it may go on
 * outside of its turns; null: it does not say), fault}], "now_ns"}. Returns its length as snprintf
 * does; -ENOMEM. */
int gp_board_describe(struct gp_board *b, char *out, int size);
/* JSON of the turns that are over, from number `since` on as far as they are not forgotten:
 * {"now_ns", "first": number of the first one here, "turns": [[name of its tenant, or "" if that was
 * removed, began_ns, ended_ns]], "holder": whose turn it is, or "", "began_ns": since when}. Returns
 * its length as snprintf does. */
int gp_board_describe_turns(const struct gp_board *b, uint64_t since, char *out, int size);

/* --- a member: a worker, as its page says and its requests ask (page.h) ------------- */

/* A member more of a tenant: its index, or -ENOENT, -ENOSPC. Its process comes later. */
int gp_board_join(struct gp_board *b, const char *tenant);
void gp_board_leave(struct gp_board *b, int member);

/* Memory (memory.c): a member was given some, and uses of it what its page says. Give it so much in
 * all, and an advance; false: that is over the limit. */
bool gp_board_memory_take(struct gp_board *b, int member, uint64_t total);
/* It uses so much; what it was not given it is given now, over the limit or not. */
void gp_board_memory_use(struct gp_board *b, int member, uint64_t total);
/* At most it has used so much since it was told last. */
void gp_board_memory_had(struct gp_board *b, int member, uint64_t most);
uint64_t gp_board_memory_given(const struct gp_board *b, int member);
/* What its tenant's other members use, and the limit. */
uint64_t gp_board_memory_others(struct gp_board *b, int member, uint64_t *limit);

/* The gate. True: the member may submit now, and counts as busy until gp_board_idle.
 * False: ask again when the turn has come; meanwhile it counts as one that waits. */
bool gp_board_enter(struct gp_board *b, int member);
/* Whether the member's tenant has just got the turn: the GPU has to change over to it, and
 * only gp_board_started says when it has. What that took is charged to nobody. */
bool gp_board_fresh(struct gp_board *b, int member);
void gp_board_started(struct gp_board *b, int member);
/* Whether a busy member's turn is over: it submits nothing more, lets its work run out
 * and says gp_board_idle. */
bool gp_board_must_yield(struct gp_board *b, int member);
/* Whether somebody waits for this member to end, so that it should submit little ahead. */
bool gp_board_contended(struct gp_board *b, int member);
/* The member has had nothing on the GPU for `idle_ns`. */
void gp_board_idle(struct gp_board *b, int member, uint64_t idle_ns);
/* Copies between device and host have engines of their own, one for each way, and an
 * account of their own. True: this one may be submitted. False: ask again in a millisecond. */
enum gp_board_way { GP_BOARD_UPLOAD, GP_BOARD_DOWNLOAD, GP_BOARD_WAYS };
bool gp_board_copy(struct gp_board *b, int member, enum gp_board_way way, uint64_t bytes);
/* Until when the member may copy this way without asking, because nobody else does; ns, 0: it
 * may not. What it then has let through by itself is told with gp_board_copied. */
uint64_t gp_board_copy_lease(struct gp_board *b, int member, enum gp_board_way way);
void gp_board_copied(struct gp_board *b, int member, enum gp_board_way way, uint64_t bytes);
void gp_board_count(struct gp_board *b, int member, uint64_t launches, uint64_t bytes);
/* What the member has of the host's memory: to be shown, nothing is refused for it here. */
void gp_board_host_set(struct gp_board *b, int member, uint64_t bytes);
/* The time slice that its channel groups should have now; 0: the driver's own. */
uint64_t gp_board_slice_us(struct gp_board *b, int member);

#endif
