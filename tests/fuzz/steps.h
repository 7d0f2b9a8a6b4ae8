/*
 * An input as a list of steps, each a length of one byte and that many bytes. The mutator
 * inserts, removes, repeats and changes whole steps, so that one change leaves what the others
 * mean alone. In front of a new one it puts, mostly, steps that make what it names, since by chance
 * hardly anything is ever made for what is named seldom.
 */
#ifndef FUZZ_STEPS_H
#define FUZZ_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STEPS_MOST 64u /* in one input */

/* Take the next step off the front; false: there is none. The last may be cut short. */
bool steps_next(const uint8_t **data, size_t *size, const uint8_t **step, size_t *bytes);

/* Which kinds of handles an operation names, and makes: a bit for each. */
struct steps_kinds {
    uint16_t op;
    uint64_t named, made;
};
struct steps_table {
    const struct steps_kinds *of;
    unsigned count;
};
/* Given by the target: its operations, and where in a step its number is; of so many bytes, with
 * which one begins that has nothing else to say. */
extern const struct steps_form {
    const struct steps_table *kinds;
    unsigned op_at, bytes;
} steps_form;

/* What a new step begins with, given by the target: at most 8 bytes; how many. */
size_t steps_begin(uint32_t chance, uint8_t out[8]);

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two,
                                 size_t two_size, uint8_t *out, size_t most, unsigned seed);

#endif
