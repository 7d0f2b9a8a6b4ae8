/* What the messages behind one wait for. */
#include "gpw_handlers.h"
#include "handles.h"
#include "later.h"
#include "message_fields.h"

static void fence_passed(struct gpw_session *s, void *arg, CUresult result)
{
    (void)arg, (void)result;
    s->stream_fences--;
}

/* Those of other streams wait, so all that are under way are of one. */
CUresult gpw_gp_fence(struct gpw_session *s, CUstream stream)
{
    s->stream_fences++;
    s->fenced = stream;
    CUresult r = gpw_after_stream(s, stream, fence_passed, NULL);
    if (r != CUDA_SUCCESS)
        s->stream_fences--;
    return r;
}

static bool is_behind(struct gpw_session *s, const struct gp_header *h)
{
    const struct gp_op_info *op = gp_op_info(h->op);
    uint64_t id = gp_message_id(h, op->stream_at), real = 0;
    return id && (op->work != GP_WORK_NONE || op->quiet) &&
           gpw_handle_get(s, GP_HANDLE_STREAM, id, false, &real) == CUDA_SUCCESS &&
           (CUstream)real == s->fenced;
}

bool gpw_fences_admit(struct gpw_session *s, const struct gp_header *h)
{
    return s->fences == 0 && (s->stream_fences == 0 || is_behind(s, h));
}
