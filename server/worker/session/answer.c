#include "answer.h"

#include <stdlib.h>

struct gpw_answer_wait {
    struct gpw_token token;
    gpw_answer *send;
    struct gpw_after *after;
    bool written; /* nothing that was launched before prints, or the GPU would not write */
};

static void passed(struct gpw_session *s, void *arg, CUresult result)
{
    struct gpw_answer_wait *a = arg;
    s->none_printed = a->written;
    a->send(s, a->token, result);
    s->none_printed = false;
    free(a);
}

static struct gpw_answer_wait *answer_new(struct gpw_token token, gpw_answer *send)
{
    struct gpw_answer_wait *a = malloc(sizeof *a);
    if (a)
        *a = (struct gpw_answer_wait){.token = token, .send = send};
    return a;
}

/* Started: the answer comes later. Not started: this is the answer. */
static CUresult deferred(struct gpw_answer_wait *a, CUresult r)
{
    if (r == CUDA_SUCCESS)
        return GPW_DEFERRED;
    free(a);
    return r;
}

CUresult gpw_answer_after_stream(struct gpw_session *s, struct gpw_token token, CUstream stream,
                                 gpw_answer *send)
{
    struct gpw_answer_wait *a = answer_new(token, send);
    return a ? deferred(a, gpw_after_stream(s, stream, passed, a)) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gpw_answer_prepare(struct gpw_session *s, struct gpw_token token, CUstream stream,
                            gpw_answer *send, struct gpw_answer_wait **answer)
{
    struct gpw_answer_wait *a = answer_new(token, send);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpw_after_prepare(s, stream, passed, a, &a->after);
    if (r == CUDA_SUCCESS)
        *answer = a;
    else
        free(a);
    return r;
}

CUresult gpw_answer_prepare_unasked(struct gpw_session *s, struct gpw_token token, gpw_answer *send,
                                    struct gpw_answer_wait **answer)
{
    struct gpw_answer_wait *a = answer_new(token, send);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpw_after_prepare_unasked(s, passed, a, &a->after);
    if (r == CUDA_SUCCESS)
        *answer = a;
    else
        free(a);
    return r;
}

CUresult gpw_answer_written(struct gpw_session *s, struct gpw_answer_wait *answer,
                            const uint64_t *word, uint64_t number)
{
    answer->written = true;
    gpw_after_written(s, answer->after, word, number);
    return GPW_DEFERRED;
}

CUresult gpw_answer_submitted(struct gpw_session *s, struct gpw_answer_wait *answer,
                              CUstream stream, CUresult r)
{
    struct gpw_after *after = answer->after;
    return deferred(answer, gpw_after_submitted(s, after, stream, r));
}

CUresult gpw_answer_after_context(struct gpw_session *s, struct gpw_token token, CUcontext context,
                                  gpw_answer *send)
{
    CUcontext popped;
    CUresult r = context ? s->driver->cuCtxPushCurrent_v2(context) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS)
        return r;
    struct gpw_answer_wait *a = answer_new(token, send);
    r = a ? deferred(a, gpw_after_context(s, passed, a)) : CUDA_ERROR_OUT_OF_MEMORY;
    if (context)
        s->driver->cuCtxPopCurrent_v2(&popped);
    return r;
}
