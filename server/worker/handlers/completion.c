/*
 * Waits that the GPU ends: behind the work it writes a number where the client looks. The answer
 * comes all the same, in its turn, and is what tells of errors. What the client does with the page
 * is its own affair: the worker reads nothing there.
 */
#include "answer.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "loop.h"
#include "memory_internal.h"
#include "module.h"

static bool place_is_right(const struct gpw_session *s, uint32_t place)
{
    return s->memory->completions.open && place < GP_COMPLETION_PLACES;
}

static char *bytes_at(const struct gpw_gpu_page *page, uint32_t place)
{
    return (char *)page->share.addr + GP_COMPLETION_DATA + place * GP_COMPLETION_DATA_MAX;
}

/* What kernels have printed, and what has failed since the last answer, comes before the end of a
 * wait, and of that the GPU knows nothing: another thread of the client's may be reading it still. */
static bool is_all(const struct gpw_session *s)
{
    return !gpw_modules_print(s) && !s->failures.told;
}

static bool may_write(struct gpw_session *s, CUstream stream)
{
    return is_all(s) && (!gpw_captures_any(s) || gpw_not_capturing(s, stream) == CUDA_SUCCESS);
}

CUresult gpw_complete(struct gpw_session *s, CUdeviceptr src, CUstream stream, uint32_t bytes,
                      uint32_t place, uint64_t number)
{
    struct gpw_gpu_page *page = &s->memory->completions;
    CUresult r = CUDA_SUCCESS;
    if (!place_is_right(s, place) || bytes > GP_COMPLETION_DATA_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes && !gpw_gpu_page_here(s, page))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (bytes)
        r = s->driver->cuMemcpyDtoHAsync_v2(bytes_at(page, place), src, bytes, stream);
    if (r == CUDA_SUCCESS && may_write(s, stream))
        gpw_gpu_page_write(s, page, stream, place * GP_COMPLETION_WORD_STEP, number);
    return r; /* the answer says what the GPU does not */
}

CUresult gpw_gp_context_complete(struct gpw_session *s, struct gpw_token token, uint32_t place,
                                 uint64_t number)
{
    if (!place_is_right(s, place))
        return CUDA_ERROR_INVALID_VALUE;
    /* no stream that captures may be asked whether it is busy */
    if (is_all(s) && !gpw_captures_any(s) && gpw_legacy_stream_tells(s))
        gpw_gpu_page_write(s, &s->memory->completions, CU_STREAM_LEGACY,
                           place * GP_COMPLETION_WORD_STEP, number);
    return gpw_answer_after_context(s, token, NULL, gpw_answer_gp_context_complete);
}
