/*
 * NCCL's unique ids, as clients carry them from rank to rank. NCCL puts the address and the word of
 * a rank's worker into the front of one and leaves the rest zero. A client gets it encrypted and
 * with a MAC, by the key that the workers of its lease have in common and it has not: so it cannot
 * go there itself, send its worker anywhere else, or join the ranks of another lease.
 */
#ifndef GPW_UNIQUE_ID_H
#define GPW_UNIQUE_ID_H

#include <stdbool.h>
#include <stdint.h>

#include "nccl_api.h"
#include "peer_seal.h"

#define GPW_ID_BODY 96 /* the rest is the MAC's */

/* False: this NCCL uses more of an id than there is room for. */
bool gpw_unique_id_seal(const uint8_t key[GPW_PEER_KEY], const ncclUniqueId *id,
                        uint8_t sealed[NCCL_UNIQUE_ID_BYTES]);
/* False: it is of another lease, or no id. */
bool gpw_unique_id_open(const uint8_t key[GPW_PEER_KEY], const uint8_t sealed[NCCL_UNIQUE_ID_BYTES],
                        ncclUniqueId *id);

#endif
