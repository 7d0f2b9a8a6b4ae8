/*
 * Plausible requests from a string of bytes: the fuzzer changes bytes, and what comes out is
 * still a message that a client might send, or nearly. The generated functions (gpgen, one for
 * each operation of the spec) fill a request by these; a byte of 0, and what comes when the
 * bytes have ended, is the choice that most probably works.
 */
#ifndef FUZZ_DRAW_H
#define FUZZ_DRAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gp_messages.h"
#include "gp_ops.h"
#include "snapshot.h"
#include "steps.h"

#define DRAW_KEPT 16
/* No tail that is drawn is longer, in bytes. */
#define DRAW_TAIL_MAX 8192u
/* But this one, of an upload. */
#define DRAW_LONG 65536u
/* A kernel's number that stands for the name of a node which kernels update. */
#define DRAW_NODE 31u

struct draw {
    const uint8_t *at, *end;
    bool careful; /* numbers that would be refused at once are put right */
    /* The handles, named nodes and addresses that may be alive, the youngest last. */
    uint64_t handles[GP_HANDLE_KINDS][DRAW_KEPT];
    unsigned handle_count[GP_HANDLE_KINDS];
    uint32_t next_index[GP_HANDLE_KINDS];
    uint64_t fresh; /* what this message makes; 0: nothing */
    uint64_t addresses[DRAW_KEPT];
    unsigned address_count;
    uint8_t unique_id[GP_NCCL_ID_BYTES]; /* of NCCL, the last that the worker has given */
    uint64_t node;                       /* how kernels name one: the last that it has told */
    uint64_t place;                      /* the last that draw_place gave */
    uint64_t forbidden; /* an address of the worker's own, which it must not touch */
};

struct draw_request {
    uint16_t op;
    const char *name;
    /* Fills the message behind its header; the bytes that it has, without the padding. `h` has
     * room for the fixed part and four tails, and is all zero. */
    uint32_t (*fill)(struct draw *d, struct gp_header *h);
    bool waits; /* it always has a reply */
};
extern const struct draw_request draw_requests[];
extern const unsigned draw_request_count;
extern const struct steps_table draw_kinds;

/* What a worker answers, behind the result. */
struct draw_answer {
    uint16_t op;
    uint32_t fixed; /* bytes of the structure that it begins with */
    /* Fills an answer that is all zero and has room for a whole message; the bytes that it has. */
    uint32_t (*fill)(struct draw *d, const struct gp_header *asked, struct gp_header *h);
};
extern const struct draw_answer draw_answers[];
extern const unsigned draw_answer_count;

void draw_start(struct draw *d, const uint8_t *data, size_t size);
bool draw_over(const struct draw *d);
uint8_t draw_byte(struct draw *d);
uint32_t draw_below(struct draw *d, uint32_t limit);
/* A value of 1 to 8 bytes: small, at an edge, or anything. */
uint64_t draw_number(struct draw *d, size_t size);
uint64_t draw_bytes_count(struct draw *d); /* a length in bytes, mostly a possible one */
uint64_t draw_new(struct draw *d, enum gp_handle_kind kind);
uint64_t draw_handle(struct draw *d, enum gp_handle_kind kind);
uint64_t draw_address(struct draw *d);
void draw_words(struct draw *d, void *to, size_t bytes);
/* Appends a tail at *at, padded; its length in bytes. */
uint32_t draw_tail(struct draw *d, struct gp_header *h, uint32_t *at, uint64_t count, size_t size);
/* For answers: a value, an address that no earlier
 * answer had, as a rule, a tail of at most
 * `room` elements; `exact`: of so many, as a rule. */
void draw_value(struct draw *d, void *to, size_t bytes);
uint64_t draw_place(struct draw *d);
uint32_t draw_room(struct draw *d, struct gp_header *h, uint32_t *at, uint64_t room, size_t size,
                   bool exact);
uint32_t draw_text(struct draw *d, struct gp_header *h, uint32_t *at);
uint32_t draw_append(struct gp_header *h, uint32_t *at, const void *bytes, uint32_t size);

/* What the worker has answered: its handles and addresses can be named from now on. */
void draw_learn_handle(struct draw *d, uint64_t id);
void draw_learn_address(struct draw *d, uint64_t address);

/* The images that clients upload, by number, and the kernels in them; one of no kernel. */
#define DRAW_IMAGES 5u
const char *draw_image(unsigned number, uint32_t *size);
extern const char *const draw_names[];
extern const unsigned draw_name_count;

/* What draw_message takes for operations of collectives (draw_nccl.c), and for what the GPU and
 * kernels do beside the client (draw_told.c), where it is careful. */
extern const struct draw_request draw_nccl[], draw_told[];
extern const unsigned draw_nccl_count, draw_told_count;

/* The next request, whole: header, body and padding, in `h` (GP_MESSAGE_MAX bytes). */
uint32_t draw_message(struct draw *d, struct gp_header *h, uint64_t seq);

#endif
