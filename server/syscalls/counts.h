/*
 * Counts of system calls. A call that one argument makes another call (ioctl, prctl, mmap) is
 * counted for each value of it, its key.
 */
#ifndef GP_COUNTS_H
#define GP_COUNTS_H

#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GP_COUNTS_MAX 4096 /* pairs of call and key; what comes after is counted without key */

struct gp_count {
    uint32_t nr;
    uint32_t has_key;
    uint64_t key;
    uint64_t times; /* 0: the place is free */
    uint64_t told;  /* of these */
};

struct gp_counts {
    struct gp_count at[GP_COUNTS_MAX];
    unsigned used;
};

/* Whether it is new. */
bool gp_counts_add(struct gp_counts *counts, const struct seccomp_data *call);

/* What was not told yet, in lines `CALL KEY COUNT`: the name or, of a call that has none here, its
 * number; the key in hexadecimal, or `-`. The text is the caller's to free; NULL without memory. */
char *gp_counts_tell(struct gp_counts *counts, size_t *length);

/* The name of a call of this machine's architecture, or NULL. */
const char *gp_syscall_name(uint32_t nr);

#endif
