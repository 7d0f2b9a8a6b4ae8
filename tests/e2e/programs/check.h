/*
 * What every program here shares: checks that name the line, and one last line.
 *
 * A program ends through `finish`: `PASS name` and status 0, or the failures
 * (one FAIL line each, at most ten) and status 1. Nothing here touches a GPU.
 */
#ifndef E2E_CHECK_H
#define E2E_CHECK_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures;

static inline void check_failed(const char *file, int line, const char *format, ...)
{
    va_list args;
    const char *slash = strrchr(file, '/');

    if (__sync_add_and_fetch(&check_failures, 1) > 10)
        return;
    fflush(stdout);
    va_start(args, format);
    printf("FAIL %s:%d: ", slash ? slash + 1 : file, line);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
}

/* Note a failure and go on. */
#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            check_failed(__FILE__, __LINE__, __VA_ARGS__);                                         \
    } while (0)

/* Note a failure and end: what follows could only fail too. */
#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            check_failed(__FILE__, __LINE__, __VA_ARGS__);                                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A line for who speaks with the program: it is there at once. */
#define SAY(...)                                                                                   \
    do {                                                                                           \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        fflush(stdout);                                                                            \
    } while (0)

static inline int finish(const char *name)
{
    if (check_failures) {
        printf("FAIL %s: %d checks failed\n", name, check_failures);
        return 1;
    }
    printf("PASS %s\n", name);
    return 0;
}

/* The same numbers everywhere: a small generator of our own, seeded by the program. */
static inline unsigned check_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static inline void *check_alloc(size_t size)
{
    void *p = malloc(size);
    REQUIRE(p != NULL, "this machine has no %zu bytes", size);
    return p;
}

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t cuda_result = (call);                                                          \
        REQUIRE(cuda_result == cudaSuccess, "%s: %s (%s)", #call, cudaGetErrorName(cuda_result),   \
                cudaGetErrorString(cuda_result));                                                  \
    } while (0)
#define CUDA_GIVES(expected, call)                                                                 \
    do {                                                                                           \
        cudaError_t cuda_result = (call);                                                          \
        EXPECT(cuda_result == (expected), "%s gave %s, expected %s", #call,                        \
               cudaGetErrorName(cuda_result), #expected);                                          \
    } while (0)
#endif

#endif
