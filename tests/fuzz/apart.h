/*
 * Inputs in processes of their own: a worker is one process that ends with its session and
 * gives nothing back, so a state that many sessions have left is one that no worker has. The
 * target is set up once and forked; what a child covers counts. A child takes several inputs,
 * one behind the other, as a session that lives on does; inputs are made so that they can be
 * joined, and what ends a child by anything but _exit(0) is reported as one input of all that
 * it took.
 *
 * Children are not the fuzzer's but of a process between, which has none of the memory that the
 * fuzzer fills with its corpus: to copy its page tables was most of what an input cost.
 */
#ifndef FUZZ_APART_H
#define FUZZ_APART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most bytes of one input. */
#define APART_MOST 4096u

/* Once, before any other: what is counted in children is seen here. No thread runs yet. A new
 * child runs `begin`, whose return ends it. */
void apart_open(void (*begin)(const uint8_t *, size_t));
/* Have a child take this input. With FUZZ_TOGETHER=1 in the environment it is run here, for a
 * debugger. */
void apart_run(const uint8_t *data, size_t size);

/* In the child: this input is over; wait for the next. False: it has taken enough. */
bool apart_next(const uint8_t **data, size_t *size);

/* Whether this process may end in the middle of an input, well, and then must at once. For signal
 * handlers, on any thread: between two inputs nobody would be told of it. */
bool apart_may_end(void);

#endif
