/* Links between the workers of two sessions, made when they are first needed. */
#ifndef GPC_PEER_LINK_H
#define GPC_PEER_LINK_H

#include "session.h"

/* Have the workers of two sessions joined: each then has the other's session index as
 * the number of its peer. DEVICE_UNAVAILABLE, after one line on stderr, if they cannot
 * reach each other. */
CUresult gpc_peer_link(struct gpc_session *one, struct gpc_session *other);
/* A tag that no transfer has had. */
uint64_t gpc_peer_tag(void);

/* `offered`, an address for whoever has reached `server`, with the host put in. */
void gpc_fill_host(const char *offered, const char *server, char *out, size_t size);

#endif
