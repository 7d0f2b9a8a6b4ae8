/* Memory that the driver frees in stream order, and who has seen that it is free. */
#ifndef GPW_FREED_H
#define GPW_FREED_H

#include "session.h"

/* The driver frees something behind what is in the stream. */
void gpw_freed_note(struct gpw_session *s, CUstream stream);
/* Whether something is freed there of which the driver has not been told: to ask the stream whether
 * its work is over tells it nothing, an event behind it does. */
bool gpw_freed_in(const struct gpw_session *s, CUstream stream);
/* Behind the stream's work, or that of the whole context, the GPU writes a number by which the client
 * knows that it is over. */
void gpw_freed_written(struct gpw_session *s, CUstream stream, bool context, const uint64_t *word,
                       uint64_t number);
/* Whether a message may be handled now: one that needs free memory, or asks for it, waits until the
 * driver has seen free what the client has. `held_ns`: for how long it has waited. */
bool gpw_freed_admit(struct gpw_session *s, const struct gp_header *h, uint64_t held_ns);

#endif
