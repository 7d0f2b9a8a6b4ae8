/*
 * What the GPU does when, as CUPTI records it in this process. CUPTI is found by path, as the
 * driver is; the soft GPU has its own part of it. There is one for the whole process, which is
 * how CUPTI is made: its callbacks are given nothing to find a session by.
 */
#ifndef GPA_CUPTI_RECORDS_H
#define GPA_CUPTI_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "activity_record.h"

/* Bytes of the buffers that CUPTI fills, all of them together, from gpa_start to gpa_stop. */
#define GPA_BYTES ((size_t)8 << 20)

/* Find CUPTI: in `driver`, the library that dlopen gave, or at `path` (NULL: by its name). Again
 * and again: once found, it stays. False, and why, in one line. */
bool gpa_open(void *driver, const char *path, char *why, size_t size);
/* Record, or no more. False: CUPTI, or the system, has no more to give; `why` says it. */
bool gpa_start(char *why, size_t size);
void gpa_stop(void);
bool gpa_on(void);

/* What this thread asks the driver for from now on is for message `seq`; until gpa_leave. */
void gpa_enter(uint64_t seq);
void gpa_leave(void);

/* Have CUPTI hand over what is complete; `forced`: and what is not. */
void gpa_flush(bool forced);
/* The records that were handed over, each once, with their names. */
typedef void gpa_record(void *arg, const struct gp_activity_record *record, const char *name);
void gpa_take(gpa_record *each, void *arg);
/* Records that were lost because all buffers were full, since gpa_start. */
uint64_t gpa_dropped(void);

#endif
