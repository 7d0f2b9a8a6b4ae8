/* What another worker may send, decoded; what decodes is what encodes to the same. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "peer_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where every byte goes, so that reading it is not optimised away. */
static volatile unsigned char sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *bytes = malloc(size ? size : 1); /* aligned, and its end is guarded */
    if (!bytes)
        return 0;
    if (size)
        memcpy(bytes, data, size);
    if (size >= sizeof(struct gp_header)) { /* the transport gives no shorter ones */
        struct gp_header h;
        memcpy(&h, bytes, sizeof h);
        h.size = (uint32_t)size; /* nor such that say another size, which would be most */
        memcpy(bytes, &h, sizeof h);
    }
    struct gpw_peer_message m;
    int rc = gpw_peer_decode(bytes, size, &m);
    if (rc != 0 && rc != -EPROTO)
        abort();
    if (rc == 0) {
        uint64_t again[GPW_PEER_FIXED_MAX / 8];
        size_t fixed = gpw_peer_encode(&m, again);
        if (fixed > sizeof again || fixed > size || memcmp(again, bytes, fixed) != 0)
            abort();
        for (uint64_t i = 0; m.data && i < m.bytes; i++)
            sink = ((const unsigned char *)m.data)[i];
    }
    free(bytes);
    return 0;
}
