/* What our libnccl.so.2 asks for and somebody may wait for; the rest is in collective/nccl.h. */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "nccl.h"

CUresult gpw_gp_nccl_group(struct gpw_session *s, CUstream stream, uint32_t waits, uint32_t count,
                           const struct gp_nccl_call *calls)
{
    (void)stream; /* the gate's */
    if (!s->nccl || count == 0)
        gpw_session_broken(s, "a group of collectives without a communicator");
    else
        gpw_nccl_run(s, calls, count, waits != 0);
    return CUDA_SUCCESS;
}

struct settled {
    struct gpw_wait wait;
    struct gpw_token token;
    struct gp_communicator *comm;
};

static bool settled_ready(struct gpw_session *s, struct gpw_wait *w)
{
    return gpw_communicator_state(s, ((struct settled *)w)->comm) != ncclInProgress;
}

static void settled_answer(struct gpw_session *s, struct gpw_token token,
                           struct gp_communicator *comm)
{
    int32_t results[2] = {(int32_t)gpw_communicator_state(s, comm), (int32_t)comm->failed};
    gpw_answer_gp_nccl_settled(s, token, CUDA_SUCCESS, results, sizeof results);
}

static void settled_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    gpw_communicator_let_go(s, ((struct settled *)w)->comm);
    gpw_budget_give(s, GPW_USE_WAITS, sizeof(struct settled));
    free(w);
}

static bool settled_poll(struct gpw_session *s, struct gpw_wait *w)
{
    const struct settled *t = (struct settled *)w;
    settled_answer(s, t->token, t->comm);
    settled_cancel(s, w);
    return true;
}

CUresult gpw_gp_nccl_settled(struct gpw_session *s, struct gpw_token token, gp_communicator comm)
{
    if (gpw_communicator_state(s, comm) != ncclInProgress) {
        settled_answer(s, token, comm);
        return GPW_DEFERRED;
    }
    struct settled *t = gpw_budget_take(s, GPW_USE_WAITS, sizeof *t) ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->wait = (struct gpw_wait){.what = "a communicator",
                                .ready = settled_ready,
                                .poll = settled_poll,
                                .cancel = settled_cancel};
    t->token = token;
    t->comm = comm;
    comm->waits++;
    gpw_wait_add(s, &t->wait);
    return GPW_DEFERRED;
}

static void ended(struct gpw_session *s, struct gpw_token token, ncclResult_t result)
{
    int32_t results[1] = {(int32_t)result};
    gpw_answer_gp_nccl_end(s, token, CUDA_SUCCESS, results, sizeof results);
}

CUresult gpw_gp_nccl_end(struct gpw_session *s, struct gpw_token token, gp_communicator comm,
                         uint32_t aborts)
{
    return gpw_communicator_end(s, comm, aborts != 0, token, ended) == ncclSuccess
               ? GPW_DEFERRED
               : CUDA_ERROR_OUT_OF_MEMORY;
}
