#if GPUPOOL_PRIVATE_TABLES
#include "private_md2.h"

#include <string.h>

/* A permutation of the bytes made from the digits of pi (RFC 1319, 3.2). */
static const unsigned char pi[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,
    243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212,
    224, 22,  103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160,
    251, 245, 142, 187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137,
    11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151,
    3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184,
    56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100,
    113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246,
    28,  70,  97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249,
    206, 186, 197, 234, 38,  44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129,
    77,  82,  106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120,
    136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,  242, 239, 183, 14,
    102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,  80,  180, 143, 237, 31,
    26,  219, 153, 141, 51,  159, 17,  131, 20,
};

static void state_mix(unsigned char state[48], const unsigned char block[GPC_MD2_BYTES])
{
    for (unsigned i = 0; i < GPC_MD2_BYTES; i++) {
        state[16 + i] = block[i];
        state[32 + i] = (unsigned char)(block[i] ^ state[i]);
    }
    unsigned t = 0;
    for (unsigned round = 0; round < 18; round++) {
        for (unsigned i = 0; i < 48; i++)
            t = state[i] ^= pi[t];
        t = (t + round) & 0xFF;
    }
}

static void block_take(struct gpc_md2 *h, const unsigned char block[GPC_MD2_BYTES])
{
    unsigned char last = h->checksum[15];
    for (unsigned i = 0; i < GPC_MD2_BYTES; i++)
        last = h->checksum[i] ^= pi[block[i] ^ last];
    state_mix(h->state, block);
}

void gpc_md2_start(struct gpc_md2 *h)
{
    memset(h, 0, sizeof *h);
}

void gpc_md2_add(struct gpc_md2 *h, const void *data, size_t size)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < size; i++) {
        h->block[h->held++] = p[i];
        if (h->held == GPC_MD2_BYTES) {
            block_take(h, h->block);
            h->held = 0;
        }
    }
}

void gpc_md2_finish(struct gpc_md2 *h, unsigned char out[GPC_MD2_BYTES])
{
    size_t missing = GPC_MD2_BYTES - h->held;
    memset(h->block + h->held, (int)missing, missing);
    block_take(h, h->block);
    unsigned char checksum[GPC_MD2_BYTES];
    memcpy(checksum, h->checksum, sizeof checksum);
    state_mix(h->state, checksum);
    memcpy(out, h->state, GPC_MD2_BYTES);
}

void gpc_hmac_start(struct gpc_hmac *h, const unsigned char key[GPC_MD2_BYTES])
{
    unsigned char inner_key[GPC_MD2_BYTES];
    for (unsigned i = 0; i < GPC_MD2_BYTES; i++) {
        inner_key[i] = key[i] ^ 0x36;
        h->outer_key[i] = key[i] ^ 0x5C;
    }
    gpc_md2_start(&h->inner);
    gpc_md2_add(&h->inner, inner_key, sizeof inner_key);
}

void gpc_hmac_add(struct gpc_hmac *h, const void *data, size_t size)
{
    gpc_md2_add(&h->inner, data, size);
}

void gpc_hmac_finish(struct gpc_hmac *h, unsigned char out[GPC_MD2_BYTES])
{
    unsigned char inner[GPC_MD2_BYTES];
    struct gpc_md2 outer;
    gpc_md2_finish(&h->inner, inner);
    gpc_md2_start(&outer);
    gpc_md2_add(&outer, h->outer_key, sizeof h->outer_key);
    gpc_md2_add(&outer, inner, sizeof inner);
    gpc_md2_finish(&outer, out);
}
#endif
