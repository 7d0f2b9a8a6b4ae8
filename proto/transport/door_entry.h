/*
 * How a transport takes its one client in, behind the door: who knows the word comes in step by
 * step, one at a time, and with the first who is in, the door is shut. The steps are the
 * transport's, and its listener begins with the entry.
 */
#ifndef GP_TRANSPORT_DOOR_ENTRY_H
#define GP_TRANSPORT_DOOR_ENTRY_H

#include "transport/door.h"

struct door_entry {
    struct door *door; /* NULL: its client is in */
    unsigned generation;
    int fd;      /* of the guest, the door's to close; -1: nobody */
    int look_ms; /* how often the guest is looked at, though it says nothing; 0: never */
    unsigned char body[DOOR_BODY_BYTES];      /* the challenge, once there is one */
    unsigned char expected[DOOR_PROOF_BYTES]; /* and what confirms it */
    unsigned char said[DOOR_PROOF_BYTES];
    size_t got;
};

struct door_steps {
    size_t listener_size;
    /* Listen, by door_entry_open. Not 0: nothing is left. */
    int (*open)(struct gp_listener *l, const char *url, struct gp_error *err);
    /* Somebody has shown the word, over `fd`. Not 0: it is shown out. */
    int (*begin)(struct gp_listener *l);
    /* A step further: 0 it is in, and `fd` is the channel's; -EAGAIN more must come; else it is
     * no client of ours, and is shown out. */
    int (*step)(struct gp_listener *l, struct gp_channel **out);
    /* Free what was kept for it, if anything was: it is in, or is shown out. */
    void (*forget)(struct gp_listener *l);
};

/* A transport's listen and listener_close. */
int door_entry_listen(const struct door_steps *steps, const char *url, struct gp_listener **out,
                      struct gp_error *err);
void door_entry_unlisten(const struct door_steps *steps, struct gp_listener *l);

/* As door_open; an error says that `url` cannot be listened at. */
int door_entry_open(struct door_entry *e, const char *url, int handed, char *endpoint, size_t size,
                    const unsigned char *word, struct gp_error *err);
/* "ENDPOINT?door=WORD", for the client. */
void door_entry_show(const struct door_entry *e, const char *endpoint, char *url, size_t size);

/* Wait for the client. -EAGAIN: nobody came, -ENOTSUP: it has come, or another process listens. */
int door_entry_accept(struct door_entry *e, const struct door_steps *steps, struct gp_listener *l,
                      const char *endpoint, int timeout_ms, struct gp_channel **out,
                      struct gp_error *err);

/* For the steps. Answer the knock with a nonce: only who knows the word, now, can confirm it. */
int door_entry_challenge(struct door_entry *e);
/* 0: it has, -EAGAIN, -EPIPE it hung up, -EPROTO. */
int door_entry_confirmed(struct door_entry *e);

#endif
