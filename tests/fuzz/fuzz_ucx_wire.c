/*
 * What the peer of a ucx channel says, beside its messages: its hello, then batches and credit in
 * any order, of any size. What is let in stays within the window, each number once, and credit
 * only rises. The first byte says which it is.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TAG 0x7469676874746167u

static const struct ucx_proof proof = {.key = "key", .confirmed = "this connection"};

/* With a proof of nobody's it may be cut, or wrong, and never right. */
static void hello_check(const uint8_t *data, size_t size)
{
    struct ucx_hello hello;
    unsigned char *bytes = malloc(size ? size : 1); /* its end is guarded */
    if (!bytes)
        return;
    memcpy(bytes, data, size);
    int rc = ucx_hello_read(bytes, size, UCX_CLIENT, &proof, &hello);
    if (rc != -EAGAIN && rc != -EPROTO)
        abort();
    if (rc == -EAGAIN && size >= UCX_HELLO_MAX)
        abort();
    free(bytes);
}

/* One whose proof is right: it comes out as it went in. */
static void hello_comes_back(const uint8_t *data, size_t size)
{
    static unsigned char bytes[UCX_HELLO_MAX];
    struct ucx_hello hello;
    if (size == 0 || size > UCX_ADDRESS_MAX)
        return;
    size_t whole = ucx_hello_write(bytes, UCX_WORKER, &proof, TAG, data, size);
    if (ucx_hello_read(bytes, whole, UCX_WORKER, &proof, &hello) != 0 || hello.tag != TAG ||
        hello.address_size != size || memcmp(bytes + sizeof hello, data, size) != 0 ||
        ucx_hello_read(bytes, whole - 1, UCX_WORKER, &proof, &hello) != -EAGAIN)
        abort();
}

struct step {
    uint8_t what, wrong_tag;
    uint16_t number; /* beside what is right */
    uint32_t size;
};

struct window_state {
    struct ucx_window window;
    struct ucx_debt debt;
    size_t sizes[UCX_WINDOW_BATCHES];
};

static void batch_step(struct window_state *s, const struct step *step)
{
    struct ucx_batch_header h = {
        .tag = TAG ^ (step->wrong_tag == 1),
        .number = s->window.consumed + (int16_t)step->number,
    };
    struct ucx_window before = s->window;
    int place = ucx_window_admit(&s->window, &h, sizeof h, step->size);
    if (place < 0) {
        if (memcmp(&before, &s->window, sizeof before) != 0)
            abort();
        return;
    }
    if (place >= (int)UCX_WINDOW_BATCHES || before.taken[place] || step->wrong_tag == 1 ||
        s->window.bytes > UCX_WINDOW_BYTES || step->size > GP_BATCH_MAX)
        abort();
    s->sizes[place] = step->size;
}

static void consume_step(struct window_state *s)
{
    size_t place = s->window.consumed % UCX_WINDOW_BATCHES;
    if (s->window.taken[place])
        ucx_window_consume(&s->window, s->sizes[place]);
}

static void credit_step(struct window_state *s, const struct step *step)
{
    const struct ucx_credit c = {
        .tag = TAG ^ (step->wrong_tag == 1), .bytes = step->size, .batches = step->number};
    uint64_t before = s->debt.credited_bytes;
    int rc = ucx_debt_credit(&s->debt, &c, step->wrong_tag == 2 ? sizeof c - 1 : sizeof c);
    if (s->debt.credited_bytes < before || s->debt.credited_bytes > s->debt.bytes ||
        s->debt.credited_batches > s->debt.batches || (rc == 0 && step->wrong_tag == 1))
        abort();
    if (ucx_debt_allows(&s->debt, step->size)) {
        s->debt.bytes += step->size;
        s->debt.batches++;
    }
}

static void window_check(const uint8_t *data, size_t size)
{
    struct window_state s = {.window.tag = TAG, .debt.tag = TAG};
    struct step step;
    for (; size >= sizeof step; data += sizeof step, size -= sizeof step) {
        memcpy(&step, data, sizeof step);
        if (step.what % 3 == 0)
            batch_step(&s, &step);
        else if (step.what % 3 == 1)
            consume_step(&s);
        else
            credit_step(&s, &step);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] % 3 == 0)
        hello_check(data + 1, size - 1);
    else if (data[0] % 3 == 1)
        hello_comes_back(data + 1, size - 1);
    else
        window_check(data + 1, size - 1);
    return 0;
}
