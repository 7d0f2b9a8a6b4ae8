/*
 * What a message costs the worker beside the driver: its loop, gate, dispatch and handlers over a
 * driver that does nothing (tests/c/null_driver.h). A line for each kind, alone on a GPU that
 * keeps up and on one that is behind: nanoseconds, the best and the median of rounds, and how
 * often the driver is asked for anything but what the message is for.
 *
 *   bench_messages [ROUNDS]
 *
 * Another build's takes turns with it best: the least of many short rounds is hardly disturbed by
 * what else the machine does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "null_driver.h"

enum { MESSAGES = 2000, MOST_ROUNDS = 10000 };

static double took[MOST_ROUNDS];

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Without the call that each message is for. */
static double calls_beside(const struct null_counts *c)
{
    double all = 0;
    for (unsigned i = 0; i < NULL_CALLS_COUNT; i++)
        all += (double)c->calls[i];
    return all / MESSAGES - 1;
}

/* Without `own`, which the message is for. */
static void print_calls(const struct null_counts *c, unsigned own)
{
    for (unsigned i = 0; i < NULL_CALLS_COUNT; i++) {
        double more = (double)c->calls[i] / MESSAGES - (i == own);
        if (more >= 0.005)
            printf(" %s %.2f", null_call_names[i], more);
    }
    printf("\n");
}

static void measure(enum null_kind kind, bool behind, unsigned rounds)
{
    struct null_counts c;
    null_session_behind(behind);
    null_session_run(kind, MESSAGES, NULL);
    for (unsigned i = 0; i < rounds; i++) {
        double begin = now_ns();
        c = null_session_run(kind, MESSAGES, NULL);
        took[i] = (now_ns() - begin) / MESSAGES;
    }
    qsort(took, rounds, sizeof *took, by_value);
    printf("%-28s %-9s %7.1f %7.1f %6.2f  ", null_kind_names[kind], behind ? "behind" : "keeps up",
           took[0], took[rounds / 2], calls_beside(&c));
    print_calls(&c, null_kind_call[kind]);
}

/* All that the driver is asked is beside: there is no call of its that allocates. */
static void print_churn(const char *name, uint64_t bytes)
{
    null_session_churn(bytes, MESSAGES);
    struct null_counts c = null_session_churn(bytes, MESSAGES);
    printf("%-56s %6.2f  ", name, calls_beside(&c) + 1);
    print_calls(&c, NULL_CALLS_COUNT);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 200;
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: bench_messages [ROUNDS (1..%d)]\n", MOST_ROUNDS);
        return 2;
    }
    null_session_open(true);
    printf("%-28s %-9s %7s %7s %6s   %s\n", "message", "the GPU", "best ns", "median", "calls",
           "of the driver beside its own");
    for (unsigned kind = 0; kind < NULL_KINDS; kind++)
        for (int behind = 0; behind < 2; behind++)
            measure((enum null_kind)kind, behind, (unsigned)rounds);
    null_session_behind(false);
    print_churn("allocate and free 64 KiB", 64u << 10);
    print_churn("allocate and free 1 MiB", 1u << 20);
    print_churn("allocate and free 64 MiB", 64u << 20);
    return 0;
}
