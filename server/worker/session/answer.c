#include "answer.h"

#include <stdlib.h>

struct answer {
    struct gpw_token token;
    gpw_answer *send;
};

static void passed(struct gpw_session *s, void *arg, CUresult result)
{
    struct answer *a = arg;
    a->send(s, a->token, result);
    free(a);
}

static struct answer *answer_new(struct gpw_token token, gpw_answer *send)
{
    struct answer *a = malloc(sizeof *a);
    if (a)
        *a = (struct answer){token, send};
    return a;
}

/* Started: the answer comes later. Not started: this is the answer. */
static CUresult deferred(struct answer *a, CUresult r)
{
    if (r == CUDA_SUCCESS)
        return GPW_DEFERRED;
    free(a);
    return r;
}

CUresult gpw_answer_after_stream(struct gpw_session *s, struct gpw_token token, CUstream stream,
                                 gpw_answer *send)
{
    struct answer *a = answer_new(token, send);
    return a ? deferred(a, gpw_after_stream(s, stream, passed, a)) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gpw_answer_after_context(struct gpw_session *s, struct gpw_token token,
                                  CUcontext context, gpw_answer *send)
{
    CUcontext popped;
    CUresult r = context ? s->driver->cuCtxPushCurrent_v2(context) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS)
        return r;
    struct answer *a = answer_new(token, send);
    r = a ? deferred(a, gpw_after_context(s, passed, a)) : CUDA_ERROR_OUT_OF_MEMORY;
    if (context)
        s->driver->cuCtxPopCurrent_v2(&popped);
    return r;
}
