#include "budget.h"

#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#include "session.h"

static const struct budget {
    const char *name, *setting, *unit; /* the unit as a log line has it */
    unsigned shift;
} budgets[GPW_BUDGETS] = {
    [GPW_BUDGET_HOST_MEMORY] = {"host_memory", "session-host-memory", "MiB of host memory", 20},
    [GPW_BUDGET_PINNED_MEMORY] = {"pinned_memory", "session-pinned-memory", "MiB of pinned memory",
                                  20},
    [GPW_BUDGET_SHARES] = {"shares", "session-shares", "pieces of shared memory", 0},
    [GPW_BUDGET_DISK] = {"disk", "session-disk", "MiB of disk", 20},
    [GPW_BUDGET_OPEN_FILES] = {"open_files", "session-open-files", "open files", 0},
};

static const struct use {
    const char *name;
    enum gpw_budget of;
} uses[GPW_USES] = {
    [GPW_USE_WAITS] = {"waits", GPW_BUDGET_HOST_MEMORY},
    [GPW_USE_STAGING] = {"staging", GPW_BUDGET_HOST_MEMORY},
    [GPW_USE_HOST] = {"host", GPW_BUDGET_HOST_MEMORY},
    [GPW_USE_IMAGES] = {"images", GPW_BUDGET_HOST_MEMORY},
    [GPW_USE_GRAPHS] = {"graphs", GPW_BUDGET_HOST_MEMORY},
    [GPW_USE_OBJECTS] = {"objects", GPW_BUDGET_HOST_MEMORY},
    [GPW_USE_ACTIVITY] = {"activity", GPW_BUDGET_HOST_MEMORY},
    [GPW_USE_PINNED] = {"pinned", GPW_BUDGET_PINNED_MEMORY},
    [GPW_USE_SHARES] = {"shares", GPW_BUDGET_SHARES},
};

static uint64_t load(const uint64_t *value)
{
    return __atomic_load_n(value, __ATOMIC_RELAXED);
}

int gpw_budget_parse(const char *text, uint64_t limits[GPW_BUDGETS])
{
    const char *equals = strchr(text, '=');
    if (!equals || equals[1] < '0' || equals[1] > '9') /* strtoull takes signs and blanks */
        return -1;
    char *end;
    errno = 0;
    unsigned long long limit = strtoull(equals + 1, &end, 10);
    if (errno || *end)
        return -1;
    size_t length = (size_t)(equals - text);
    for (unsigned i = 0; i < GPW_BUDGETS; i++)
        if (strlen(budgets[i].name) == length && memcmp(budgets[i].name, text, length) == 0) {
            limits[i] = limit;
            return 0;
        }
    return -1;
}

void gpw_budget_open(struct gpw_session *s, enum gpw_budget budget, uint64_t limit)
{
    s->budget.of[budget].limit = limit;
}

static void tell(struct gpw_budget_use *use, enum gpw_use what, uint64_t amount)
{
    const struct budget *b = &budgets[uses[what].of];
    const struct gpw_budget_sum *sum = &use->of[uses[what].of];
    if (use->told[what])
        return;
    use->told[what] = true;
    gpw_log("warn",
            "%llu more %s for %s are refused: the session has %llu of the %llu %s that it may "
            "have (the server's setting '%s')",
            (unsigned long long)amount, b->shift ? "bytes" : "pieces", uses[what].name,
            (unsigned long long)(load(&sum->used) >> b->shift),
            (unsigned long long)(sum->limit >> b->shift), b->unit, b->setting);
}

static bool take(struct gpw_session *s, enum gpw_use use, uint64_t amount)
{
    struct gpw_budget_sum *sum = &s->budget.of[uses[use].of];
    uint64_t have = load(&sum->used);
    do {
        if (sum->limit && (have > sum->limit || amount > sum->limit - have))
            return false;
    } while (!__atomic_compare_exchange_n(&sum->used, &have, have + amount, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    __atomic_fetch_add(&s->budget.by_use[use], amount, __ATOMIC_RELAXED);
    return true;
}

static bool take_spare(struct gpw_session *s, enum gpw_use use, uint64_t amount)
{
    const struct gpw_budget_use *b = &s->budget;
    if (uses[use].of != GPW_BUDGET_HOST_MEMORY)
        return false;
    if (b->spare) {
        b->spare(s);
        if (take(s, use, amount))
            return true;
    }
    return use != GPW_USE_WAITS && b->spare_pinned && b->spare_pinned(s) && take(s, use, amount);
}

bool gpw_budget_take(struct gpw_session *s, enum gpw_use use, uint64_t amount)
{
    if (take(s, use, amount) || take_spare(s, use, amount))
        return true;
    __atomic_fetch_add(&s->budget.of[uses[use].of].refused, 1, __ATOMIC_RELAXED);
    tell(&s->budget, use, amount);
    return false;
}

void gpw_budget_force(struct gpw_session *s, enum gpw_use use, uint64_t amount)
{
    __atomic_fetch_add(&s->budget.by_use[use], amount, __ATOMIC_RELAXED);
    __atomic_fetch_add(&s->budget.of[uses[use].of].used, amount, __ATOMIC_RELAXED);
}

void gpw_budget_give(struct gpw_session *s, enum gpw_use use, uint64_t amount)
{
    __atomic_fetch_sub(&s->budget.by_use[use], amount, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&s->budget.of[uses[use].of].used, amount, __ATOMIC_RELAXED);
}

uint64_t gpw_budget_used(const struct gpw_session *s, enum gpw_budget budget)
{
    return load(&s->budget.of[budget].used);
}

uint64_t gpw_budget_limit(const struct gpw_session *s, enum gpw_budget budget)
{
    return s->budget.of[budget].limit;
}

uint64_t gpw_budget_refused(const struct gpw_session *s, enum gpw_budget budget)
{
    return load(&s->budget.of[budget].refused);
}

/* Text that goes on at `*at`, which counts on where there is no more room. */
static void append(char *out, size_t size, size_t *at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void append(char *out, size_t size, size_t *at, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(*at < size ? out + *at : NULL, *at < size ? size - *at : 0, format, args);
    va_end(args);
    *at += n > 0 ? (size_t)n : 0;
}

int gpw_budget_describe_uses(const struct gpw_session *s, char *out, size_t size)
{
    size_t at = 0;
    for (unsigned use = 0; use < GPW_USES; use++)
        if (uses[use].of == GPW_BUDGET_HOST_MEMORY)
            append(out, size, &at, "%s\"%s\": %llu", at ? ", " : "{", uses[use].name,
                   (unsigned long long)load(&s->budget.by_use[use]));
    append(out, size, &at, "}");
    return (int)at;
}

/* What is written to a file system in memory that the jail has made for us, by a variable's name. */
static uint64_t written(const char *variable)
{
    const char *path = getenv(variable);
    struct statfs found;
    if (!path || statfs(path, &found) != 0 || found.f_type != TMPFS_MAGIC)
        return 0;
    return (uint64_t)(found.f_blocks - found.f_bfree) * (uint64_t)found.f_bsize;
}

static uint64_t open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;
    if (!folder)
        return 0;
    for (struct dirent *each = readdir(folder); each; each = readdir(folder))
        count += each->d_name[0] != '.';
    closedir(folder);
    return count - 1; /* without our own look */
}

static uint64_t used_of(const struct gpw_session *s, enum gpw_budget budget)
{
    if (budget == GPW_BUDGET_DISK)
        return written("CUDA_CACHE_PATH") + written("TMPDIR");
    if (budget == GPW_BUDGET_OPEN_FILES)
        return open_files();
    return load(&s->budget.of[budget].used);
}

int gpw_budget_describe(const struct gpw_session *s, char *out, size_t size)
{
    size_t at = 0;
    for (unsigned i = 0; i < GPW_BUDGETS; i++) {
        const struct gpw_budget_sum *sum = &s->budget.of[i];
        append(out, size, &at, "%s\"%s\": {\"used\": %llu, \"limit\": %llu, \"refused\": %llu}",
               at ? ", " : "{", budgets[i].name, (unsigned long long)used_of(s, i),
               (unsigned long long)sum->limit, (unsigned long long)load(&sum->refused));
    }
    append(out, size, &at, "}");
    return (int)at;
}
