/* What is said at the door, as both its sides see it. */
#ifndef GP_DOOR_INTERNAL_H
#define GP_DOOR_INTERNAL_H

#include "transport/door.h"

#define DOOR_MAGIC "gpupool-door/1"

struct knock {
    char magic[16];
    unsigned char nonce[DOOR_NONCE_BYTES];
    unsigned char proof[DOOR_PROOF_BYTES];
};

struct answer {
    char magic[16];
    unsigned char body[DOOR_BODY_BYTES];
    unsigned char proof[DOOR_PROOF_BYTES];
};

enum proof_of { PROOF_KNOCK, PROOF_ANSWER, PROOF_GREETING, PROOF_CONFIRM, PROOF_KEY, PROOF_LANES };

/* They differ, so that none can be sent back as another. */
void door_prove(const unsigned char *word, enum proof_of what, const unsigned char *nonce,
                const void *body, size_t body_size, unsigned char proof[DOOR_PROOF_BYTES]);
void door_nonce_of_greeting(const unsigned char *word, const unsigned char *nonce,
                            unsigned char out[DOOR_NONCE_BYTES]);
/* As ZeroMQ writes it. A dual socket's view of an IPv4 address is that address. */
struct sockaddr_storage;
void door_host_show(const struct sockaddr_storage *a, char out[DOOR_HOST_MAX]);

#endif
