/* What both ends do behind the door: tell each other where UCX reaches them, and greet by it. */
#ifndef GP_UCX_GREET_H
#define GP_UCX_GREET_H

#include "transport/ucx_channel.h"

/* A hello that is being heard. */
struct ucx_hearing {
    unsigned char bytes[UCX_HELLO_MAX];
    size_t got;
};

/* What has come of it: 0 all, -EAGAIN, -EPIPE it hung up, -EPROTO. */
int ucx_hello_hear(struct ucx_hearing *h, int fd, enum ucx_side side, const struct ucx_proof *proof,
                   struct ucx_hello *out);
/* Say ours. -EPIPE, -ENOMEM, -ENOTSUP UCX has too many addresses here. */
int ucx_hello_say(struct gp_channel *ch, enum ucx_side side, const struct ucx_proof *proof);
/* The peer's hello has come: an endpoint to it, and a first message. -EHOSTUNREACH */
int ucx_greet(struct gp_channel *ch, const struct ucx_hearing *h, const struct ucx_hello *hello);
/* Whether its first message has come: 0, -EAGAIN, -EPIPE. */
int ucx_greeted(struct gp_channel *ch);

#endif
