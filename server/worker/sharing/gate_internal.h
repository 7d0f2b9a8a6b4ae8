/* What the gate's parts share. */
#ifndef GPW_GATE_INTERNAL_H
#define GPW_GATE_INTERNAL_H

#include "gate.h"
#include "marks.h"
#include "seat.h"

struct gate {
    struct gp_seat *seat;
    bool busy; /* as the board has it */
    struct gpw_marks marks;
    CUevent start; /* passes when the GPU has changed over to this tenant */
    CUcontext start_context;
    uint64_t slice_us;
    uint64_t yields; /* ns: since when the turn should end; 0: it need not */
    unsigned beyond; /* submissions of this turn that were let in because it stands */
};

struct gpw_gates {
    struct gate at[GP_DEVICES_MAX];
    unsigned count;      /* at[0 … count) may have a board */
    struct gate *closed; /* the one that the next message waits at */
    bool stalls;         /* the program makes its GPUs wait for what it does */
    enum gp_work kind;   /* of the message that was admitted last */
};

/* The first gate with a board behind `g`, or of all if that is NULL; NULL: no more. */
static inline struct gate *gate_next(const struct gpw_session *s, struct gate *g)
{
    struct gate *end = s->gates ? s->gates->at + s->gates->count : NULL;
    g = g ? g + 1 : s->gates ? s->gates->at : NULL;
    while (g != end && !g->seat)
        g++;
    return g == end ? NULL : g;
}

static inline uint32_t ordinal_of(const struct gpw_session *s, const struct gate *g)
{
    return (uint32_t)(g - s->gates->at);
}

/* The gate of a device; NULL: it has no board, or there is no device. */
static inline struct gate *gate_of(struct gpw_session *s, int ordinal)
{
    return ordinal >= 0 && s->gates->at[ordinal].seat ? &s->gates->at[ordinal] : NULL;
}

/* The gate of a context's device, which becomes the current one; NULL: it has none
 * (gate_launch.c). */
struct gate *gpw_gate_enter(struct gpw_session *s, CUcontext context, CUcontext *before);

#endif
