/* What the arbiter's parts share. */
#ifndef GP_ARBITER_INTERNAL_H
#define GP_ARBITER_INTERNAL_H

#include "arbiter.h"
#include "board_internal.h"
#include "page.h"

#define GP_ARBITER_SERVERS 4

/* What the arbiter knows of a page; all of it its own. */
struct seat {
    struct gp_page *page; /* NULL: free */
    int page_fd, bell_fd, pid_fd;
    uint32_t asked; /* the last request that was served */
    uint32_t result;
    bool answer;      /* `result` is to be told */
    bool rang;        /* since the last look */
    bool lazy;        /* it need not tell when its work begins and ends */
    bool muffled;     /* its bell is not heard until the next tick */
    unsigned rings;   /* since `window` */
    uint64_t window;  /* ns */
    uint32_t runs;    /* as its page had it last */
    uint64_t let_in;  /* ns: when it was let in and had not begun; 0: it has */
    uint64_t synced;  /* ns: when that was looked at */
    uint64_t claimed; /* ns that it says it has worked */
    uint64_t launches, bytes_copied, copied[GP_BOARD_WAYS];
    uint64_t lease[GP_BOARD_WAYS];        /* ns: until when it may copy without asking */
    uint32_t flags;                       /* as its page has them */
    uint64_t collective, collective_most; /* likewise */
};

struct gp_arbiter {
    struct gp_board *board;
    int epoll, timer, listener;
    int servers[GP_ARBITER_SERVERS]; /* connections; -1: free */
    int top;                         /* seats from here on are free */
    bool served;                     /* a server has been there */
    bool muffled;                    /* a seat is */
    uint64_t deaf_until;             /* ns: servers that connect wait so long; 0: they do not */
    uint64_t entitled;               /* of the board, when slices were written last */
    struct seat seats[GP_BOARD_MEMBERS];
};

enum gp_arbiter_source { GP_ARBITER_BELL, GP_ARBITER_PID, GP_ARBITER_SERVER, GP_ARBITER_OTHER };

/* Be told of a descriptor, by its kind and index. */
int gp_arbiter_watch(struct gp_arbiter *a, int fd, enum gp_arbiter_source source, int index,
                     uint32_t events);
/* Look at what a page says; afterwards the board has it. */
void gp_arbiter_sync(struct gp_arbiter *a, int member, uint64_t now);
/* At all of them, and at what each has had since this was done last. */
void gp_arbiter_sync_all(struct gp_arbiter *a);
/* Serve the request of a page, if there is one. */
void gp_arbiter_serve(struct gp_arbiter *a, int member);
/* Wake the worker that waits for this word of its page. */
void gp_arbiter_wake(uint32_t *word);
/* Tell all pages what has become of the turn. True: a worker has begun or ended work while
 * it was told, so that the turn has to be looked at again. */
bool gp_arbiter_publish(struct gp_arbiter *a, uint64_t now);
/* Tell workers of gangs how far their other ranks have come (collective.c). */
void gp_arbiter_collectives_tell(struct gp_arbiter *a);
/* gp_board's `keeps`: what the worker claims at the same moment it keeps. */
uint64_t gp_arbiter_keeps(struct gp_board *b, int member);
/* gp_board's `shut`. */
bool gp_arbiter_shut(struct gp_board *b, const struct tenant_slot *t);
/* The member does what no worker of ours does: it is not heard any more. */
void gp_arbiter_fault(struct gp_arbiter *a, int member, const char *what);

#endif
