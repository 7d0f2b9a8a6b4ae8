/*
 * Events that several processes have: a table in a file of the folder that the processes of a host
 * share (GPUPOOL_SOFT_TIME; without it there are none). A slot is its maker's for as long as that
 * holds a lock on it, which works whatever pid namespaces there are; who opens the event has the
 * slot's number and its token. What the slot counts are records, and how far they have passed.
 */
#ifndef SG_SHARED_EVENT_H
#define SG_SHARED_EVENT_H

#include "softgpu.h"

bool sg_shared_events_there(void);
/* A slot of this process's; NULL: none is free, or there is no folder. */
struct sg_shared_event *sg_shared_event_new(void);
void sg_shared_event_free(struct sg_shared_event *event);
void sg_shared_event_name(const struct sg_shared_event *event, CUipcEventHandle *handle);
/* NULL: it has ended, or the handle is none. */
struct sg_shared_event *sg_shared_event_open(const CUipcEventHandle *handle);

/* The number of a record that is submitted now, and of the one that was submitted last. */
uint64_t sg_shared_event_record(struct sg_shared_event *event);
uint64_t sg_shared_event_last(const struct sg_shared_event *event);
/* The stream has come to it. */
void sg_shared_event_pass(struct sg_shared_event *event, uint64_t number);
/* Whether that record has passed, or nobody is left who could make it pass. */
bool sg_shared_event_passed(const struct sg_shared_event *event, uint64_t number);

/* event.c: an event here, which takes over what is shared, also when it fails. */
CUresult sg_event_make(CUcontext context, unsigned flags, struct sg_shared_event *shared,
                       CUevent *out);
/* The stream waits for the record that was submitted last, by whatever process. */
CUresult sg_event_wait_shared(CUevent event, CUstream stream);

#endif
