/* Memory of cuMemHostRegister that kernels reach: which of it can be, and how it is the program's
 * own again. Between the two it is mapped memory (mapped.c). */
#include <string.h>
#include <unistd.h>

#include "gpc_wire.h"
#include "managed_internal.h"
#include "maps.h"

/* Why pages of this mapping cannot be another file's; NULL: they can. */
static const char *why_not_these(const struct gpc_mapping *m)
{
    if (m->rights[0] != 'r' || m->rights[1] != 'w')
        return "it cannot be read and written here";
    if (m->rights[3] != 'p' || m->inode != 0)
        return "it is a file's, or other processes have it too: only private memory can be moved";
    if (strncmp(m->name, "[stack", strlen("[stack")) == 0)
        return "it is a stack";
    return NULL;
}

/* A page of which the program has registered a part holds what others use, perhaps while they have
 * a lock that a fault needs. */
const char *gpc_registered_why_not(const struct gpc_range *range)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = range->begin + range->size;
    const char *why;
    if (range->kind != GPC_RANGE_HOST || !range->registered)
        return NULL;
    if (range->begin % page != 0 || range->size % page != 0)
        return "its pages hold other memory as well: register whole pages";
    return gpc_maps_check(range->begin, end, why_not_these, &why)
               ? why
               : "what is mapped here cannot be read";
}

/* With what the GPU has written that nobody here has looked at yet. */
void gpc_registered_give_back(uint64_t begin)
{
    gpc_managed_lock();
    struct gpc_managed *m = gpc_managed_find(begin);
    if (m && m->kind == GPC_MANAGED_REGISTERED) {
        gpc_managed_open_whole(m);
        gpc_managed_remove(m);
    }
    gpc_managed_unlock();
}
