/* What the parts of a seat share. */
#ifndef GP_SEAT_INTERNAL_H
#define GP_SEAT_INTERNAL_H

#include <pthread.h>

#include "page.h"
#include "seat.h"

struct gp_seat {
    struct gp_page *page;
    int page_fd, bell_fd;
    pthread_mutex_t lock;        /* one request at a time */
    pthread_mutex_t memory_lock; /* of what the page says is held */
    bool lost;                   /* the last request was not answered yet */
    uint32_t seen;               /* the epoch at the last refusal */
    uint64_t asked_at;           /* ns: to be let in */
};

enum gp_seat_answer {
    GP_SEAT_ANSWERED,
    GP_SEAT_LATE,   /* the arbiter is away; when it comes back it serves this all the same */
    GP_SEAT_UNSENT, /* likewise, and the one before is not served yet */
};

/* Ask the arbiter; `result` is of GP_SEAT_ANSWERED alone. */
enum gp_seat_answer gp_seat_ask(struct gp_seat *s, enum gp_page_op op, uint64_t a, uint64_t b,
                                uint32_t *result);
/* Have it look at the page. */
void gp_seat_ring(const struct gp_seat *s);

#endif
