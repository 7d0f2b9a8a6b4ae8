#include "unique_id.h"

#include <string.h>

#include "wire/hmac.h"

#define MAC (NCCL_UNIQUE_ID_BYTES - GPW_ID_BODY)
_Static_assert(MAC == 32 && GPW_ID_BODY % 32 == 0, "whole blocks of SHA-256");

static void mac_of(const uint8_t *key, const uint8_t *body, uint8_t mac[MAC])
{
    static const char label[] = "gpupool nccl id";
    gp_hmac(key, GPW_PEER_KEY, label, sizeof label, body, GPW_ID_BODY, mac);
}

/* The MAC is also what makes the stream of each id another one: no two ids have the same. */
static void cover(const uint8_t *key, const uint8_t mac[MAC], uint8_t body[GPW_ID_BODY])
{
    char label[] = "gpupool nccl cover 0";
    uint8_t block[32];
    for (unsigned at = 0; at < GPW_ID_BODY; at += sizeof block) {
        label[sizeof label - 2] = (char)('0' + at / sizeof block);
        gp_hmac(key, GPW_PEER_KEY, label, sizeof label, mac, MAC, block);
        for (unsigned i = 0; i < sizeof block; i++)
            body[at + i] ^= block[i];
    }
}

bool gpw_unique_id_seal(const uint8_t key[GPW_PEER_KEY], const ncclUniqueId *id,
                        uint8_t sealed[NCCL_UNIQUE_ID_BYTES])
{
    static const uint8_t zero[MAC];
    if (memcmp(id->internal + GPW_ID_BODY, zero, MAC) != 0)
        return false;
    memcpy(sealed, id->internal, GPW_ID_BODY);
    mac_of(key, sealed, sealed + GPW_ID_BODY);
    cover(key, sealed + GPW_ID_BODY, sealed);
    return true;
}

bool gpw_unique_id_open(const uint8_t key[GPW_PEER_KEY], const uint8_t sealed[NCCL_UNIQUE_ID_BYTES],
                        ncclUniqueId *id)
{
    uint8_t body[GPW_ID_BODY], mac[MAC];
    memcpy(body, sealed, sizeof body);
    cover(key, sealed + GPW_ID_BODY, body);
    mac_of(key, body, mac);
    if (!gp_bytes_same(mac, sealed + GPW_ID_BODY, sizeof mac))
        return false;
    memset(id, 0, sizeof *id);
    memcpy(id->internal, body, sizeof body);
    return true;
}
