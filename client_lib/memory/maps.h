/* What is mapped in this process, as /proc/self/maps says it. */
#ifndef GPC_MAPS_H
#define GPC_MAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct gpc_mapping {
    uint64_t begin, end;
    char rights[8]; /* rwx, and p for private */
    uint64_t inode; /* of its file; 0: none */
    char name[16];  /* the beginning of it; "": none */
};

/* NULL: it cannot be read. */
FILE *gpc_maps_open(void);
/* The next one, by address; false: that was the last. */
bool gpc_maps_next(FILE *maps, struct gpc_mapping *m);

/* What is wrong with a mapping, as a clause for an error; NULL: nothing. */
typedef const char *gpc_maps_judge(const struct gpc_mapping *m);

/* Asks `judge` about every mapping of the span from `begin` to `end`, until one is wrong. *why: what
 * is; NULL: all of the span is mapped, and right. False: what is mapped cannot be read. */
bool gpc_maps_check(uint64_t begin, uint64_t end, gpc_maps_judge *judge, const char **why);

#endif
