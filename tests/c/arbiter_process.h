/* An arbiter in a process of its own, commanded as the server does, and workers that are children
 * of the test. */
#ifndef ARBITER_PROCESS_H
#define ARBITER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "board.h"
#include "seat.h"

#define MIB (UINT64_C(1) << 20)
#define MS UINT64_C(1000000)

struct arbiter_process {
    pid_t pid;
    int listener, fd;  /* where servers come; the connection of this one */
    char text[262144]; /* what came with the last answer */
    int fds[2];        /* likewise; -1: none */
};

/* Around every test that has an arbiter: *state is one, with a GPU of 1 GiB under the policy
 * "weighted", a tenant "a" of weight 1 and "b" of weight 2, each with a limit of 64 MiB. */
int arbiter_begin(void **state);
int arbiter_end(void **state);
/* A process more, at the same socket. */
void arbiter_start(struct arbiter_process *a);
/* A connection more, as of another server. */
int arbiter_reach(const struct arbiter_process *a);
/* How many descriptors the process has open. */
unsigned arbiter_descriptors(const struct arbiter_process *a);
/* The number that the answer begins with. */
int arbiter_say(struct arbiter_process *a, const char *line);
/* As arbiter_say, with the descriptors of a seat. */
int arbiter_say_with(struct arbiter_process *a, const char *line, const int fds[2]);
/* A number of what the arbiter describes: the first after `"key": ` behind `after`. */
long long arbiter_number(struct arbiter_process *a, const char *after, const char *key);
/* What has been described of the process has this text. */
bool arbiter_says(struct arbiter_process *a, const char *text);

struct worker {
    pid_t pid;
    int seat, page_fd, bell_fd;
};

/* A child of tenant `name` that runs `body` with its seat, and what it returns is its exit code. */
struct worker worker_start(struct arbiter_process *a, const char *name,
                           int (*body)(struct gp_seat *seat, int page_fd, int bell_fd));
/* Its exit code, or minus the signal that ended it. */
int worker_end(struct worker *w);
/* Kill it, and wait until it is over. */
void worker_kill(struct worker *w);
void sleep_ms(unsigned ms);
/* Wait until it is true, for at most 60 s; fails the test then. */
#define AWAIT(condition)                                                                           \
    do {                                                                                           \
        int tries = 0;                                                                             \
        while (!(condition) && ++tries < 12000)                                                    \
            sleep_ms(5);                                                                           \
        assert_true(condition);                                                                    \
    } while (0)

#endif
