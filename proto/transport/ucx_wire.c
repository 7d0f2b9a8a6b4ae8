#include "transport/ucx_wire.h"

#include <errno.h>
#include <string.h>

#include "wire/hmac.h"

/* --- hello ------------------------------------------------------------------ */

static void hello_prove(enum ucx_side side, const struct ucx_proof *proof, const void *bytes,
                        size_t size, unsigned char out[DOOR_PROOF_BYTES])
{
    char label[24 + DOOR_PROOF_BYTES] = "gpupool ucx client";
    if (side == UCX_WORKER)
        memcpy(label, "gpupool ucx worker", 18);
    memcpy(label + 24, proof->confirmed, DOOR_PROOF_BYTES);
    gp_hmac(proof->key, sizeof proof->key, label, sizeof label, bytes, size, out);
}

size_t ucx_hello_write(unsigned char *to, enum ucx_side side, const struct ucx_proof *proof,
                       uint64_t tag, const void *address, size_t size)
{
    struct ucx_hello hello = {.magic = UCX_MAGIC, .address_size = (uint32_t)size, .tag = tag};
    memcpy(to, &hello, sizeof hello);
    memcpy(to + sizeof hello, address, size);
    hello_prove(side, proof, to, sizeof hello + size, to + sizeof hello + size);
    return sizeof hello + size + DOOR_PROOF_BYTES;
}

int ucx_hello_read(const unsigned char *bytes, size_t size, enum ucx_side side,
                   const struct ucx_proof *proof, struct ucx_hello *out)
{
    unsigned char right[DOOR_PROOF_BYTES];
    if (size < sizeof *out)
        return -EAGAIN;
    memcpy(out, bytes, sizeof *out);
    if (memcmp(out->magic, UCX_MAGIC, sizeof UCX_MAGIC) != 0 || out->zero != 0 ||
        out->address_size == 0 || out->address_size > UCX_ADDRESS_MAX)
        return -EPROTO;
    size_t proved = sizeof *out + out->address_size;
    if (size < proved + DOOR_PROOF_BYTES)
        return -EAGAIN;
    hello_prove(side, proof, bytes, proved, right);
    return gp_bytes_same(right, bytes + proved, sizeof right) ? 0 : -EPROTO;
}

bool ucx_note_ok(const struct ucx_note *note)
{
    return (note->kind == UCX_NOTE_SENT || note->kind == UCX_NOTE_CAME) && note->zero == 0;
}

/* --- windows ------------------------------------------------------------------ */

int ucx_window_admit(struct ucx_window *w, const void *header, size_t header_size, size_t size)
{
    struct ucx_batch_header h;
    if (header_size != sizeof h)
        return -ESRCH;
    memcpy(&h, header, sizeof h);
    if (h.tag != w->tag)
        return -ESRCH;
    if (size == 0 || size > GP_BATCH_MAX || size % 8 || w->bytes + size > UCX_WINDOW_BYTES)
        return -EPROTO;
    if (h.number - w->consumed >= UCX_WINDOW_BATCHES) /* also what is behind, by wrapping */
        return -EPROTO;
    int place = (int)(h.number % UCX_WINDOW_BATCHES);
    if (w->taken[place])
        return -EPROTO;
    w->taken[place] = true;
    w->bytes += size;
    return place;
}

void ucx_window_consume(struct ucx_window *w, size_t size)
{
    w->taken[w->consumed % UCX_WINDOW_BATCHES] = false;
    w->consumed++;
    w->bytes -= size;
}

bool ucx_debt_allows(const struct ucx_debt *d, size_t size)
{
    return d->bytes - d->credited_bytes + size <= UCX_WINDOW_BYTES &&
           d->batches - d->credited_batches < UCX_WINDOW_BATCHES;
}

int ucx_debt_credit(struct ucx_debt *d, const void *credit, size_t size)
{
    struct ucx_credit c;
    if (size != sizeof c)
        return -ESRCH;
    memcpy(&c, credit, sizeof c);
    if (c.tag != d->tag)
        return -ESRCH;
    /* It only rises, and to no more than was sent. */
    if (c.bytes > d->bytes || c.bytes < d->credited_bytes || c.batches > d->batches ||
        c.batches < d->credited_batches)
        return -EPROTO;
    d->credited_bytes = c.bytes;
    d->credited_batches = c.batches;
    return 0;
}
