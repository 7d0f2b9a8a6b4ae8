/*
 * An input as a list of steps, each a length of one byte and that many bytes. The mutator
 * inserts, removes, repeats and changes whole steps, so that one change leaves what the others
 * mean alone.
 */
#ifndef FUZZ_STEPS_H
#define FUZZ_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STEPS_MOST 64u /* in one input */

/* Take the next step off the front; false: there is none. The last may be cut short. */
bool steps_next(const uint8_t **data, size_t *size, const uint8_t **step, size_t *bytes);

/* What a new step begins with, given by the target: at most 8 bytes; how many. */
size_t steps_begin(uint32_t chance, uint8_t out[8]);

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two,
                                 size_t two_size, uint8_t *out, size_t most, unsigned seed);

#endif
