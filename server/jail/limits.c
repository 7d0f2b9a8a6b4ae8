#include "limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int resource;
} known[] = {
    {"nofile", RLIMIT_NOFILE}, {"nproc", RLIMIT_NPROC},     {"core", RLIMIT_CORE},
    {"fsize", RLIMIT_FSIZE},   {"memlock", RLIMIT_MEMLOCK}, {"as", RLIMIT_AS},
};

static int take_value(const char *text, rlim_t *out)
{
    if (strcmp(text, "infinity") == 0) {
        *out = RLIM_INFINITY;
        return 0;
    }
    char *end;
    if (*text < '0' || *text > '9')
        return -1;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end || value >= RLIM_INFINITY)
        return -1;
    *out = (rlim_t)value;
    return 0;
}

int gpj_limits_take(struct gpj_limits *limits, const char *text)
{
    const char *space = strchr(text, ' ');
    size_t length = space ? (size_t)(space - text) : 0;
    for (size_t i = 0; space && i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i].name) != length || strncmp(text, known[i].name, length) != 0)
            continue;
        for (unsigned j = 0; j < limits->count; j++)
            if (limits->at[j].resource == known[i].resource)
                return -1;
        if (limits->count == GPJ_LIMITS_MAX)
            return -1;
        struct gpj_limit *limit = &limits->at[limits->count];
        if (take_value(space + 1, &limit->value) != 0)
            return -1;
        limit->resource = known[i].resource;
        limits->count++;
        return 0;
    }
    return -1;
}

int gpj_limits_apply(const struct gpj_limits *limits, char *why, size_t size)
{
    for (unsigned i = 0; i < limits->count; i++) {
        const struct gpj_limit *limit = &limits->at[i];
        struct rlimit now;
        int r = getrlimit(limit->resource, &now);
        if (r == 0) {
            struct rlimit wanted = {limit->value, limit->value};
            if (now.rlim_max != RLIM_INFINITY &&
                (limit->value == RLIM_INFINITY || limit->value > now.rlim_max))
                wanted = (struct rlimit){now.rlim_max, now.rlim_max};
            r = setrlimit(limit->resource, &wanted);
        }
        if (r != 0) {
            snprintf(why, size, "limit %d cannot be set: %s", limit->resource, strerror(errno));
            return 1;
        }
    }
    if (!limits->count)
        snprintf(why, size, "the server has set none");
    return limits->count == 0;
}
