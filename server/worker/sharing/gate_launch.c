/* Collectives, which a thread of NCCL's puts on their streams, and in which other workers' ranks take
 * part. */
#include "gate_internal.h"
#include "quota.h"

struct gate *gpw_gate_enter(struct gpw_session *s, CUcontext context, CUcontext *before)
{
    *before = NULL;
    s->driver->cuCtxGetCurrent(before);
    s->driver->cuCtxSetCurrent(context);
    return gate_of(s, gpw_current_ordinal(s));
}

void gpw_gate_collective(struct gpw_session *s, uint32_t communicator, uint32_t number)
{
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g))
        gp_seat_collective(g->seat, communicator, number);
}

int gpw_gate_launching(struct gpw_session *s, CUcontext context)
{
    CUcontext before;
    struct gate *g = s->gates ? gpw_gate_enter(s, context, &before) : NULL;
    if (s->gates)
        s->driver->cuCtxSetCurrent(before);
    if (!g || !g->busy)
        return -1;
    g->marks.launching++;
    return (int)ordinal_of(s, g);
}

void gpw_gate_launched(struct gpw_session *s, int ordinal, CUcontext context,
                       const CUstream *stream)
{
    struct gate *g = ordinal >= 0 ? &s->gates->at[ordinal] : NULL;
    if (!g)
        return;
    g->marks.launching -= g->marks.launching > 0;
    if (!stream)
        return;
    /* where its turn did not wait for it, it counts with the work of the next one */
    gpw_marks_stream(s, &g->marks, context, *stream);
    gpw_marks_submitted(s, &g->marks);
}
