#include "request.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GPUS 64
#define MAX_WEIGHT 25
#define MEBIBYTE (UINT64_C(1) << 20)
#define LARGEST (UINT64_C(1) << 50)
#define VCUDA_UNIT (256 * MEBIBYTE)
#define VCUDA_CARD 100
#define CARD_MOST 65536 /* GiB */
#define SHOWN_MOST 40
#define UUID_LENGTH 36

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

static const char GROUP[] = "GPUPOOL_GROUP";

static const char GPUS[] = "GPUPOOL_GPUS", DEVICES[] = "GPUPOOL_DEVICES",
                  MEMORY[] = "GPUPOOL_MEMORY", SHARE[] = "GPUPOOL_SHARE",
                  CEILING[] = "GPUPOOL_CEILING", WEIGHT[] = "GPUPOOL_WEIGHT",
                  PRIORITY[] = "GPUPOOL_PRIORITY";
/* Any of these is a request of our own, and the old names are not looked at.
 * GPUPOOL_GROUP is none: it says with whom a request is shared. */
static const char *const own_names[] = {GPUS,    DEVICES, MEMORY,   SHARE,
                                        CEILING, WEIGHT,  PRIORITY, NULL};

static const char CGPU_DEV[] = "ALIYUN_COM_GPU_MEM_DEV",
                  CGPU_CONTAINER[] = "ALIYUN_COM_GPU_MEM_CONTAINER",
                  CGPU_DEVICES[] = "ALIYUN_COM_GPU_VISIBLE_DEVICES",
                  CGPU_WEIGHT[] = "ALIYUN_COM_GPU_SCHD_WEIGHT",
                  CGPU_PRIORITY[] = "ALIYUN_COM_GPU_HIGH_PRIO", CGPU_DISABLE[] = "CGPU_DISABLE";
static const char *const cgpu_names[] = {CGPU_DEV,    CGPU_CONTAINER, CGPU_DEVICES,
                                         CGPU_WEIGHT, CGPU_PRIORITY,  NULL};

static const char VCUDA_CORE[] = "TENCENT_VCUDA_CORE", VCUDA_MEMORY[] = "TENCENT_VCUDA_MEMORY";
static const char *const vcuda_names[] = {VCUDA_CORE, VCUDA_MEMORY, NULL};

/* A piece of a variable's value, without the blanks around it. */
struct text {
    const char *at;
    size_t length;
};

struct request {
    char *out, *why;
    size_t used, size, why_size;
};

/* --- texts -------------------------------------------------------------- */

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static struct text trim(struct text t)
{
    while (t.length > 0 && blank(t.at[0])) {
        t.at++;
        t.length--;
    }
    while (t.length > 0 && blank(t.at[t.length - 1]))
        t.length--;
    return t;
}

static struct text value_of(const char *variable)
{
    const char *value = getenv(variable);
    return trim((struct text){value ? value : "", value ? strlen(value) : 0});
}

static bool is_set(const char *variable)
{
    return value_of(variable).length > 0;
}

static const char *first_set(const char *const *variables)
{
    for (; *variables; variables++)
        if (is_set(*variables))
            return *variables;
    return NULL;
}

static bool same(struct text t, const char *word)
{
    return t.length == strlen(word) && memcmp(t.at, word, t.length) == 0;
}

/* How many characters of `t` from `at` on are in `set`. */
static size_t span(struct text t, size_t at, const char *set)
{
    size_t n = 0;
    while (at + n < t.length && t.at[at + n] && strchr(set, t.at[at + n]))
        n++;
    return n;
}

/* Digits from `at` on; the caller has checked that there are few enough. */
static uint64_t digits(struct text t, size_t at, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value = value * 10 + (uint64_t)(t.at[at + i] - '0');
    return value;
}

/* The next part of a comma-separated list; false when `*rest` has been used up. */
static bool next_part(struct text *rest, struct text *part)
{
    if (!rest->at)
        return false;
    const char *comma = memchr(rest->at, ',', rest->length);
    size_t length = comma ? (size_t)(comma - rest->at) : rest->length;
    *part = trim((struct text){rest->at, length});
    *rest = comma ? (struct text){comma + 1, rest->length - length - 1} : (struct text){NULL, 0};
    return true;
}

/* --- answers ------------------------------------------------------------ */

__attribute__((format(printf, 2, 3))) static int refuse(struct request *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->why, r->why_size, format, args);
    va_end(args);
    return -1;
}

/* The variable's value as an error shows it: printable, and not all of it if it is long. */
static int bad(struct request *r, const char *variable, const char *why)
{
    struct text t = value_of(variable);
    char shown[SHOWN_MOST + 1];
    size_t n = 0;
    for (; n < t.length && n < SHOWN_MOST; n++)
        shown[n] = t.at[n] >= 0x20 && t.at[n] < 0x7f ? t.at[n] : '?';
    shown[n] = '\0';
    return refuse(r, "%s: '%s%s' %s", variable, shown, n < t.length ? "..." : "", why);
}

__attribute__((format(printf, 2, 3))) static int put(struct request *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(r->out + r->used, r->size - r->used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= r->size - r->used)
        return refuse(r, "the request in GPUPOOL_* is too long");
    r->used += (size_t)n;
    return 0;
}

/* --- values ------------------------------------------------------------- */

/* One to ten digits, as pool/gpupool/request.py has it. */
static bool plain_number(struct text t, uint64_t *value)
{
    if (t.length < 1 || t.length > 10 || span(t, 0, DIGITS) != t.length)
        return false;
    *value = digits(t, 0, t.length);
    return true;
}

static int read_number(struct request *r, const char *variable, unsigned low, unsigned high,
                       unsigned *value)
{
    char why[80];
    uint64_t found;
    snprintf(why, sizeof why, "is not a whole number %u..%u", low, high);
    if (!plain_number(value_of(variable), &found) || found < low || found > high)
        return bad(r, variable, why);
    *value = (unsigned)found;
    return 0;
}

/* Digits with at most one point among or before them, and the text behind them. */
struct decimal {
    struct text whole, behind, rest;
};

static struct text piece(struct text t, size_t at, size_t length)
{
    return (struct text){t.at + at, length};
}

/* Of so many digits at most that no value made of them can overflow. */
static bool read_decimal(struct text t, size_t whole_most, size_t behind_most, struct decimal *d)
{
    size_t whole = span(t, 0, DIGITS), n = whole;
    *d = (struct decimal){.whole = piece(t, 0, whole), .behind = piece(t, whole, 0)};
    if (n < t.length && t.at[n] == '.') {
        d->behind = piece(t, n + 1, span(t, n + 1, DIGITS));
        if (d->behind.length < 1)
            return false;
        n += 1 + d->behind.length;
    }
    if (n < t.length && t.at[n] == ' ')
        n++;
    d->rest = piece(t, n, t.length - n);
    return n > 0 && whole <= whole_most && d->behind.length <= behind_most &&
           whole + d->behind.length > 0;
}

/* The power of two that a size's unit stands for, -1 if it is none: people write GiB, Gi, GB,
 * G and g, and mean the one that GPUs are sold by. */
static int unit_shift(struct text unit)
{
    static const char letters[] = "kmgt";
    char low[4] = "";
    if (unit.length > 3)
        return -1;
    for (size_t i = 0; i < unit.length; i++)
        low[i] = unit.at[i] >= 'A' && unit.at[i] <= 'Z' ? (char)(unit.at[i] + 32) : unit.at[i];
    if (strcmp(low, "") == 0 || strcmp(low, "b") == 0)
        return 0;
    const char *letter = strchr(letters, low[0]);
    if (!letter || (low[1] && strcmp(low + 1, "i") != 0 && strcmp(low + 1, "b") != 0 &&
                    strcmp(low + 1, "ib") != 0))
        return -1;
    return 10 * (int)(letter - letters + 1);
}

static uint64_t power_of_ten(size_t n)
{
    uint64_t value = 1;
    while (n-- > 0)
        value *= 10;
    return value;
}

/* 0 if it is more than a size may be, or has a part of a byte. */
static uint64_t size_of(const struct decimal *d, int shift)
{
    uint64_t whole = digits(d->whole, 0, d->whole.length);
    if (whole > LARGEST >> shift || (d->behind.length > 0 && shift == 0))
        return 0;
    uint64_t behind = digits(d->behind, 0, d->behind.length) << shift; /* six digits: < 2^60 */
    uint64_t size = (whole << shift) + behind / power_of_ten(d->behind.length);
    return size <= LARGEST ? size : 0;
}

static int read_size(struct request *r, const char *variable, uint64_t *size)
{
    struct decimal d;
    if (read_decimal(value_of(variable), 19, 6, &d)) {
        int shift = unit_shift(d.rest);
        *size = shift >= 0 ? size_of(&d, shift) : 0;
        if (*size >= MEBIBYTE)
            return 0;
    }
    return bad(r, variable, "is no size; write e.g. 8GiB, 512MiB or bytes (at least 1MiB)");
}

/* Thousandths: of a percentage, of a GPU where there is a point, and of whole percent above 1. */
static uint64_t part_of(const struct decimal *d, bool percent)
{
    uint64_t whole = digits(d->whole, 0, d->whole.length);
    uint64_t behind = digits(d->behind, 0, d->behind.length);
    if (percent && d->behind.length > 1)
        return 0;
    if (percent || (d->behind.length == 0 && whole > 1))
        return whole * 10 + behind;
    return whole * 1000 + behind * power_of_ten(3 - d->behind.length);
}

static int read_permille(struct request *r, const char *variable, unsigned *permille)
{
    struct decimal d;
    uint64_t value = 0;
    if (read_decimal(value_of(variable), 7, 3, &d) && (d.rest.length == 0 || same(d.rest, "%")))
        value = part_of(&d, d.rest.length > 0);
    if (value < 1 || value > 1000)
        return bad(r, variable, "is no part of a GPU; write e.g. 50% or 0.5 (0.1%..100%)");
    *permille = (unsigned)value;
    return 0;
}

/* 8-4-4-4-12 hexadecimal digits, with or without GPU- before them. */
static bool is_uuid(struct text t)
{
    if (t.length == UUID_LENGTH + 4 && memcmp(t.at, "GPU-", 4) == 0)
        t = (struct text){t.at + 4, UUID_LENGTH};
    if (t.length != UUID_LENGTH)
        return false;
    for (size_t i = 0; i < UUID_LENGTH; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? t.at[i] != '-' : span(t, i, DIGITS "abcdefABCDEF") == 0)
            return false;
    }
    return true;
}

static int put_devices(struct request *r, const char *variable)
{
    struct text rest = value_of(variable), part;
    int count = 0;
    if (put(r, "devices: ") != 0)
        return -1;
    while (next_part(&rest, &part)) {
        uint64_t index;
        if (!(plain_number(part, &index) && index < MAX_GPUS) && !is_uuid(part))
            return bad(r, variable, "is no list of GPU indexes (0..63) or UUIDs");
        if (count++ < MAX_GPUS &&
            put(r, "%s%.*s", count > 1 ? "," : "", (int)part.length, part.at) != 0)
            return -1;
    }
    if (count > MAX_GPUS)
        return bad(r, variable, "names more than 64 GPUs");
    return put(r, "\n");
}

static int put_number(struct request *r, const char *key, const char *variable, unsigned low,
                      unsigned high)
{
    unsigned value = 0;
    if (!is_set(variable))
        return 0;
    return read_number(r, variable, low, high, &value) == 0 ? put(r, "%s: %u\n", key, value) : -1;
}

/* --- gpupool's own names ------------------------------------------------ */

static int put_group(struct request *r)
{
    struct text t = value_of(GROUP);
    if (t.length == 0)
        return 0;
    if (t.length > 32 || span(t, 0, LETTERS DIGITS "._-") != t.length)
        return bad(r, GROUP, "is no name of 1..32 of A-Z a-z 0-9 . _ -");
    return put(r, "group: %.*s\n", (int)t.length, t.at);
}

static int put_memory(struct request *r)
{
    uint64_t size = 0;
    if (!is_set(MEMORY))
        return 0;
    return read_size(r, MEMORY, &size) == 0 ? put(r, "memory: %llu\n", (unsigned long long)size)
                                            : -1;
}

static int put_share_and_ceiling(struct request *r)
{
    unsigned share = 0, ceiling = 0;
    if (is_set(SHARE) &&
        (read_permille(r, SHARE, &share) != 0 || put(r, "share: %u\n", share) != 0))
        return -1;
    if (!is_set(CEILING))
        return 0;
    if (read_permille(r, CEILING, &ceiling) != 0)
        return -1;
    if (ceiling < share)
        return bad(r, CEILING, "is less than GPUPOOL_SHARE");
    return put(r, "ceiling: %u\n", ceiling);
}

static int put_priority(struct request *r)
{
    struct text t = value_of(PRIORITY);
    if (t.length == 0)
        return 0;
    if (!same(t, "high") && !same(t, "normal"))
        return bad(r, PRIORITY, "is neither high nor normal");
    return put(r, "priority: %d\n", same(t, "high"));
}

static int own_fields(struct request *r)
{
    if (put_number(r, "gpus", GPUS, 1, MAX_GPUS) != 0 ||
        (is_set(DEVICES) && put_devices(r, DEVICES) != 0) || put_memory(r) != 0 ||
        put_share_and_ceiling(r) != 0 || put_number(r, "weight", WEIGHT, 0, MAX_WEIGHT) != 0)
        return -1;
    return put_priority(r);
}

/* --- cGPU's ------------------------------------------------------------- */

static int read_disabled(struct request *r, bool *disabled)
{
    struct text t = value_of(CGPU_DISABLE);
    *disabled = same(t, "true") || same(t, "1");
    if (t.length > 0 && !*disabled && !same(t, "false") && !same(t, "0"))
        return bad(r, CGPU_DISABLE, "is none of true, 1, false, 0");
    return 0;
}

/* The list of GiB: how many values, the largest, and whether one is 0. */
struct gibibytes {
    int count;
    uint64_t largest;
    bool zero;
};

static int read_container(struct request *r, unsigned card, struct gibibytes *found)
{
    struct text rest = value_of(CGPU_CONTAINER), part;
    *found = (struct gibibytes){0, 0, false};
    if (rest.length == 0)
        return 0;
    bool good = true;
    while (next_part(&rest, &part)) {
        uint64_t value = 0;
        good = good && plain_number(part, &value) && value <= CARD_MOST;
        found->count++;
        found->zero = found->zero || value == 0;
        found->largest = value > found->largest ? value : found->largest;
    }
    if (found->count > MAX_GPUS)
        return bad(r, CGPU_CONTAINER, "names more than 64 GPUs");
    if (!good)
        return bad(r, CGPU_CONTAINER, "is no list of whole GiB such as 6 or 3,1");
    char why[80];
    snprintf(why, sizeof why, "is more than the %u GiB of %s", card, CGPU_DEV);
    return card > 0 && found->largest > card ? bad(r, CGPU_CONTAINER, why) : 0;
}

/* CONTAINER/DEV of each card; the server multiplies by what a card has. */
static int put_cgpu_memory(struct request *r, bool disabled)
{
    unsigned card = 0;
    struct gibibytes list;
    if (is_set(CGPU_DEV) && read_number(r, CGPU_DEV, 1, CARD_MOST, &card) != 0)
        return -1;
    if (read_container(r, card, &list) != 0)
        return -1;
    if (disabled || list.count == 0 || list.zero)
        return put(r, "memory-fraction: 1/1\n");
    if (card == 0)
        return refuse(r, "%s needs %s beside it", CGPU_CONTAINER, CGPU_DEV);
    struct text rest = value_of(CGPU_CONTAINER), part;
    const char *before = "memory-fraction: ";
    for (; next_part(&rest, &part); before = ",")
        if (put(r, "%s%u/%u", before, (unsigned)digits(part, 0, part.length), card) != 0)
            return -1;
    return put(r, "\n");
}

static int cgpu_fields(struct request *r, bool disabled)
{
    unsigned weight = 0;
    if ((is_set(CGPU_DEVICES) && put_devices(r, CGPU_DEVICES) != 0) ||
        put_cgpu_memory(r, disabled) != 0)
        return -1;
    if (is_set(CGPU_WEIGHT) && (read_number(r, CGPU_WEIGHT, 1, MAX_WEIGHT, &weight) != 0 ||
                                put(r, "weight: %u\n", weight) != 0))
        return -1;
    if (weight > 1 && put(r, "policy: weighted\n") != 0)
        return -1;
    return put_number(r, "priority", CGPU_PRIORITY, 0, 1);
}

/* --- vCUDA's ------------------------------------------------------------ */

static int vcuda_fields(struct request *r)
{
    unsigned core = 0, memory = 0;
    if (!is_set(VCUDA_CORE))
        return refuse(r, "%s needs %s beside it", VCUDA_MEMORY, VCUDA_CORE);
    if (!is_set(VCUDA_MEMORY))
        return refuse(r, "%s needs %s beside it", VCUDA_CORE, VCUDA_MEMORY);
    if (read_number(r, VCUDA_CORE, 1, VCUDA_CARD * MAX_GPUS, &core) != 0)
        return -1;
    if (core > VCUDA_CARD && core % VCUDA_CARD != 0)
        return bad(r, VCUDA_CORE, "is neither 1..99 nor a multiple of 100 (whole GPUs)");
    if (read_number(r, VCUDA_MEMORY, 1, (unsigned)(LARGEST / VCUDA_UNIT), &memory) != 0)
        return -1;
    if (core >= VCUDA_CARD)
        return put(r, "gpus: %u\nmemory-fraction: 1/1\nshare: 1000\n", core / VCUDA_CARD);
    /* never more than was asked: what it borrows up to is what it has */
    return put(r, "memory: %llu\nshare: %u\nceiling: %u\n",
               (unsigned long long)memory * VCUDA_UNIT, core * 10, core * 10);
}

int gpc_request_fields(char *out, size_t size, char *why, size_t why_size)
{
    struct request r = {.out = out, .why = why, .size = size, .why_size = why_size};
    int result = put_group(&r);
    if (result == 0 && first_set(own_names)) {
        result = own_fields(&r);
    } else if (result == 0) {
        bool disabled;
        const char *vcuda = first_set(vcuda_names);
        result = read_disabled(&r, &disabled);
        const char *cgpu = disabled ? CGPU_DISABLE : first_set(cgpu_names);
        if (result == 0 && cgpu && vcuda)
            result = refuse(&r, "%s and %s both ask for GPUs; unset one of them", cgpu, vcuda);
        else if (result == 0 && cgpu)
            result = cgpu_fields(&r, disabled);
        else if (result == 0 && vcuda)
            result = vcuda_fields(&r);
    }
    return result == 0 ? (int)r.used : -1;
}
