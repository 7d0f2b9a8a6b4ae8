/*
 * What somebody tries who runs code of his own where a worker should be. Each attack is a
 * function that says whether it had success; what it succeeded in is undone, where anything is
 * left of it. Where to aim is in the file targets.h, which the test writes before it compiles.
 */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <stdbool.h>

struct attack {
    const char *name; /* as in docs/security.md and test_hostile_worker.py */
    bool (*try_it)(void);
};

/* Each list ends with a NULL name. */
extern const struct attack attacks_on_processes[], attacks_on_files[], attacks_on_sockets[],
    attacks_on_the_kernel[], attacks_on_resources[];

#endif
