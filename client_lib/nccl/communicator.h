/* What a program holds as ncclComm_t, and the way to the worker's. */
#ifndef GPC_NCCL_COMMUNICATOR_H
#define GPC_NCCL_COMMUNICATOR_H

#include <stdbool.h>

#include "communicator_table.h"
#include "gpc_nccl_exports.h"

#define GPC_NCCL_MAGIC 0x6e63636c67707573u

struct ncclComm {
    uint64_t magic; /* of a live one */
    gp_communicator id;
    CUdevice device;
    int32_t ranks, rank; /* 0 ranks: not known yet */
    bool blocking;
    bool settled;    /* it has been seen to be made */
    bool crowded;    /* this process has several ranks of it */
    uint64_t clique; /* of its unique id: what ranks of one have in common */
    uint32_t parts;  /* that all of its ranks have split off */
    /* groups that NCCL has had before: it waits for no other rank when they come again */
    uint64_t *known;
    uint32_t known_count, known_room;
    struct ncclComm *next;
};

/* The table of our libcuda.so.1; NULL with a line on stderr, once, where it is not ours. */
const struct gpc_communicator_table *gpc_nccl_table(void);
/* What NCCL says where CUDA says `r`. */
ncclResult_t gpc_nccl_result(CUresult r);
/* What a worker says came of something. */
ncclResult_t gpc_nccl_said(CUresult r, const int32_t *result);
/* Note a line for ncclGetLastError, and give the error back. */
ncclResult_t gpc_nccl_fail(ncclResult_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *gpc_nccl_last_line(void);
ncclResult_t gpc_nccl_refuse(const char *name, const char *reason);

/* Live, or ncclInvalidArgument in the name of the call. */
ncclResult_t gpc_nccl_check(const char *name, const struct ncclComm *comm);
/* Wait until nothing is in progress. */
ncclResult_t gpc_nccl_settle(struct ncclComm *comm);
/* Whether such a group has been before; and note that it has. */
bool gpc_nccl_knows(const struct ncclComm *comm, uint64_t shape);
void gpc_nccl_learn(struct ncclComm *comm, uint64_t shape);

#endif
