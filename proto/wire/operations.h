/*
 * Releases may differ in what they know. Each side tells the other its operations, by number
 * and signature; what one of them lacks, or knows in another form, is not sent to it.
 */
#ifndef GP_OPERATIONS_H
#define GP_OPERATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "gp_ops.h"
#include "snapshot.h"
#include "wire.h"

/* Which of our operations the other side has, too; what never travels, everybody has. All zero:
 * every one. */
struct gp_shared {
    bool partial;
    uint64_t has[(GP_OP_COUNT + 63) / 64]; /* counts if partial */
};

/* Take the other side's list. False if it is malformed: ids not rising, or too many. */
bool gp_shared_read(struct gp_shared *s, const uint32_t *theirs, uint32_t count);

static inline bool gp_shared_has(const struct gp_shared *s, uint16_t op)
{
    return !s->partial || (op < GP_OP_COUNT && (s->has[op / 64] >> op % 64 & 1));
}

/* The first of these operations (a list that ends with 0) that the other side lacks, by name;
 * NULL if it has them all. */
const char *gp_shared_lacks(const struct gp_shared *s, const uint16_t *ops);

/* The protocol that two sides speak, the newest that both know; 0 if there is none. */
static inline uint32_t gp_wire_agree(uint32_t newest, uint32_t oldest)
{
    uint32_t both = newest < GP_WIRE_VERSION ? newest : GP_WIRE_VERSION;
    return oldest <= both && both >= GP_WIRE_OLDEST ? both : 0;
}

#endif
