/*
 * What a GPU did when, as gp_activity brings it: records one behind the other, each with its name
 * behind it. Times are those of the worker's CLOCK_MONOTONIC, in nanoseconds.
 */
#ifndef GP_ACTIVITY_RECORD_H
#define GP_ACTIVITY_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cupti.h"

/* Of the records of one message, and of one name with its NUL. */
#define GP_ACTIVITY_BYTES 65536u
#define GP_ACTIVITY_NAME 4096u

/* What a client may ask for with gp_activity_ask. */
enum gp_activity_what {
    GP_ACTIVITY_CLOCK,
    GP_ACTIVITY_START,
    GP_ACTIVITY_STOP,
    GP_ACTIVITY_FLUSH,        /* what is complete, before the answer */
    GP_ACTIVITY_FLUSH_FORCED, /* and what is not */
};

enum gp_activity_kind { GP_ACTIVITY_KERNEL = 1, GP_ACTIVITY_COPY, GP_ACTIVITY_SET };

struct gp_activity_record {
    uint32_t size; /* with the name, a multiple of 8 */
    uint32_t kind; /* gp_activity_kind */
    uint64_t seq;  /* of the message that it comes from; 0: not known */
    uint64_t start, end;
    uint32_t device;          /* the session's ordinal */
    uint32_t context, stream; /* CUPTI's numbers */
    uint32_t graph;           /* CUPTI's number; 0: not from a graph */
    uint64_t graph_node;
    uint64_t bytes;                /* copies and sets */
    uint32_t value;                /* of a set */
    uint8_t copy, from, to, async; /* gp_cupti_copy, gp_cupti_memory; what is set is `to` */
    union {
        struct { /* kernels */
            int32_t grid[3], block[3];
        };
        struct { /* copies between two GPUs: ordinals, and CUPTI's numbers */
            uint32_t from_device, from_context, to_device, to_context, unused[2];
        };
    };
    uint32_t cluster[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, registers;
    int64_t grid_id;
    uint32_t name_bytes; /* with its NUL; 0: there is none */
    uint32_t zero;
};
_Static_assert(sizeof(struct gp_activity_record) == 144, "the form on the wire");

/* It names two devices. */
static inline bool gp_activity_between_gpus(const struct gp_activity_record *r)
{
    return r->kind == GP_ACTIVITY_COPY && r->copy == GP_CUPTI_PTOP;
}

static inline size_t gp_activity_size(uint32_t name_bytes)
{
    return (sizeof(struct gp_activity_record) + name_bytes + 7) / 8 * 8;
}

/* The record at `*at`, which moves behind it, copied to `to`, as the bytes may lie anywhere, and
 * its name ("" if there is none). False: there is none, or none as it has to be; `*at` is `bytes`
 * only in the first case. */
static inline bool gp_activity_next(const void *records, size_t bytes, size_t *at,
                                    struct gp_activity_record *to, const char **name)
{
    if (*at > bytes || bytes - *at < sizeof *to)
        return false;
    memcpy(to, (const char *)records + *at, sizeof *to);
    if (to->name_bytes > GP_ACTIVITY_NAME || to->size != gp_activity_size(to->name_bytes) ||
        to->size > bytes - *at || to->kind < GP_ACTIVITY_KERNEL || to->kind > GP_ACTIVITY_SET)
        return false;
    *name = to->name_bytes ? (const char *)records + *at + sizeof *to : "";
    if (to->name_bytes && (*name)[to->name_bytes - 1] != '\0')
        return false;
    *at += to->size;
    return true;
}

#endif
