/*
 * What one end of a ucx channel tells the other, and the checks of it. Pure functions over bytes:
 * no socket, nothing of UCX.
 *
 * Over the door's connection (TCP), which stays open beside UCX: who is there, where UCX reaches
 * it, and at the end how much was sent. By UCX, in active messages: batches (batch.h) and credit.
 */
#ifndef GP_UCX_WIRE_H
#define GP_UCX_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/batch.h"
#include "transport/door.h"

/* Under way in one direction, until the receiver has consumed it. */
#define UCX_WINDOW_BYTES ((uint64_t)8 << 20)
#define UCX_WINDOW_BATCHES 256u

#define UCX_MAGIC "gpupool-ucx/1"
/* UCX's own address of a worker: some hundred bytes for each device. */
#define UCX_ADDRESS_MAX ((size_t)32 << 10)

/* First thing each side says once the word is shown: how UCX reaches it, and what its peer's
 * messages have to begin with. Behind it the address, and a proof of both. */
struct ucx_hello {
    char magic[16];
    uint32_t address_size;
    uint32_t zero;
    uint64_t tag;
};
#define UCX_HELLO_MAX (sizeof(struct ucx_hello) + UCX_ADDRESS_MAX + DOOR_PROOF_BYTES)

enum ucx_side { UCX_CLIENT, UCX_WORKER };

/* What proofs are made with: the word's key, and this connection's confirmation of the word. */
struct ucx_proof {
    unsigned char key[DOOR_PROOF_BYTES];
    unsigned char confirmed[DOOR_PROOF_BYTES];
};

/* Write a hello of `side` with its address; its bytes. `to` has room for UCX_HELLO_MAX. */
size_t ucx_hello_write(unsigned char *to, enum ucx_side side, const struct ucx_proof *proof,
                       uint64_t tag, const void *address, size_t size);
/* The hello that `side` said, of which `size` bytes have come: 0 all of it, with its address in
 * `bytes`; -EAGAIN; -EPROTO. */
int ucx_hello_read(const unsigned char *bytes, size_t size, enum ucx_side side,
                   const struct ucx_proof *proof, struct ucx_hello *out);

/* Over the door's connection: no more is sent than so many batches, or so many have come. */
enum ucx_note_kind { UCX_NOTE_SENT = 0x73656e74, UCX_NOTE_CAME = 0x63616d65 };
struct ucx_note {
    uint32_t kind;
    uint32_t zero;
    uint64_t batches;
};
bool ucx_note_ok(const struct ucx_note *note);

/* Active messages. */
enum ucx_message { UCX_AM_BATCH = 1, UCX_AM_CREDIT = 2 };
/* The header of a batch: which one it is. */
struct ucx_batch_header {
    uint64_t tag;
    uint64_t number; /* from 0 */
};
/* All of a credit, in the header: what its sender has consumed since the start. */
struct ucx_credit {
    uint64_t tag;
    uint64_t bytes, batches;
};

/* What a receiver has let in. */
struct ucx_window {
    uint64_t tag;
    uint64_t consumed; /* batches, in order */
    uint64_t bytes;    /* of batches that have come and are not consumed */
    bool taken[UCX_WINDOW_BATCHES];
};
/* Let a batch of `size` bytes in: its place, -ESRCH it is not our peer's, -EPROTO it breaks the
 * rules. */
int ucx_window_admit(struct ucx_window *w, const void *header, size_t header_size, size_t size);
/* The next in order is consumed. */
void ucx_window_consume(struct ucx_window *w, size_t size);

/* What a sender has under way. */
struct ucx_debt {
    uint64_t tag; /* its peer's messages begin with it */
    uint64_t bytes, batches;
    uint64_t credited_bytes, credited_batches;
};
bool ucx_debt_allows(const struct ucx_debt *d, size_t size);
/* 0, -ESRCH, -EPROTO. */
int ucx_debt_credit(struct ucx_debt *d, const void *credit, size_t size);

#endif
