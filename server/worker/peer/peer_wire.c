#include "peer_wire.h"

#include <errno.h>
#include <string.h>

#include "wire/hmac.h"

struct hello {
    struct gp_header h;
    uint32_t version, oldest;
    uint8_t nonce[GPW_PEER_NONCE];
};
struct challenge {
    struct gp_header h;
    uint32_t version, zero;
    uint8_t nonce[GPW_PEER_NONCE];
    uint8_t proof[GPW_PEER_PROOF];
};
struct prove {
    struct gp_header h;
    uint8_t proof[GPW_PEER_PROOF];
};
struct amount { /* OFFER, READY */
    struct gp_header h;
    uint64_t bytes;
};
struct failure { /* ABORT, REFUSE */
    struct gp_header h;
    int32_t result;
    uint32_t zero;
};
struct data {
    struct gp_header h;
    uint64_t offset;
    uint32_t bytes, zero;
};
_Static_assert(sizeof(struct challenge) <= GPW_PEER_FIXED_MAX, "room for every fixed part");

static size_t fixed_size(uint16_t kind)
{
    switch (kind) {
    case GPW_PEER_HELLO:
        return sizeof(struct hello);
    case GPW_PEER_CHALLENGE:
        return sizeof(struct challenge);
    case GPW_PEER_PROVE:
        return sizeof(struct prove);
    case GPW_PEER_WELCOME:
        return sizeof(struct gp_header);
    case GPW_PEER_OFFER:
    case GPW_PEER_READY:
        return sizeof(struct amount);
    case GPW_PEER_ABORT:
    case GPW_PEER_REFUSE:
        return sizeof(struct failure);
    case GPW_PEER_DATA:
        return sizeof(struct data);
    default:
        return 0;
    }
}

static int decode_hello(const struct hello *m, struct gpw_peer_message *out)
{
    if (m->oldest > m->version || m->h.seq)
        return -EPROTO;
    out->version = m->version;
    out->oldest = m->oldest;
    out->nonce = m->nonce;
    return 0;
}

static int decode_challenge(const struct challenge *m, struct gpw_peer_message *out)
{
    if (m->zero || m->h.seq)
        return -EPROTO;
    out->version = m->version;
    out->nonce = m->nonce;
    out->proof = m->proof;
    return 0;
}

static int decode_failure(const struct failure *m, struct gpw_peer_message *out)
{
    if (m->zero || m->result <= 0)
        return -EPROTO;
    out->result = m->result;
    return 0;
}

static int decode_data(const struct data *m, size_t size, struct gpw_peer_message *out)
{
    uint64_t end;
    if (m->zero || m->bytes == 0 || m->bytes > GP_CHUNK_MAX ||
        size != sizeof *m + gp_align8(m->bytes) ||
        __builtin_add_overflow(m->offset, (uint64_t)m->bytes, &end))
        return -EPROTO;
    out->offset = m->offset;
    out->bytes = m->bytes;
    out->data = m + 1;
    return 0;
}

int gpw_peer_decode(const void *message, size_t size, struct gpw_peer_message *out)
{
    const struct gp_header *h = message;
    if (size < sizeof *h || h->size != size || h->flags != 0)
        return -EPROTO;
    size_t fixed = fixed_size(h->op);
    if (fixed == 0 || size < fixed || (size != fixed && h->op != GPW_PEER_DATA))
        return -EPROTO;
    *out = (struct gpw_peer_message){.kind = (enum gpw_peer_kind)h->op, .tag = h->seq};
    switch (out->kind) {
    case GPW_PEER_HELLO:
        return decode_hello(message, out);
    case GPW_PEER_CHALLENGE:
        return decode_challenge(message, out);
    case GPW_PEER_PROVE:
        out->proof = ((const struct prove *)message)->proof;
        return h->seq ? -EPROTO : 0;
    case GPW_PEER_WELCOME:
        return h->seq ? -EPROTO : 0;
    case GPW_PEER_OFFER:
    case GPW_PEER_READY:
        out->bytes = ((const struct amount *)message)->bytes;
        return 0;
    case GPW_PEER_ABORT:
    case GPW_PEER_REFUSE:
        return decode_failure(message, out);
    case GPW_PEER_DATA:
        return decode_data(message, size, out);
    }
    return -EPROTO;
}

size_t gpw_peer_encode(const struct gpw_peer_message *m, void *out)
{
    size_t size = fixed_size((uint16_t)m->kind);
    memset(out, 0, size);
    struct gp_header *h = out;
    h->op = (uint16_t)m->kind;
    h->seq = m->tag;
    h->size = (uint32_t)size;
    switch (m->kind) {
    case GPW_PEER_HELLO:
        ((struct hello *)out)->version = m->version;
        ((struct hello *)out)->oldest = m->oldest;
        memcpy(((struct hello *)out)->nonce, m->nonce, GPW_PEER_NONCE);
        break;
    case GPW_PEER_CHALLENGE:
        ((struct challenge *)out)->version = m->version;
        memcpy(((struct challenge *)out)->nonce, m->nonce, GPW_PEER_NONCE);
        memcpy(((struct challenge *)out)->proof, m->proof, GPW_PEER_PROOF);
        break;
    case GPW_PEER_PROVE:
        memcpy(((struct prove *)out)->proof, m->proof, GPW_PEER_PROOF);
        break;
    case GPW_PEER_WELCOME:
        break;
    case GPW_PEER_OFFER:
    case GPW_PEER_READY:
        ((struct amount *)out)->bytes = m->bytes;
        break;
    case GPW_PEER_ABORT:
    case GPW_PEER_REFUSE:
        ((struct failure *)out)->result = m->result;
        break;
    case GPW_PEER_DATA:
        ((struct data *)out)->offset = m->offset;
        ((struct data *)out)->bytes = (uint32_t)m->bytes;
        h->size = (uint32_t)(size + gp_align8(m->bytes));
        break;
    }
    return size;
}

/* --- the secret -------------------------------------------------------------------- */

void gpw_peer_proof(const uint8_t secret[GPW_PEER_SECRET], bool listens,
                    const uint8_t connecting_nonce[GPW_PEER_NONCE],
                    const uint8_t listening_nonce[GPW_PEER_NONCE], uint8_t proof[GPW_PEER_PROOF])
{
    /* the two sides' proofs differ, so that neither can be sent back as the other */
    static const char labels[2][24] = {"gpupool peer connecting", "gpupool peer listening"};
    uint8_t nonces[2 * GPW_PEER_NONCE];
    memcpy(nonces, connecting_nonce, GPW_PEER_NONCE);
    memcpy(nonces + GPW_PEER_NONCE, listening_nonce, GPW_PEER_NONCE);
    gp_hmac(secret, GPW_PEER_SECRET, labels[listens], sizeof labels[0], nonces, sizeof nonces,
            proof);
}

bool gpw_peer_proof_same(const uint8_t *a, const uint8_t *b)
{
    return gp_bytes_same(a, b, GPW_PEER_PROOF);
}
