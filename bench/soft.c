/*
 * How fast the soft GPU's PTX engine runs kernels: bench_soft PTX [SECONDS] [NAME…]. One line of
 * JSON: for each kernel of bench/soft_kernels.cu the seconds of a launch, and those of processors
 * (the best of several), the lane-instructions of one, and a digest of what it wrote.
 */
#include "ptx.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ARRAY_BYTES ((size_t)4 << 20)

struct arrays {
    float *a, *b, *c;
};

struct parameters {
    float *a, *b, *c;
    int n;
};

struct kernel {
    const char *name;
    uint32_t grid[3], block[3];
    int n;
};

static const struct kernel kernels[] = {
    {"saxpy", {1024, 1, 1}, {256, 1, 1}, 262144},
    {"product_naive", {6, 12, 1}, {16, 8, 1}, 96},
    {"product_tiled", {8, 8, 1}, {16, 16, 1}, 128},
    {"reduce_shared", {64, 1, 1}, {256, 1, 1}, 524288},
    {"reduce_shuffle", {128, 1, 1}, {256, 1, 1}, 65536},
    {"bodies", {8, 1, 1}, {128, 1, 1}, 1024},
    {"histogram", {32, 1, 1}, {256, 1, 1}, 262144},
    {"mandelbrot", {8, 16, 1}, {16, 8, 1}, 128},
};

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *resolve(void *context, uint64_t address, uint64_t size, uint64_t *begin, uint64_t *end)
{
    const struct arrays *arrays = context;
    const float *each[] = {arrays->a, arrays->b, arrays->c};
    for (int i = 0; i < 3; i++) {
        *begin = (uint64_t)(uintptr_t)each[i];
        *end = *begin + ARRAY_BYTES;
        if (address >= *begin && address < *end && size <= *end - address)
            return (void *)(uintptr_t)address;
    }
    return NULL;
}

static void fill(struct arrays *arrays)
{
    uint32_t state = 1;
    for (size_t i = 0; i < ARRAY_BYTES / sizeof(float); i++) {
        state = state * 1664525u + 1013904223u;
        arrays->a[i] = (float)(state >> 8) / (float)(1 << 24) + 0.5f;
        arrays->b[i] = (float)(state >> 16) / 65536.0f;
    }
}

static uint64_t digest(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    return h;
}

static int launch(const struct sg_module *module, const struct kernel *k, struct arrays *arrays,
                  uint64_t *instructions)
{
    struct parameters p = {arrays->a, arrays->b, arrays->c, k->n};
    struct sg_memory memory = {resolve, arrays};
    struct sg_launch l = {.function = sg_module_function(module, k->name),
                          .parameters = &p,
                          .memory = &memory,
                          .instructions = instructions};
    char fault[512] = "no such kernel";
    memcpy(l.grid, k->grid, sizeof(l.grid));
    memcpy(l.block, k->block, sizeof(l.block));
    if (l.function && sg_launch_run(&l, fault, sizeof(fault)) == CUDA_SUCCESS)
        return 0;
    fprintf(stderr, "%s: %s\n", k->name, fault);
    return -1;
}

static int measure(const struct sg_module *module, const struct kernel *k, struct arrays *arrays,
                   double seconds)
{
    uint64_t instructions = 0;
    memset(arrays->c, 0, ARRAY_BYTES);
    if (launch(module, k, arrays, &instructions) != 0)
        return -1;
    uint64_t written = digest(arrays->c, ARRAY_BYTES);
    double best = INFINITY, least = INFINITY, start = now(CLOCK_MONOTONIC);
    do {
        double before = now(CLOCK_MONOTONIC), spent = now(CLOCK_PROCESS_CPUTIME_ID);
        if (launch(module, k, arrays, NULL) != 0)
            return -1;
        least = fmin(least, now(CLOCK_PROCESS_CPUTIME_ID) - spent);
        best = fmin(best, now(CLOCK_MONOTONIC) - before);
    } while (now(CLOCK_MONOTONIC) - start < seconds);
    printf("\"%s\": {\"seconds\": %.9f, \"processors\": %.9f, \"instructions\": %llu, "
           "\"digest\": \"%016llx\"}",
           k->name, best, least, (unsigned long long)instructions, (unsigned long long)written);
    return 0;
}

static char *read_text(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(ARRAY_BYTES);
    *size = f && text ? fread(text, 1, ARRAY_BYTES, f) : 0;
    if (f)
        fclose(f);
    return text;
}

static bool wanted(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return count == 0;
}

int main(int argc, char **argv)
{
    char log[512] = "";
    size_t size;
    struct sg_module *module;
    struct arrays arrays = {aligned_alloc(4096, ARRAY_BYTES), aligned_alloc(4096, ARRAY_BYTES),
                            aligned_alloc(4096, ARRAY_BYTES)};
    char *text = argc > 1 ? read_text(argv[1], &size) : NULL;
    if (!text || !arrays.a || !arrays.b || !arrays.c) {
        fprintf(stderr, "usage: bench_soft PTX [SECONDS] [NAME…]\n");
        return 2;
    }
    if (sg_module_parse(text, size, &module, log, sizeof(log)) != CUDA_SUCCESS ||
        sg_module_place(module) != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %s\n", argv[1], log);
        return 1;
    }
    fill(&arrays);
    double seconds = argc > 2 ? atof(argv[2]) : 0.2;
    const char *separator = "{";
    int failed = 0;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
        if (!wanted(kernels[i].name, argc > 3 ? argc - 3 : 0, argv + 3))
            continue;
        printf("%s", separator);
        separator = ", ";
        failed |= measure(module, &kernels[i], &arrays, seconds);
    }
    printf("}\n");
    sg_module_free(module);
    free(text);
    free(arrays.a);
    free(arrays.b);
    free(arrays.c);
    return failed ? 1 : 0;
}
