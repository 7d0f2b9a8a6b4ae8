/* MD2 (RFC 1319) and HMAC (RFC 2104) over it. Broken as hashes go; here only
 * because the runtime asks for it. */
#ifndef GPC_PRIVATE_MD2_H
#define GPC_PRIVATE_MD2_H

#include <stddef.h>

#define GPC_MD2_BYTES 16

struct gpc_md2 {
    unsigned char state[48];
    unsigned char checksum[GPC_MD2_BYTES];
    unsigned char block[GPC_MD2_BYTES];
    size_t held; /* bytes in block */
};

void gpc_md2_start(struct gpc_md2 *h);
void gpc_md2_add(struct gpc_md2 *h, const void *data, size_t size);
void gpc_md2_finish(struct gpc_md2 *h, unsigned char out[GPC_MD2_BYTES]);

struct gpc_hmac {
    struct gpc_md2 inner;
    unsigned char outer_key[GPC_MD2_BYTES];
};

/* A key is exactly one block, so it is neither hashed nor padded. */
void gpc_hmac_start(struct gpc_hmac *h, const unsigned char key[GPC_MD2_BYTES]);
void gpc_hmac_add(struct gpc_hmac *h, const void *data, size_t size);
void gpc_hmac_finish(struct gpc_hmac *h, unsigned char out[GPC_MD2_BYTES]);

#endif
