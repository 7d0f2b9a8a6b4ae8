/* The worker's message loop and its waits. */
#ifndef GPW_LOOP_H
#define GPW_LOOP_H

#include "session.h"

/* Take messages until the session ends. `idle` is called a few times a second. */
void gpw_loop_run(struct gpw_session *s, bool (*idle)(struct gpw_session *));

/* Poll every wait that is over now. What is known to have completed before this call
 * has been told when it returns. */
void gpw_waits_poll(struct gpw_session *s);
bool gpw_waits_any(const struct gpw_session *s);
/* Every wait is told that it is over. A worker that ends does not: some ask the driver. */
void gpw_waits_cancel(struct gpw_session *s);
/* Events without timing, kept for reuse; `context` is current. */
CUresult gpw_event_take(struct gpw_session *s, CUcontext context, CUevent *event);
void gpw_event_give(struct gpw_session *s, CUcontext context, CUevent event);
/* A stream in which what is put there now comes behind all work of the current context; false: there
 * is none. Not to be asked while any stream captures. */
bool gpw_stream_tells(struct gpw_session *s, CUstream *stream);
/* A message is about to be handled, which may put work into a stream; or streams get work without one. */
void gpw_working_note(struct gpw_session *s, const struct gp_header *h);
void gpw_working_forget(struct gpw_session *s);
/* Events kept for reuse died with their context. */
/* Waits for events that went with their context (stream.c). */
/* The client destroys it. True: it goes when it is no longer waited for, as in CUDA. */
bool gpw_event_ending(struct gpw_session *s, CUevent event);
/* It is to be recorded anew: whoever waits for it waits for what it has now. */
CUresult gpw_event_anew(struct gpw_session *s, CUevent event);
/* The same of an event of a context that needs not be current. */
CUresult gpw_event_anew_in(struct gpw_session *s, CUcontext context, CUevent event);
void gpw_event_waits_context_ended(struct gpw_session *s);
void gpw_waits_context_ended(struct gpw_session *s, CUcontext context);

#endif
