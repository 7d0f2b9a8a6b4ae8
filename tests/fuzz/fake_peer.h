/*
 * Another worker, whose every word is drawn, as a worker has it: the transport of a link. It
 * opens links by messages of the client's (gp_peer_listen), connects at once and proves that it
 * knows the secret; what it says then comes from steps of its own.
 */
#ifndef FUZZ_FAKE_PEER_H
#define FUZZ_FAKE_PEER_H

#include "draw.h"
#include "peer.h"

/* The number of a step that is not the client's but a peer's. */
#define FAKE_PEER_STEP 0xfffeu

/* Where this worker may listen, as it is given at its start. */
extern const struct gpw_peers_at fake_peer_site;
/* The message of the client's that opens a link under a number of the draw's; its bytes. */
uint32_t fake_peer_open(struct draw *d, struct gp_header *h, uint64_t seq);
/* What the peer says next, and a moment for the worker to hear it. */
void fake_peer_say(struct draw *d);

#endif
