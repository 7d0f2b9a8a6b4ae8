#include "operations.h"

#include <string.h>

#include "gp_ids.h"

_Static_assert(GP_OPERATIONS <= GP_OPERATIONS_MAX, "every release can read the list");

static uint16_t id_of(uint32_t operation)
{
    return (uint16_t)(operation >> 16);
}

static bool rising(const uint32_t *list, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (id_of(list[i]) <= id_of(list[i - 1]))
            return false;
    return true;
}

bool gp_shared_read(struct gp_shared *s, const uint32_t *theirs, uint32_t count)
{
    memset(s, 0, sizeof *s);
    memset(s->has, 0xff, sizeof s->has);
    if (count > GP_OPERATIONS_MAX || !rising(theirs, count))
        return false;
    uint32_t at = 0;
    for (uint32_t i = 0; i < GP_OPERATIONS; i++) {
        uint16_t id = id_of(gp_operations[i]);
        while (at < count && id_of(theirs[at]) < id)
            at++;
        if (at < count && theirs[at] == gp_operations[i])
            continue;
        s->has[id / 64] &= ~(UINT64_C(1) << id % 64);
        s->partial = true;
    }
    return true;
}

const char *gp_shared_lacks(const struct gp_shared *s, const uint16_t *ops)
{
    for (; *ops; ops++)
        if (!gp_shared_has(s, *ops))
            return gp_op_table[*ops].name;
    return NULL;
}
