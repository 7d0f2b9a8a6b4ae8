/* What programs that measure driver calls have in common. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <cuda.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* End the program where a call fails, in one line that names the place. */
#define CU(call) measure_check(call, #call, __FILE__, __LINE__)

static inline void measure_check(CUresult result, const char *call, const char *file, int line)
{
    const char *name = NULL, *base = strrchr(file, '/');
    if (result == CUDA_SUCCESS)
        return;
    (void)cuGetErrorName(result, &name);
    fprintf(stderr, "%s:%d: %s: %s\n", base ? base + 1 : file, line, call,
            name ? name : "unknown error");
    exit(1);
}

/* Seconds of the clock that nobody sets. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For qsort(), of doubles. */
static inline int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
