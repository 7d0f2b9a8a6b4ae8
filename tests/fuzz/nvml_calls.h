/*
 * Calls of NVML with arguments drawn from bytes (draw.h): the generated ones
 * (gpgen/emit_nvml_calls.py) use these. Pointers are to memory of exactly the size that a call is
 * told of; what is made for one call goes with the next.
 */
#ifndef FUZZ_NVML_CALLS_H
#define FUZZ_NVML_CALLS_H

#include <nvml.h>

#include "draw.h"

#define NVML_CALL_LENGTH_MOST 200u

struct nvml_call {
    const char *name;
    nvmlReturn_t (*call)(struct draw *d);
};
extern const struct nvml_call nvml_calls[];
extern const unsigned nvml_call_count;

/* One that the library gave, mostly, or what is none. */
nvmlDevice_t nvml_call_device(struct draw *d);
nvmlEventSet_t nvml_call_set(struct draw *d);
/* A version where a structure has one, and drawn bytes; now and then NULL. */
void *nvml_call_room(struct draw *d, size_t bytes);
unsigned nvml_call_length(struct draw *d);
/* A UUID, a PCI address, or what is neither. */
const char *nvml_call_name(struct draw *d);
/* What was answered as text ends within its length. */
void nvml_call_text(nvmlReturn_t r, const char *text, unsigned length);
/* The call is over. */
void nvml_call_end(void);

#endif
