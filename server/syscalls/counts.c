#include "counts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

/* Which argument tells calls of one number apart, and which of its bits. */
static const struct {
    uint32_t nr;
    uint32_t argument;
    uint64_t bits;
} keys[] = {
    {SYS_ioctl, 1, UINT32_MAX},        {SYS_fcntl, 1, UINT32_MAX},
    {SYS_prctl, 0, UINT32_MAX},        {SYS_socket, 0, UINT32_MAX},
    {SYS_socketpair, 0, UINT32_MAX},   {SYS_mmap, 2, UINT32_MAX},
    {SYS_mprotect, 2, UINT32_MAX},     {SYS_madvise, 2, UINT32_MAX},
    {SYS_memfd_create, 1, UINT32_MAX}, {SYS_prlimit64, 1, UINT32_MAX},
    {SYS_unshare, 0, UINT32_MAX},      {SYS_setns, 1, UINT32_MAX},
    {SYS_clone, 0, UINT32_MAX},        {SYS_seccomp, 0, UINT32_MAX},
#ifdef SYS_arch_prctl
    {SYS_arch_prctl, 0, UINT32_MAX},
#endif
};

static struct gp_count call_key(const struct seccomp_data *call)
{
    struct gp_count found = {.nr = (uint32_t)call->nr};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].nr == found.nr) {
            found.has_key = 1;
            found.key = call->args[keys[i].argument] & keys[i].bits;
        }
    return found;
}

static struct gp_count *find(struct gp_counts *counts, const struct gp_count *what)
{
    uint64_t hash = (what->nr * UINT64_C(0x9e3779b97f4a7c15)) ^ (what->key * UINT64_C(0xff51afd7));
    for (size_t i = 0; i < GP_COUNTS_MAX; i++) {
        struct gp_count *at = &counts->at[(hash + i) % GP_COUNTS_MAX];
        if (!at->times ||
            (at->nr == what->nr && at->key == what->key && at->has_key == what->has_key))
            return at;
    }
    return NULL;
}

bool gp_counts_add(struct gp_counts *counts, const struct seccomp_data *call)
{
    struct gp_count what = call_key(call);
    /* keys are the program's to choose: the last quarter is for calls without */
    if (what.has_key && counts->used >= GP_COUNTS_MAX / 4 * 3 && !find(counts, &what)->times)
        what.has_key = 0, what.key = 0;
    struct gp_count *at = find(counts, &what);
    if (!at)
        return false;
    if (!at->times) {
        *at = what;
        counts->used++;
    }
    return ++at->times == 1;
}

static int by_call(const void *a, const void *b)
{
    const struct gp_count *one = a, *other = b;
    if (one->nr != other->nr)
        return one->nr < other->nr ? -1 : 1;
    return one->key < other->key ? -1 : one->key > other->key;
}

static void put(FILE *out, const struct gp_count *count)
{
    const char *name = gp_syscall_name(count->nr);
    if (name)
        fprintf(out, "%s", name);
    else
        fprintf(out, "%" PRIu32, count->nr);
    if (count->has_key)
        fprintf(out, " 0x%" PRIx64, count->key);
    else
        fprintf(out, " -");
    fprintf(out, " %" PRIu64 "\n", count->times - count->told);
}

char *gp_counts_tell(struct gp_counts *counts, size_t *length)
{
    struct gp_counts *sorted = malloc(sizeof *sorted);
    if (!sorted)
        return NULL;
    *sorted = *counts;
    qsort(sorted->at, GP_COUNTS_MAX, sizeof sorted->at[0], by_call);
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    for (size_t i = 0; out && i < GP_COUNTS_MAX; i++)
        if (sorted->at[i].times > sorted->at[i].told)
            put(out, &sorted->at[i]);
    free(sorted);
    if (!out)
        return NULL;
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    for (size_t i = 0; i < GP_COUNTS_MAX; i++)
        counts->at[i].told = counts->at[i].times;
    return text;
}
