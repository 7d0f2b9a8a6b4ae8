/*
 * Events that the program polls, without asking: a page that the worker has pinned and the GPU
 * writes. Once an event has been asked for, each later record brings a number, which the GPU
 * writes into the event's place in the page right before it comes to the record; a query compares.
 * Over a network the worker sends the number when the record is over, behind whatever was submitted
 * before it has brought: bytes for pinned memory, and errors. Programs that make an event for each
 * thing they ask for have its first record told, too.
 *
 * Over shared memory only events without timing are polled so (the write would be measured), and
 * only those of one context of a session (the page is pinned in it); nowhere any that other
 * processes or graphs record. Who waits for such an event looks at the page for a moment before the
 * worker is asked; unless kernels may print, which is to be there then, too: the worker says so.
 * What stands in the page is the worker's to say and the GPU's to write: a wrong number makes a
 * query of this session wrong, and leads nowhere.
 */
#ifndef GPC_EVENT_PAGE_H
#define GPC_EVENT_PAGE_H

#include <cuda.h>
#include <stdbool.h>

#include "route.h"

/* An event was made that may be polled. */
void gpc_event_may_be_polled(CUevent event, bool timed);
/* From here on it is asked for: a graph or a context records it, too. */
void gpc_event_not_polled(CUevent event);
/* What a record brings: for the GPU to write, or for the worker to tell. */
struct gpc_event_record {
    bool told;
    uint32_t place;
    uint64_t number;
};
/* For a record on this route, which is noted. False: the event is recorded without. */
bool gpc_event_numbered(const struct gpc_route *on, CUevent event, struct gpc_event_record *out);
/* For a record in a stream that has nothing left to do: whether the event is known to be over from now
 * on, as nothing is before it. Then the record is noted, and brings no number. `is_so`: to the driver
 * it is so already, by a record like this one. */
bool gpc_event_over_at_once(const struct gpc_route *on, CUevent event, bool *is_so);
/* What the page says of the event's last record. False: the worker has to be asked. */
bool gpc_event_told(CUevent event, CUresult *r);
/* The same, waiting until it is over where the worker is to tell, and a while where the GPU is. */
bool gpc_event_awaited(CUevent event, CUresult *r);
/* The worker was asked, and said this; or was waited for. */
void gpc_event_asked(CUevent event, uint64_t number, CUresult r, bool waited);
/* The number of the event's last record; 0: it has none. */
uint64_t gpc_event_number(CUevent event);

#endif
