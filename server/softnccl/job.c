/* Calls that wait for other ranks: on the calling thread, on one of their own, or, in a group, side by
 * side. */
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

struct sn_job *sn_job_new(ncclComm_t comm, ncclResult_t (*run)(struct sn_job *job))
{
    struct sn_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->comm = comm;
    job->run = run;
    sn_comm_ref(comm);
    return job;
}

void sn_job_free(struct sn_job *job)
{
    sn_comm_unref(job->comm);
    if (job->parent)
        sn_comm_unref(job->parent);
    free(job->stays);
    free(job);
}

/* Where nobody waits for it the result is the state alone, and what was made stays. */
static void finish(struct sn_job *job)
{
    if (job->made && job->comm->blocking) {
        if (job->result != ncclSuccess)
            sn_comm_end(job->made);
        *job->out = job->result == ncclSuccess ? job->made : NULL;
    }
}

static void work(struct sn_job *job)
{
    job->result = job->run(job);
    if (job->result == ncclSuccess)
        sn_comm_state_set(job->comm, ncclSuccess);
    else
        sn_comm_fail(job->comm, job->result);
}

static void *job_main(void *argument)
{
    work(argument);
    return NULL;
}

static void *job_main_alone(void *argument)
{
    work(argument);
    sn_job_free(argument);
    return NULL;
}

static void begin(struct sn_job *job)
{
    sn_comm_state_set(job->comm, ncclInProgress);
}

/* The job may be gone when this returns, if nobody waits for its thread. */
static ncclResult_t start(struct sn_job *job, void *(*body)(void *), pthread_t *thread)
{
    int failed = pthread_create(thread, NULL, body, job);
    if (failed)
        return sn_fail(ncclSystemError, "cannot start a thread: %s", strerror(failed));
    return ncclSuccess;
}

/* ncclInProgress, or why not. */
static ncclResult_t run_apart(struct sn_job *job)
{
    pthread_t thread;
    begin(job);
    ncclResult_t result = start(job, job_main_alone, &thread);
    if (result == ncclSuccess) {
        pthread_detach(thread);
        return ncclInProgress;
    }
    sn_comm_fail(job->comm, result);
    sn_job_free(job);
    return result;
}

static ncclResult_t run_here(struct sn_job *job)
{
    begin(job);
    work(job);
    ncclResult_t result = job->result;
    finish(job);
    sn_job_free(job);
    return result;
}

ncclResult_t sn_job_submit(struct sn_job *job)
{
    if (job->made) /* a caller may abort it before it is ready */
        *job->out = job->made;
    if (sn_group_open()) {
        sn_group_job(job);
        return ncclSuccess;
    }
    return job->comm->blocking ? run_here(job) : run_apart(job);
}

static void start_blocking(struct sn_job *job)
{
    begin(job);
    ncclResult_t result = start(job, job_main, &job->thread);
    job->started = result == ncclSuccess;
    if (job->started)
        return;
    job->result = result;
    sn_comm_fail(job->comm, result);
}

ncclResult_t sn_jobs_run(struct sn_job *list)
{
    ncclResult_t result = ncclSuccess;
    struct sn_job *waiting = NULL;
    while (list) {
        struct sn_job *job = list;
        list = job->next;
        if (job->comm->blocking) {
            start_blocking(job);
            job->next = waiting;
            waiting = job;
        } else {
            ncclResult_t one = run_apart(job);
            result = result == ncclSuccess || one != ncclInProgress ? one : result;
        }
    }
    while (waiting) {
        struct sn_job *job = waiting;
        waiting = job->next;
        if (job->started)
            pthread_join(job->thread, NULL);
        if (job->result != ncclSuccess)
            result = job->result;
        finish(job);
        sn_job_free(job);
    }
    return result;
}
