/*
 * Calls of the driver with arguments drawn from bytes (draw.h): the generated ones
 * (gpgen/emit_calls.py) use these. Pointers to the host are to memory of the fuzzer's that is
 * large enough for every count that a call is given.
 */
#ifndef FUZZ_CALLS_H
#define FUZZ_CALLS_H

#include <cuda.h>

#include "draw.h"

#define CALL_SLOTS 16u
#define CALL_SLOT_BYTES 1024u
#define CALL_COUNT_MOST 64u /* elements: they fit into a slot */
#define CALL_HOST_BYTES (1u << 20)

struct calls {
    struct draw draw;
    uint64_t handles[GP_HANDLE_KINDS][DRAW_KEPT];
    unsigned handle_count[GP_HANDLE_KINDS];
    unsigned slot;
    void *slots[CALL_SLOTS]; /* each by itself, so that what is written behind it is seen */
    char *host;
};

struct call_entry {
    uint16_t id;
    const char *name;
    CUresult (*call)(struct calls *c);
};
extern const struct call_entry call_entries[];
extern const unsigned call_entry_count;
extern const struct steps_table call_kinds;

/* Before the first call. */
void calls_open(struct calls *c);
/* One that the driver gave, alive or not, of this kind or another; or a default stream. */
void *call_handle(struct calls *c, enum gp_handle_kind kind);
void *call_handles(struct calls *c, enum gp_handle_kind kind); /* CALL_COUNT_MOST of them */
CUdeviceptr call_address(struct calls *c);
uint64_t call_number(struct calls *c, size_t size);
uint64_t call_count(struct calls *c);
void *call_slot(struct calls *c); /* numbers in it, as a count that is asked for */
void *call_host(struct calls *c);
char *call_text(struct calls *c);
void call_learn(struct calls *c, enum gp_handle_kind kind, uint64_t handle);
void call_learn_address(struct calls *c, uint64_t address);

#endif
