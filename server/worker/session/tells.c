/* Which stream's end is that of a whole context. */
#include "green.h"
#include "handles.h"
#include "left.h"
#include "loop.h"

struct busy {
    CUcontext context;
    unsigned beside; /* streams that the legacy one does not wait for */
    bool ordinary;   /* some that it waits for */
    CUstream last;   /* of those beside */
};

/* Most are idle, so that is asked first. */
static void look(struct gpw_session *s, uint64_t id, uint64_t real, void *arg)
{
    struct busy *b = arg;
    CUstream stream = (CUstream)real;
    unsigned flags = 0;
    CUcontext context;
    (void)id;
    if (b->beside > 1 || s->driver->cuStreamQuery(stream) == CUDA_SUCCESS ||
        s->driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
        gpw_context_root(s, context) != b->context)
        return;
    if (s->driver->cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS &&
        !(flags & CU_STREAM_NON_BLOCKING)) {
        b->ordinary = true;
        return;
    }
    b->beside++;
    b->last = stream;
}

static bool is_idle(struct gpw_session *s, CUstream stream)
{
    return s->driver->cuStreamQuery(stream) == CUDA_SUCCESS;
}

bool gpw_stream_tells(struct gpw_session *s, CUstream *stream)
{
    struct busy b = {NULL, 0, false, NULL};
    if (s->driver->cuCtxGetCurrent(&b.context) != CUDA_SUCCESS ||
        gpw_context_root(s, b.context) != b.context || gpw_left_stream(s, b.context))
        return false;
    gpw_handle_each(s, GP_HANDLE_STREAM, look, &b);
    *stream = b.beside ? b.last : CU_STREAM_LEGACY;
    return b.beside == 0 || (b.beside == 1 && !b.ordinary && is_idle(s, CU_STREAM_LEGACY) &&
                             is_idle(s, CU_STREAM_PER_THREAD));
}
