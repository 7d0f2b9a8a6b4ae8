/*
 * What a group does for one communicator, as one operation of a stream: a function of the host.
 *
 * Operations of a communicator follow each other, also in several streams: each waits for the event
 * behind the last one. In a capture the graph's own order is all there is, and the graph keeps the
 * plan (a user object), because it may run it any number of times.
 */
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

struct sn_plan *sn_plan_new(ncclComm_t comm)
{
    struct sn_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    plan->comm = comm;
    sn_comm_ref(comm);
    return plan;
}

void sn_plan_free(struct sn_plan *plan)
{
    sn_comm_unref(plan->comm);
    free(plan->streams);
    free(plan->works);
    free(plan);
}

static ncclResult_t add_stream(struct sn_plan *plan, CUstream stream)
{
    for (size_t i = 0; i < plan->stream_count; i++)
        if (plan->streams[i] == stream)
            return ncclSuccess;
    CUstream *grown = reallocarray(plan->streams, plan->stream_count + 1, sizeof *grown);
    if (!grown)
        return sn_fail(ncclSystemError, "no memory");
    plan->streams = grown;
    grown[plan->stream_count++] = stream;
    return ncclSuccess;
}

ncclResult_t sn_plan_add(struct sn_plan *plan, CUstream stream, const struct sn_work *work)
{
    SN_TRY(add_stream(plan, stream));
    struct sn_work *grown = reallocarray(plan->works, plan->work_count + 1, sizeof *grown);
    if (!grown)
        return sn_fail(ncclSystemError, "no memory");
    plan->works = grown;
    grown[plan->work_count++] = *work;
    return ncclSuccess;
}

/* ---- in the stream ---- */
static ncclResult_t run_works(const struct sn_plan *plan)
{
    for (size_t i = 0; i < plan->work_count; i++)
        if (plan->works[i].kind != SN_POINT_TO_POINT)
            SN_TRY(sn_collective_run(plan->comm, &plan->works[i]));
    return sn_point_to_point_run(plan->comm, plan->works, plan->work_count);
}

/* As NCCL's kernels, it holds its stream after an error until the communicator is aborted: what
 * comes behind it must not take wrong numbers for right ones. */
static void run(void *data)
{
    struct sn_plan *plan = data;
    ncclComm_t comm = plan->comm;
    pthread_mutex_lock(&comm->run);
    if (!sn_comm_aborted(comm) && !sn_comm_failed(comm)) {
        ncclResult_t result = run_works(plan);
        if (result != ncclSuccess)
            sn_comm_fail(comm, result);
    }
    pthread_mutex_unlock(&comm->run);
    if (!sn_comm_aborted(comm) && sn_comm_failed(comm))
        sn_wait(-1, 0, comm->wake);
}

static void run_once(void *data)
{
    run(data);
    sn_plan_free(data);
}

static void free_plan(void *data)
{
    sn_plan_free(data);
}

/* ---- launching ---- */
/* `later` goes on when `earlier` has come this far. */
static ncclResult_t follow(const struct ncclComm *comm, CUstream later, CUstream earlier)
{
    SN_CUDA(cuEventRecord, comm->join, earlier);
    SN_CUDA(cuStreamWaitEvent, later, comm->join, 0);
    return ncclSuccess;
}

/* The graph has the plan from here on, also where this fails. */
static ncclResult_t capture(struct sn_plan *plan, CUstream stream, CUgraph graph)
{
    const struct sn_driver *d = sn_driver();
    CUuserObject object;
    ncclResult_t result = sn_cuda(
        d->cuUserObjectCreate(&object, plan, free_plan, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        "cuUserObjectCreate");
    if (result != ncclSuccess) {
        sn_plan_free(plan);
        return result;
    }
    result = sn_cuda(d->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE),
                     "cuGraphRetainUserObject");
    if (result != ncclSuccess) {
        d->cuUserObjectRelease(object, 1);
        return result;
    }
    SN_CUDA(cuLaunchHostFunc, stream, run, plan);
    return ncclSuccess;
}

static ncclResult_t queue(struct sn_plan *plan, CUstream stream)
{
    const struct sn_driver *d = sn_driver();
    const CUevent done = plan->comm->done;
    ncclResult_t result = sn_cuda(d->cuStreamWaitEvent(stream, done, 0), "cuStreamWaitEvent");
    if (result == ncclSuccess)
        result = sn_cuda(d->cuLaunchHostFunc(stream, run_once, plan), "cuLaunchHostFunc");
    if (result != ncclSuccess) {
        sn_plan_free(plan);
        return result;
    }
    SN_CUDA(cuEventRecord, done, stream); /* the plan may be gone */
    return ncclSuccess;
}

/* In one stream. */
static ncclResult_t submit(struct sn_plan *plan, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = NULL;
    ncclResult_t result = sn_cuda(
        sn_driver()->cuStreamGetCaptureInfo_v3(stream, &status, NULL, &graph, NULL, NULL, NULL),
        "cuStreamGetCaptureInfo");
    if (result != ncclSuccess) {
        sn_plan_free(plan);
        return result;
    }
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? capture(plan, stream, graph)
                                                     : queue(plan, stream);
}

/* The first of its streams waits for the others, which go on behind it. */
static ncclResult_t launch(struct sn_plan *plan, const CUstream *streams, size_t count)
{
    const struct ncclComm *comm = plan->comm;
    ncclResult_t result = ncclSuccess;
    for (size_t i = 1; i < count && result == ncclSuccess; i++)
        result = follow(comm, streams[0], streams[i]);
    if (result != ncclSuccess) {
        sn_plan_free(plan);
        return result;
    }
    SN_TRY(submit(plan, streams[0]));
    for (size_t i = 1; i < count; i++)
        SN_TRY(follow(comm, streams[i], streams[0]));
    return ncclSuccess;
}

ncclResult_t sn_plan_launch(struct sn_plan *plan)
{
    CUcontext context = plan->comm->context;
    ncclResult_t result = sn_comm_ready(plan->comm);
    if (result == ncclSuccess)
        result = sn_cuda(sn_driver()->cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    if (result != ncclSuccess) {
        sn_plan_free(plan);
        return result;
    }
    CUstream *streams = plan->streams;
    plan->streams = NULL; /* the plan may end before the launch does */
    result = launch(plan, streams, plan->stream_count);
    free(streams);
    SN_CUDA(cuCtxPopCurrent_v2, &context);
    return result;
}
