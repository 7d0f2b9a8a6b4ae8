/*
 * Groups: what a thread calls between ncclGroupStart and ncclGroupEnd travels as one message for
 * each session, and a call outside of a group as a group of its own.
 *
 * NCCL makes connections when an operation first needs them, and waits for the other ranks then.
 * So the first group of a form is waited for; one of a form that has been before is not.
 */
#ifndef GPC_NCCL_GROUP_H
#define GPC_NCCL_GROUP_H

#include "communicator.h"
#include "nccl_call.h"

/* One collective of the communicator, on the stream. */
ncclResult_t gpc_nccl_collective(const char *name, const struct gp_nccl_call *call,
                                 struct ncclComm *comm, CUstream stream);
/* A communicator that has been begun: made when the group ends, or now. */
ncclResult_t gpc_nccl_group_begun(struct ncclComm *comm);
/* It is about to be freed: a group that is open forgets it. */
void gpc_nccl_group_forget(const struct ncclComm *comm);

#endif
