/*
 * Waits that the GPU ends: behind the work it writes a number where the client looks. Of signals that
 * is all, so nothing is made ready or sent for them, and what fails is left to who asks then. Other
 * waits are answered as well, in their turn. When an answer is due the worker reads from the same
 * number, and asks the driver nothing: who writes there, too, spoils the order of its own answers, or
 * has none, and nothing else.
 */
#include "answer.h"
#include "freed.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "loop.h"
#include "memory_internal.h"
#include "module.h"

static bool place_is_right(const struct gpw_session *s, uint32_t place)
{
    return s->memory->completions.open && place < GP_COMPLETION_PLACES;
}

static const uint64_t *word_at(const struct gpw_gpu_page *page, uint64_t offset)
{
    return (const uint64_t *)(const void *)((const char *)page->share.addr + offset);
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

/* The answer comes when the stream's work is over, which the GPU says where it may and can. */
static CUresult end(struct gpw_session *s, struct gpw_answer_wait *answer, CUstream stream,
                    bool context, bool may, uint32_t place, uint64_t number)
{
    struct gpw_gpu_page *page = &s->memory->completions;
    const uint64_t offset = place * GP_COMPLETION_WORD_STEP;
    if (may && gpw_gpu_page_write(s, page, stream, offset, number)) {
        gpw_freed_written(s, stream, context, word_at(page, offset), number);
        return gpw_answer_written(s, answer, word_at(page, offset), number);
    }
    return gpw_answer_submitted(s, answer, stream, CUDA_SUCCESS);
}

/* What submits the work also says what a stream says that captures, or has failed. */
static CUresult submit(struct gpw_session *s, CUdeviceptr src, CUstream stream, uint32_t bytes,
                       uint32_t place, bool may)
{
    struct gpw_gpu_page *page = &s->memory->completions;
    if (!place_is_right(s, place) || bytes > GP_COMPLETION_DATA_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes && !gpw_gpu_page_here(s, page))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (bytes)
        return s->driver->cuMemcpyDtoHAsync_v2(bytes_at(page, place), src, bytes, stream);
    CUresult r = may ? CUDA_SUCCESS : s->driver->cuStreamQuery(stream);
    return r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r;
}

CUresult gpw_complete(struct gpw_session *s, struct gpw_answer_wait *answer, CUdeviceptr src,
                      CUstream stream, uint32_t bytes, uint32_t place, uint64_t number)
{
    bool may = may_write(s, stream);
    CUresult r = submit(s, src, stream, bytes, place, may);
    return r == CUDA_SUCCESS ? end(s, answer, stream, false, may, place, number)
                             : gpw_answer_submitted(s, answer, stream, r);
}

/* --- signals ------------------------------------------------------------------------------- */

/* The number, as the last thing that is waited for. */
static void signal_write(struct gpw_session *s, CUstream stream, bool context, uint32_t place,
                         uint64_t number)
{
    struct gpw_gpu_page *page = &s->memory->completions;
    const uint64_t offset = place * GP_COMPLETION_WORD_STEP;
    if (!gpw_gpu_page_write(s, page, stream, offset, number))
        return;
    s->signal = (struct gpw_signal){word_at(page, offset), number};
    gpw_freed_written(s, stream, context, s->signal.word, number);
}

CUresult gpw_signal(struct gpw_session *s, CUdeviceptr src, CUstream stream, uint32_t bytes,
                    uint32_t place, uint64_t number)
{
    struct gpw_gpu_page *page = &s->memory->completions;
    if (!place_is_right(s, place) || bytes > GP_COMPLETION_DATA_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!may_write(s, stream))
        return CUDA_SUCCESS;
    if (bytes == 0 || (gpw_memory_is_device(s, src, bytes) && gpw_gpu_page_here(s, page) &&
                       s->driver->cuMemcpyDtoHAsync_v2(bytes_at(page, place), src, bytes, stream) ==
                           CUDA_SUCCESS))
        signal_write(s, stream, false, place, number);
    return CUDA_SUCCESS;
}

/* No stream that captures may be asked whether it is busy. */
static bool context_tells(struct gpw_session *s, CUstream *stream)
{
    return is_all(s) && !gpw_captures_any(s) && gpw_stream_tells(s, stream);
}

CUresult gpw_gp_context_signal(struct gpw_session *s, uint32_t place, uint64_t number)
{
    CUstream stream;
    if (!place_is_right(s, place))
        return CUDA_ERROR_INVALID_VALUE;
    if (context_tells(s, &stream))
        signal_write(s, stream, true, place, number);
    return CUDA_SUCCESS;
}

/* --- with an answer ------------------------------------------------------------------------ */

CUresult gpw_gp_context_complete(struct gpw_session *s, struct gpw_token token, uint32_t place,
                                 uint64_t number)
{
    struct gpw_answer_wait *answer;
    gpw_answer *send = gpw_answer_gp_context_complete;
    CUstream stream;
    if (!place_is_right(s, place))
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_tells(s, &stream))
        return gpw_answer_after_context(s, token, NULL, send);
    CUresult r = gpw_answer_prepare_unasked(s, token, send, &answer);
    return r == CUDA_SUCCESS ? end(s, answer, stream, true, true, place, number) : r;
}
