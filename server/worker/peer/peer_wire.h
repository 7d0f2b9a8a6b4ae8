/*
 * What two joined workers say to each other (proto/wire-format.md, "Peers"): messages
 * with the header of all others, whose `op` is one of the kinds below and whose `seq`
 * is the transfer's tag.
 */
#ifndef GPW_PEER_WIRE_H
#define GPW_PEER_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

#define GPW_PEER_NONCE 16
#define GPW_PEER_PROOF 32
#define GPW_PEER_SECRET 16

enum gpw_peer_kind {
    GPW_PEER_HELLO = 1, /* connecting side: the protocols that it speaks, nonce */
    GPW_PEER_CHALLENGE, /* listening side: the protocol, its nonce, its proof */
    GPW_PEER_PROVE,     /* connecting side: its proof */
    GPW_PEER_WELCOME,   /* listening side: the link is up */
    GPW_PEER_OFFER,     /* sender: the stream has come to it; 0 bytes: the signal itself */
    GPW_PEER_ABORT,     /* sender: nothing (more) will come */
    GPW_PEER_READY,     /* receiver: the stream has come to it, send */
    GPW_PEER_REFUSE,    /* receiver: nothing (more) is wanted */
    GPW_PEER_DATA,      /* sender: a piece */
};

struct gpw_peer_message {
    enum gpw_peer_kind kind;
    uint64_t tag;
    uint64_t bytes;   /* OFFER, READY: of the transfer; DATA: of the piece */
    uint64_t offset;  /* DATA */
    int32_t result;   /* ABORT, REFUSE: a CUresult */
    uint32_t version; /* HELLO: GP_WIRE_VERSION of the sender; CHALLENGE: what both speak */
    uint32_t oldest;  /* HELLO: GP_WIRE_OLDEST of the sender */
    const uint8_t *nonce, *proof;
    const void *data; /* DATA: inside the decoded message */
};

/* 0, or -EPROTO for anything that no worker of this version sends. */
int gpw_peer_decode(const void *message, size_t size, struct gpw_peer_message *out);

/* The fixed part of a message; returns its length. A DATA message goes on with the
 * bytes, padded to a multiple of 8. */
#define GPW_PEER_FIXED_MAX 72
size_t gpw_peer_encode(const struct gpw_peer_message *m, void *out);

/* What a side proves its knowledge of the secret with, of both nonces. */
void gpw_peer_proof(const uint8_t secret[GPW_PEER_SECRET], bool listens,
                    const uint8_t connecting_nonce[GPW_PEER_NONCE],
                    const uint8_t listening_nonce[GPW_PEER_NONCE], uint8_t proof[GPW_PEER_PROOF]);
/* Without telling by its time how much of it is right. */
bool gpw_peer_proof_same(const uint8_t *a, const uint8_t *b);

#endif
