/* What the messages behind one wait for. */
#include "gpw_handlers.h"

static void fence_passed(struct gpw_session *s, void *arg, CUresult result)
{
    (void)arg, (void)result;
    s->fences--;
}

CUresult gpw_gp_fence(struct gpw_session *s, CUstream stream)
{
    s->fences++;
    CUresult r = gpw_after_stream(s, stream, fence_passed, NULL);
    if (r != CUDA_SUCCESS)
        s->fences--;
    return r;
}
