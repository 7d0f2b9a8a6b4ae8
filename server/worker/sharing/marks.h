/*
 * Marks: events behind everything that a session has submitted to the streams of one device, by
 * which it sees what of it is over. How far apart they are follows how long the work takes.
 */
#ifndef GPW_MARKS_H
#define GPW_MARKS_H

#include "session.h"

/* Streams between two marks; with more of them a mark says less than it could. */
#define GPW_MARK_STREAMS 8
/* Marks under way: at most, and of work that is not known to be brief. */
#define GPW_MARKS_MOST 16
#define GPW_MARKS_FEW 4

struct gpw_mark {
    CUcontext context;
    CUevent events[GPW_MARK_STREAMS];
    unsigned count;
    uint64_t placed; /* ns */
};

struct gpw_marks {
    CUcontext context; /* of the streams below */
    CUstream streams[GPW_MARK_STREAMS];
    unsigned stream_count; /* submitted to since the last mark */
    unsigned unmarked;     /* submissions since then */
    unsigned launching;    /* submissions that are not on their streams yet */
    struct gpw_mark at[GPW_MARKS_MOST];
    unsigned first, count;
    uint64_t passed;   /* ns: when the last mark had passed */
    unsigned every;    /* submissions to a mark; at least 1 */
    uint64_t took;     /* ns: by the work before the last mark */
    uint64_t looked;   /* ns: when they were looked at last */
    uint64_t unpassed; /* ns: the last look at which the one that passed last had not */
    bool brief;        /* GPW_MARKS_MOST of them are over soon */
    bool slow;         /* it did not look like that when one passed last */
    bool lost;         /* the end of something that was submitted will not be seen */
};

/* Whether an event may be recorded there: a stream that is being captured has no work, and the
 * event would be captured, too. */
bool gpw_mark_may(struct gpw_session *s, CUstream stream);
/* Something will be submitted to this stream; the legacy one is of a context. */
void gpw_marks_stream(struct gpw_session *s, struct gpw_marks *m, CUcontext context,
                      CUstream stream);
/* Something has been: from time to time that places a mark. */
void gpw_marks_submitted(struct gpw_session *s, struct gpw_marks *m);
/* Behind all that has no mark yet, if there is room for one. */
void gpw_marks_place(struct gpw_session *s, struct gpw_marks *m);
/* Likewise when nothing more comes: only where work is still under way. */
void gpw_marks_close(struct gpw_session *s, struct gpw_marks *m);
/* Forget those that have passed. `contended`: others wait for this GPU. */
void gpw_marks_check(struct gpw_session *s, struct gpw_marks *m, bool contended);
/* How many may be under way while nobody else waits for this GPU. */
unsigned gpw_marks_room(const struct gpw_marks *m);
/* Everything that was submitted is over. */
bool gpw_marks_drained(const struct gpw_marks *m);
/* Forget the oldest, whether it has passed or not; all that was submitted. */
void gpw_marks_drop(struct gpw_session *s, struct gpw_marks *m);
void gpw_marks_drop_all(struct gpw_session *s, struct gpw_marks *m);
/* The stream is about to be destroyed, the context about to end. */
void gpw_marks_stream_ending(struct gpw_session *s, struct gpw_marks *m, CUstream stream);
void gpw_marks_context_ended(struct gpw_marks *m, CUcontext context);

#endif
