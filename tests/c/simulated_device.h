/*
 * Simulated processes on a soft device's runlist, by a clock that only the test moves, so that
 * who had the device for how long is exact. They look as often as time passes.
 */
#ifndef SIMULATED_DEVICE_H
#define SIMULATED_DEVICE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runlist.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define PROCESSES 4
#define THREADS 3
#define TICK (100 * US)

struct thread {
    bool inside, waiting;
};

struct process {
    int entry;
    int32_t pid;
    bool dead, stopped;
    uint64_t busy_ns; /* of work, then idle_ns without, and so on; 0: never idle */
    uint64_t idle_ns;
    uint64_t left_ns; /* until the next change between the two */
    bool idle;
    uint64_t work_ns;  /* of all its threads */
    uint64_t worst_ns; /* the longest that it waited */
    uint64_t since;
    unsigned threads;
    struct thread thread[THREADS];
};

struct device {
    uint64_t clock;
    char path[64];
    struct sg_runlist_world world;
    struct sg_runlist *list;
    struct process process[PROCESSES];
    unsigned count;
};

/* Around every test that has a device: *state is one. */
int device_open(void **state);
int device_close(void **state);
#define ON_A_DEVICE(test) cmocka_unit_test_setup_teardown(test, device_open, device_close)

/* A process that always has work, on one thread, with a slice of so many microseconds. */
struct process *start(struct device *d, uint64_t slice_us);
const struct sg_runlist_entry *entry_of(const struct device *d, const struct process *p);
/* Let time pass. Fails when two processes are at work at once. */
void run(struct device *d, uint64_t ms);

#endif
