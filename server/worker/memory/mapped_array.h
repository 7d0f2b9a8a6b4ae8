/*
 * What memory the client's arrays have mapped: that counts until no part of an array has it any
 * more, as the driver keeps it. Parts are boxes; one that is mapped anew, or taken away, is cut out
 * of those that were there, and its memory is let go of when the stream has come that far.
 */
#ifndef GPW_MAPPED_ARRAY_H
#define GPW_MAPPED_ARRAY_H

#include "session.h"

struct physical;
struct gpw_mapped_part;

/* Change what is mapped as `entries` say, by a call of the driver's with `infos`, which say the
 * same; `physicals[i]` is what the entry maps, or NULL. */
struct gpw_array_change {
    CUstream stream;
    uint32_t count;
    const struct gp_array_map *entries;
    CUarrayMapInfo *infos;
    struct physical **physicals;
    bool *whole; /* the array is mapped as a whole: what the entry says of parts means nothing */
};
CUresult gpw_mapped_arrays_change(struct gpw_session *s, const struct gpw_array_change *change);
/* Arrays have ended: those whose ids are not live any more. */
void gpw_mapped_arrays_forget(struct gpw_session *s);

#endif
