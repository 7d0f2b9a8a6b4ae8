#include "maps.h"

#include <inttypes.h>

FILE *gpc_maps_open(void)
{
    return fopen("/proc/self/maps", "re");
}

/* A line may be longer than this; its rest says nothing that is asked for. */
bool gpc_maps_next(FILE *maps, struct gpc_mapping *m)
{
    char line[512];
    while (fgets(line, sizeof line, maps)) {
        *m = (struct gpc_mapping){.begin = 0};
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %" SCNu64 " %15s", &m->begin, &m->end,
                   m->rights, &m->inode, m->name) >= 4)
            return true;
    }
    return false;
}
