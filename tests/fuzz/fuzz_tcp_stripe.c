/*
 * The head of a piece, as a peer writes it on a lane: what is let through is the piece that is
 * due, and it and its like are the whole of a message that has its place.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tcp_stripe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void pieces_check(size_t message, unsigned lanes)
{
    size_t at = 0;
    for (unsigned i = 0; i < lanes; i++) {
        struct stripe_piece piece = stripe_piece_of(message, i, lanes);
        if (piece.begin != at || piece.size == 0 || piece.size > message - at)
            abort();
        at += piece.size;
    }
    if (at != message)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stripe_head head;
    if (size < 1 + sizeof head)
        return 0;
    unsigned lanes = 2 + data[0] % (STRIPE_LANES_MAX - 1), lane = data[0] / 8 % lanes;
    memcpy(&head, data + 1, sizeof head);
    /* Fuzzers do not find the word by chance. */
    uint64_t number = ((uint64_t)data[0] << 32) + (data[0] % 2 ? head.number : 7);
    struct stripe_head due = stripe_head_make(lane, head.size, number);
    if (data[0] % 4 == 3)
        head.magic = due.magic;
    size_t message = 0;
    bool right = memcmp(&head, &due, sizeof head) == 0 && head.size >= STRIPE_LEAST &&
                 head.size <= GP_MESSAGE_MAX;
    if ((stripe_head_check(&head, lane, number, &message) == 0) != right)
        abort();
    if (right && message != head.size)
        abort();
    if (right)
        pieces_check(message, lanes);
    return 0;
}
