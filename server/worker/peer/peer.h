/*
 * Other workers of the same client, on other hosts, to whose GPUs bytes go directly.
 */
#ifndef GPW_PEER_H
#define GPW_PEER_H

#include "peer_seal.h"
#include "session.h"

/* Where this worker listens, and what it needs to be joined to others. */
struct gpw_peers_at {
    const char *const *listen;
    unsigned listen_count;
    const char *plugins;
    const char *host; /* at which others reach this one; NULL: not known */
    bool has_key;
    uint8_t key[GPW_PEER_KEY]; /* with which addresses are sealed (peer_seal.h) */
};
/* 0, or -1 without memory. */
int gpw_peers_open(struct gpw_session *s, const struct gpw_peers_at *where);
/* With which the lease's workers seal what clients carry between them; NULL: it has not come. */
const uint8_t *gpw_peers_key(const struct gpw_session *s);
/* Bytes to or from another worker, when the stream comes to it. */
CUresult gpw_peer_transfer(struct gpw_session *s, uint32_t peer, uint64_t tag, CUdeviceptr address,
                           uint64_t bytes, CUstream stream, bool sends);
/* Whether a stream is blocked, or may come to be, until another worker acts. */
bool gpw_peers_pending(const struct gpw_session *s);
/* Whether more work may be submitted behind transfers that are not over. */
bool gpw_peers_admit(struct gpw_session *s, const struct gp_header *h);
void gpw_peers_passed(struct gpw_session *s, const struct gp_header *h);
/* The message destroys a stream; what it has to do still goes on. */
void gpw_peers_stream_ending(struct gpw_session *s, const struct gp_header *h);
/* A context is about to end, and everything of it on the way with it. */
void gpw_peers_context_ended(struct gpw_session *s, CUcontext context);
/* The session is over. */
void gpw_peers_close(struct gpw_session *s);
/* Bytes of this session so far. Any thread. */
void gpw_peers_bytes(const struct gpw_session *s, uint64_t *sent, uint64_t *received);

#endif
