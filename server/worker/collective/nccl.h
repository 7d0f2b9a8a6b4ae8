/*
 * The real NCCL, beside the GPU, and a session's communicators. All of them are NCCL's non-blocking
 * ones: what may wait for other ranks NCCL does on a thread of its own, and the loop asks between
 * messages whether it is over. Freeing one may wait, and has a thread of the worker's.
 */
#ifndef GPW_NCCL_H
#define GPW_NCCL_H

#include "gpw_nccl_library.h"
#include "session.h"

#define GPW_COMMUNICATORS_MAX 256  /* of a session, at a time, with those that are ending */
#define GPW_RANKS_MAX 65536        /* of a communicator: NCCL has memory for each of them at once */
#define GPW_UNIQUE_IDS_MAX 4096    /* of a session: each may hold a thread and a port */
#define GPW_REGISTRATIONS_MAX 4096 /* of a communicator */
#define GPW_RANKS_KEY 16           /* bytes */

/* What a handle of the kind is in the worker. */
struct gp_communicator {
    ncclComm_t real;     /* NULL: none, ended, or being aborted */
    ncclResult_t failed; /* first of the calls that nobody waited for, or NCCL's own */
    int32_t ranks, rank; /* 0 ranks: NCCL has not said yet */
    int32_t ordinal;     /* of the session's device that it is on, -1 if it is not known */
    CUcontext context;
    CUevent last; /* behind its latest work; NULL: it has been seen to be over */
    CUcontext last_context;
    bool captured;        /* graphs have work of it, which may run at any time */
    bool settling;        /* what NCCL takes for it has not been charged yet */
    unsigned waits;       /* that look at it */
    unsigned launching;   /* groups that NCCL has not put on their streams yet */
    bool gone;            /* freed with the last of them */
    uint32_t collectives; /* that all of its ranks begin in the same order; how many */
    uint64_t batch;       /* the latest group that it was part of */
    /* what the server is told of it, and tells (ranks.h) */
    uint8_t key[GPW_RANKS_KEY];
    bool keyed;     /* it has one */
    bool lost;      /* a session that had ranks of it is over */
    bool crowded;   /* this session has several ranks of it, or had */
    uint32_t parts; /* that all of its ranks have split off */
    uint64_t told;  /* which server knows of it, by gpw_ipc_servers; 0: none */
    /* as it has been since then; 0: it has not been looked at */
    uint64_t stuck_since, stuck_batch;
    bool given_up;        /* what waited for such a rank has been ended */
    void **registrations; /* NCCL's, by the numbers that the client has */
    uint32_t registration_room;
    struct gp_communicator *next;
};

struct gpw_nccl {
    struct gpw_nccl_library library;
    int version;
    struct gp_communicator *communicators;
    unsigned count, ids;
    unsigned endings; /* threads that end communicators */
    uint64_t batches;
    char why[256]; /* the last refusal of ours, for ncclGetLastError */
};

/* Opened at the first call; NULL with one line to the log and to the client. */
struct gpw_nccl *gpw_nccl(struct gpw_session *s);
/* Note a refusal of ours, a line, and give the error back. */
ncclResult_t gpw_nccl_refuse(struct gpw_session *s, ncclResult_t error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A record for what is about to be made, on its parent's device or the current one; NULL: no
 * room. */
struct gp_communicator *gpw_communicator_new(struct gpw_session *s,
                                             const struct gp_communicator *parent);
/* What came of beginning it; one that was refused stays, and says so. */
ncclResult_t gpw_communicator_begun(struct gp_communicator *c, ncclResult_t result);
/* ncclInProgress, ncclSuccess, or what has failed. */
ncclResult_t gpw_communicator_state(struct gpw_session *s, struct gp_communicator *c);
/* Success if it is there, nothing is in progress in it, and nothing has failed. */
ncclResult_t gpw_communicator_usable(struct gpw_session *s, struct gp_communicator *c);
/* Free it on a thread; `done` is called by the loop when that is over. */
typedef void gpw_communicator_done(struct gpw_session *s, struct gpw_token token,
                                   ncclResult_t result);
ncclResult_t gpw_communicator_end(struct gpw_session *s, struct gp_communicator *c, bool aborts,
                                  struct gpw_token token, gpw_communicator_done *done);
/* Whether its latest work is on a GPU still. */
bool gpw_communicator_pending(struct gpw_session *s, struct gp_communicator *c);
/* One wait less looks at it. */
void gpw_communicator_let_go(struct gpw_session *s, struct gp_communicator *c);
/* How a program configures one, in NCCL's words. */
void gpw_nccl_config(const struct gpw_nccl *n, const struct gp_nccl_config *from, ncclConfig_t *to);

/* --- what the spec's entries call; `result` is NCCL's ---------------------------------------- */

struct gpw_making {
    enum { GPW_INIT, GPW_SPLIT, GPW_SHRINK } how;
    struct gp_communicator *parent; /* NULL: GPW_INIT */
    int32_t a, b;                   /* ranks and rank; colour and key; flags */
    uint32_t count;
    const void *list; /* so many unique ids, sealed; so many ranks that are excluded */
};
/* A record of what is made, or of why it is not. */
CUresult gpw_communicator_make(struct gpw_session *s, gp_communicator *comm,
                               struct gpw_making making, const struct gp_nccl_config *config,
                               int32_t *result);
enum gpw_deed { GPW_FINALIZE, GPW_OPERATION, GPW_OPERATION_END, GPW_REGISTER, GPW_DEREGISTER };
CUresult gpw_communicator_do(struct gpw_session *s, gp_communicator comm, enum gpw_deed deed,
                             uint64_t a, uint64_t b, int32_t c, int32_t *result, uint64_t *made);
/* Of a communicator, how it is and where it is; of none, the version. */
CUresult gpw_nccl_facts(struct gpw_session *s, gp_communicator comm, int32_t *result, int32_t *a,
                        int32_t *b);
enum gpw_nccl_what { GPW_NCCL_ID, GPW_NCCL_ERROR };
CUresult gpw_nccl_bytes(struct gpw_session *s, enum gpw_nccl_what what, gp_communicator comm,
                        int32_t *result, uint8_t *bytes, uint32_t *n);

/* --- what the worker asks --------------------------------------------------------------------- */

/* Put the calls of a group on their streams; what fails is noted of their communicators. */
void gpw_nccl_run(struct gpw_session *s, const struct gp_nccl_call *calls, uint32_t count,
                  bool waits);

/* Whether work of a communicator is on a GPU, which may wait for another rank's. */
bool gpw_nccl_pending(struct gpw_session *s);
/* Whether ranks of this session wait for each other, and so for what its messages still bring. */
bool gpw_nccl_crowded(const struct gpw_session *s);
/* The session is over its limit by so much: what NCCL is making on the device is given up. False:
 * there is nothing. */
bool gpw_nccl_give_up(struct gpw_session *s, uint32_t ordinal, uint64_t over);
/* A few times a second: end what has failed, so that nothing waits for it. */
void gpw_nccl_tick(struct gpw_session *s);
/* The context is about to end. */
void gpw_nccl_context_ended(struct gpw_session *s, CUcontext context);

#endif
