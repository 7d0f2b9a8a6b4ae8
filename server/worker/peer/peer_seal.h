/*
 * Addresses of workers that a client carries from one to the other. A worker connects only
 * to what another one has sealed, with a key that their servers have in common and the
 * client has not: else a client could send its worker to any port of any host.
 */
#ifndef GPW_PEER_SEAL_H
#define GPW_PEER_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peer_wire.h"

#define GPW_PEER_KEY 32
/* How far apart the clocks of two hosts may be, with the time that a client takes. */
#define GPW_PEER_SEAL_SECONDS 600

/* `secret` is the pair's, so that a seal is good for one pair. Writes "URL#TIME.MAC"; false:
 * no room. */
bool gpw_peer_seal(const uint8_t key[GPW_PEER_KEY], const uint8_t secret[GPW_PEER_SECRET],
                   int64_t now, const char *url, char *out, size_t size);
/* Takes the seal off `sealed`, in place. NULL if it is right, else what is wrong. */
const char *gpw_peer_unseal(const uint8_t key[GPW_PEER_KEY], const uint8_t secret[GPW_PEER_SECRET],
                            int64_t now, char *sealed);

/* Whether a worker may go there: over TCP, and to no address that means another host here.
 * `own_loopback`: the worker itself listens at the loopback. */
bool gpw_peer_may_go(const char *url, bool own_loopback);
bool gpw_peer_is_loopback(const char *url);
/* How much of an address a log may have: behind that is its word, which is a key. */
int gpw_peer_shown(const char *url);

#endif
