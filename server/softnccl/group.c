/* Groups: what a thread's calls between ncclGroupStart and ncclGroupEnd come to. Each call outside is
 * a group of its own. */
#include <stdlib.h>

#include "softnccl.h"

static _Thread_local struct {
    unsigned depth;
    ncclResult_t failed; /* of the first call that did */
    struct sn_plan *plans;
    struct sn_job *jobs;
} group;

bool sn_group_open(void)
{
    return group.depth != 0;
}

ncclResult_t sn_group_fail(ncclResult_t result)
{
    if (group.depth && group.failed == ncclSuccess && result != ncclInProgress)
        group.failed = result;
    return result;
}

void sn_group_job(struct sn_job *job)
{
    job->next = group.jobs;
    group.jobs = job;
}

ncclResult_t sn_group_work(ncclComm_t comm, CUstream stream, const struct sn_work *work)
{
    struct sn_plan **link = &group.plans;
    while (*link && (*link)->comm != comm)
        link = &(*link)->next;
    if (!*link)
        *link = sn_plan_new(comm);
    if (!*link)
        return sn_fail(ncclSystemError, "no memory");
    SN_TRY(sn_plan_add(*link, stream, work));
    return ncclSuccess;
}

/* What was to run, taken out of the group. */
static void take(struct sn_plan **plans, struct sn_job **jobs)
{
    *plans = group.plans;
    *jobs = group.jobs;
    group.plans = NULL;
    group.jobs = NULL;
}

static void forget(void)
{
    struct sn_plan *plans;
    struct sn_job *jobs;
    take(&plans, &jobs);
    while (plans) {
        struct sn_plan *plan = plans;
        plans = plan->next;
        sn_plan_free(plan);
    }
    while (jobs) {
        struct sn_job *job = jobs;
        jobs = job->next;
        if (job->made)
            sn_comm_end(job->made);
        sn_job_free(job);
    }
}

static ncclResult_t launch(void)
{
    struct sn_plan *plans;
    struct sn_job *jobs;
    take(&plans, &jobs);
    ncclResult_t result = sn_jobs_run(jobs);
    while (plans) {
        struct sn_plan *plan = plans;
        plans = plan->next;
        ncclResult_t one = sn_plan_launch(plan);
        if (one != ncclSuccess)
            result = one;
    }
    return result;
}

ncclResult_t ncclGroupStart(void)
{
    if (group.depth++ == 0)
        group.failed = ncclSuccess;
    return ncclSuccess;
}

static ncclResult_t leave(bool *last)
{
    if (!group.depth)
        return sn_fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    *last = --group.depth == 0;
    if (*last && group.failed != ncclSuccess) {
        forget();
        return group.failed;
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    bool last;
    SN_TRY(leave(&last));
    return last ? launch() : ncclSuccess;
}

/* ---- simulation ---- */
/* As if all moved at 1 GB/s: a guess that grows with the work, as NCCL's does. */
static float estimate(void)
{
    double bytes = 0;
    for (const struct sn_plan *plan = group.plans; plan; plan = plan->next)
        for (size_t i = 0; i < plan->work_count; i++)
            bytes += (double)plan->works[i].count * (double)sn_type_size(plan->works[i].type);
    return (float)(bytes / 1e9);
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo)
{
    bool last;
    bool sound = !simInfo || (simInfo->magic == NCCL_SIM_INFO_MAGIC &&
                              simInfo->size >= offsetof(ncclSimInfo_t, estimatedTime) +
                                                   sizeof simInfo->estimatedTime);
    SN_TRY(leave(&last));
    float seconds = last ? estimate() : 0;
    if (last)
        forget();
    if (!sound)
        return sn_fail(ncclInvalidArgument,
                       "simInfo does not begin as NCCL_SIM_INFO_INITIALIZER makes it");
    if (simInfo)
        simInfo->estimatedTime = seconds;
    return ncclSuccess;
}
