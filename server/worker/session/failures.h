/*
 * Failures of calls that nobody waits for, as the client is told of them. A client that never
 * reads must not make the worker wait for it, which would read nothing any more either: so the
 * first are told one by one, and the others are kept, as a number of each kind, until the client
 * waits for something. Then, and now and then before, they are told.
 */
#ifndef GPW_FAILURES_H
#define GPW_FAILURES_H

#include <stdbool.h>
#include <stdint.h>

#define GPW_FAILURE_KINDS 16

struct gpw_failures {
    struct gpw_failure {
        uint32_t op, count;
        int32_t result;
    } kept[GPW_FAILURE_KINDS]; /* the last one is of all for which there is no place */
    unsigned kinds;
    unsigned told, looks; /* since the client was answered last */
};

struct gpw_session;

/* One more. 0 or the error of the transport. */
int gpw_failures_add(struct gpw_session *s, uint32_t op, int32_t result, bool sticky);
/* Before an answer: whoever waits for one reads. */
int gpw_failures_tell(struct gpw_session *s);
/* Now and then: a client may look at its events without a message. */
void gpw_failures_look(struct gpw_session *s);

#endif
