#include "stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "private_tables.h"

struct gpc_stats gpc_stats;
static uint64_t counts[GP_OP_COUNT], lacking[GP_OP_COUNT];

/* Threads of the program may still count while it ends. */
static uint64_t load(const uint64_t *count)
{
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

void gpc_count(uint16_t op)
{
    __atomic_fetch_add(&counts[op], 1, __ATOMIC_RELAXED);
}

static void write_calls(FILE *file)
{
    const char *comma = "";
    for (unsigned op = 0; op < GP_OP_COUNT; op++) {
        uint64_t count = load(&counts[op]);
        if (count == 0 || !gp_op_table[op].name)
            continue;
        fprintf(file, "%s\n    \"%s\": {\"count\": %" PRIu64 ", \"mode\": \"%s\"}", comma,
                gp_op_table[op].name, count, gp_op_table[op].mode);
        comma = ",";
    }
}

void gpc_count_lacking(uint16_t op)
{
    __atomic_fetch_add(&lacking[op], 1, __ATOMIC_RELAXED);
}

static void write_lacking(FILE *file)
{
    const char *comma = "";
    for (unsigned op = 0; op < GP_OP_COUNT; op++) {
        uint64_t count = load(&lacking[op]);
        if (count == 0)
            continue;
        fprintf(file, "%s\"%s\": %" PRIu64, comma, gp_op_table[op].name, count);
        comma = ", ";
    }
}

static void write_private(FILE *file)
{
    struct gpc_private_count list[64];
    size_t count = gpc_private_counts(list, 64);
    for (size_t i = 0; i < count && i < 64; i++)
        fprintf(file, "%s\n    {\"table\": \"%s\", \"slot\": %u, \"count\": %" PRIu64 "}",
                i ? "," : "", list[i].table, list[i].slot, list[i].calls);
}

static void write_compile(FILE *file)
{
    struct gpc_private_compile_counts c;
    gpc_private_compile_counted(&c);
    fprintf(file,
            "{\"memory_hits\": %" PRIu64 ", \"file_hits\": %" PRIu64 ", \"misses\": %" PRIu64
            ", \"stored\": %" PRIu64 "}",
            c.memory_hits, c.file_hits, c.misses, c.stored);
}

void gpc_stats_write(const char *transport)
{
    const char *path = getenv("GPUPOOL_STATS");
    if (!path || !*path)
        return;
    FILE *file = fopen(path, "w");
    if (!file) {
        gpc_log(GPC_LOG_ERROR, "cannot write GPUPOOL_STATS=%s: %m", path);
        return;
    }
    fprintf(file,
            "{\n  \"transport\": \"%s\",\n  \"round_trips\": %" PRIu64
            ",\n  \"gpu_waits\": %" PRIu64 ",\n  \"messages_sent\": %" PRIu64
            ",\n  \"bytes_sent\": %" PRIu64 ",\n  \"bytes_received\": %" PRIu64
            ",\n  \"waited_ns\": %" PRIu64 ",\n  \"calls\": {",
            transport, load(&gpc_stats.round_trips), load(&gpc_stats.gpu_waits),
            load(&gpc_stats.messages_sent), load(&gpc_stats.bytes_sent),
            load(&gpc_stats.bytes_received), load(&gpc_stats.waited_ns));
    write_calls(file);
    fputs("\n  },\n  \"not_on_server\": {", file);
    write_lacking(file);
    fputs("},\n  \"unknown_private_slots\": [", file);
    write_private(file);
    fputs("\n  ],\n  \"compile_cache\": ", file);
    write_compile(file);
    fputs("\n}\n", file);
    if (fclose(file) != 0)
        gpc_log(GPC_LOG_ERROR, "cannot write GPUPOOL_STATS=%s: %m", path);
}
