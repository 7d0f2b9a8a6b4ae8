/* One collective as it travels, and what it uses. */
#ifndef GP_NCCL_CALL_H
#define GP_NCCL_CALL_H

#include <stdbool.h>

#include "gp_messages.h"
#include "gp_nccl_calls.h"
#include "nccl_api.h"

typedef CUstream cudaStream_t; /* as the runtime has it */
#define NCCL_VERSION_2_28 22800

/* Of one element, 0 for what is no type. */
static inline uint32_t gp_nccl_type_bytes(int32_t type)
{
    static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < ncclNumTypes ? bytes[type] : 0;
}

/* A product, or the largest number there is. */
static inline uint64_t gp_nccl_times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Bytes of this rank's buffers, UINT64_MAX for more than can be. */
struct gp_nccl_uses {
    uint64_t sends, receives;
    bool has_peer; /* `peer` is a rank */
    bool reduces;
};

/* False: no collective has this number. Of a type that is none, nothing is used. */
bool gp_nccl_call_uses(const struct gp_nccl_call *c, int32_t ranks, int32_t rank,
                       struct gp_nccl_uses *uses);

#endif
