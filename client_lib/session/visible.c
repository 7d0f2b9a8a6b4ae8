#include "visible.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PREFIX 4     /* "GPU-", "MIG-" */
#define UUID_TEXT 37 /* with its NUL */

/* An entry's number; -1: it is none. What is behind the digits is not looked at, nor what of a
 * number is behind its 32 bits, as a long's. */
static int index_of(const char *entry, size_t length)
{
    int64_t number = 0;
    size_t at = 0, digits = 0;
    while (at < length && strchr(" \t", entry[at]))
        at++;
    if (at < length && entry[at] == '+')
        at++;
    for (; at < length && entry[at] >= '0' && entry[at] <= '9'; at++, digits++)
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, entry[at] - '0', &number))
            return -1;
    number &= UINT32_MAX;
    return digits && number < GP_DEVICES_MAX ? (int)number : -1;
}

static void uuid_text(const struct gp_device_info *d, char text[UUID_TEXT])
{
    size_t used = 0;
    for (int i = 0; i < 16; i++)
        used += (size_t)snprintf(text + used, UUID_TEXT - used,
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                                 d->uuid[i]);
}

/* A driver says in the name that a device is a part of one. */
static bool is_mig(const struct gp_device_info *d)
{
    return strstr(d->name, " MIG ") != NULL;
}

/* The one device whose UUID begins so; -1: there is none, or more than one. */
static int uuid_of(const char *entry, size_t length, const struct gp_device_info *const *devices,
                   unsigned count)
{
    int found = -1;
    bool mig = entry[0] == 'M';
    size_t compared = length - PREFIX < UUID_TEXT - 1 ? length - PREFIX : UUID_TEXT - 1;
    for (unsigned i = 0; i < count; i++) {
        char text[UUID_TEXT];
        uuid_text(devices[i], text);
        if (is_mig(devices[i]) != mig || strncasecmp(text, entry + PREFIX, compared) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (int)i;
    }
    return found;
}

/* The kind of a list is that of its first entry. */
static const char *prefix_of(const char *list)
{
    return strncmp(list, "GPU-", PREFIX) == 0   ? "GPU-"
           : strncmp(list, "MIG-", PREFIX) == 0 ? "MIG-"
                                                : NULL;
}

void gpc_visible_read(const char *list, const struct gp_device_info *const *devices, unsigned count,
                      struct gpc_visible *out)
{
    const char *prefix = prefix_of(list);
    /* of instances a process sees one */
    unsigned most = prefix && prefix[0] == 'M' ? 1 : count;
    *out = (struct gpc_visible){.count = 0};
    for (const char *entry = list;; entry++) {
        size_t length = strcspn(entry, ",");
        int found = -1;
        if (!prefix)
            found = index_of(entry, length);
        else if (length >= PREFIX && strncmp(entry, prefix, PREFIX) == 0)
            found = uuid_of(entry, length, devices, count);
        if (found < 0 || (unsigned)found >= count)
            return;
        for (unsigned i = 0; i < out->count; i++)
            if (out->at[i] == found) {
                *out = (struct gpc_visible){.twice = true};
                return;
            }
        if (out->count < most)
            out->at[out->count++] = (uint8_t)found;
        entry += length;
        if (!*entry)
            return;
    }
}

bool gpc_visible_nothing(const char *list)
{
    return !prefix_of(list) && index_of(list, strcspn(list, ",")) < 0;
}
