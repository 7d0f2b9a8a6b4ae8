/* What a fake server says (fake_server.h), as it is drawn. All under the fake servers' lock. */
#ifndef FUZZ_FAKE_ANSWER_H
#define FUZZ_FAKE_ANSWER_H

#include "draw.h"
#include "transport/transport.h"

#define FAKE_KEPT 32u

struct fake_server {
    uint32_t index;
    struct gp_channel *client, *end; /* the two ends; NULL: not connected, or hung up */
    bool gone;
    unsigned asked; /* how often the front end was */
    size_t underway;
    struct draw draw;
    uint64_t cookies[DRAW_KEPT]; /* of host functions, which may be called again */
    unsigned cookie_count;
    /* of polled events, and of the ends of waits: the shares' numbers; 0: none */
    uint64_t page, completions;
    struct { /* what is said late: when the client would block */
        void *message;
        size_t size;
    } kept[FAKE_KEPT];
    unsigned kept_count;
};

void fake_server_begin(struct fake_server *s, uint32_t index);
/* The front end's answer; its bytes. */
size_t fake_server_admit(struct fake_server *s, char *answer, size_t room);
/* What follows from a message of the client's: an answer, notices, nothing. */
void fake_server_answer(struct fake_server *s, const struct gp_header *asked);
/* Say what was kept back; false: nothing was. */
bool fake_server_say_kept(struct fake_server *s);
/* To the client, unless it does not listen. */
void fake_server_say(struct fake_server *s, const void *message, size_t size);

#endif
