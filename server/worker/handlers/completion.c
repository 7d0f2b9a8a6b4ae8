/*
 * Waits that the GPU ends: behind the work it writes a number where the client looks. The answer
 * comes all the same, in its turn, and is what tells of errors. What the client does with the page
 * is its own affair: the worker reads nothing there.
 */
#include "answer.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "memory_internal.h"
#include "module.h"

CUresult gpw_gp_completion_open(struct gpw_session *s, uint64_t share, uint64_t bytes)
{
    if (bytes < GP_COMPLETION_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    return gpw_gpu_page_open(s, &s->memory->completions, share, bytes);
}

static bool place_is_right(const struct gpw_session *s, uint32_t place)
{
    return s->memory->completions.open && place < GP_COMPLETION_PLACES;
}

/* What kernels have printed comes before the end of a wait, and of that the GPU knows nothing. */
static bool may_write(struct gpw_session *s, CUstream stream)
{
    return !gpw_modules_print(s) &&
           (!gpw_captures_any(s) || gpw_not_capturing(s, stream) == CUDA_SUCCESS);
}

static bool number_write(struct gpw_session *s, CUstream stream, uint32_t place, uint64_t number)
{
    return may_write(s, stream) && gpw_gpu_page_write(s, &s->memory->completions, stream,
                                                      place * GP_COMPLETION_WORD_STEP, number);
}

CUresult gpw_gp_stream_complete(struct gpw_session *s, struct gpw_token token, CUstream stream,
                                uint32_t place, uint64_t number)
{
    if (!place_is_right(s, place))
        return CUDA_ERROR_INVALID_VALUE;
    number_write(s, stream, place, number);
    return gpw_answer_after_stream(s, token, stream, gpw_answer_gp_stream_complete);
}

/* Without the page the client asks for the bytes themselves. */
CUresult gpw_gp_dtoh_complete(struct gpw_session *s, struct gpw_token token, CUdeviceptr src,
                              CUstream stream, uint32_t bytes, uint32_t place, uint64_t number)
{
    struct gpw_gpu_page *page = &s->memory->completions;
    struct gpw_answer_wait *answer;
    if (!place_is_right(s, place) || bytes > GP_COMPLETION_DATA_MAX ||
        !gpw_memory_is_device(s, src, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpw_captures_any(s) ? gpw_not_capturing(s, stream) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS || !gpw_gpu_page_here(s, page))
        return r ? r : CUDA_ERROR_NOT_SUPPORTED;
    r = gpw_answer_prepare(s, token, stream, gpw_answer_gp_dtoh_complete, &answer);
    if (r != CUDA_SUCCESS)
        return r;
    char *to = (char *)page->share.addr + GP_COMPLETION_DATA + place * GP_COMPLETION_DATA_MAX;
    r = s->driver->cuMemcpyDtoHAsync_v2(to, src, bytes, stream);
    if (r == CUDA_SUCCESS)
        number_write(s, stream, place, number);
    return gpw_answer_submitted(s, answer, stream, r);
}
