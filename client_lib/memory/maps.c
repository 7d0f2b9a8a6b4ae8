#include "maps.h"

#include <inttypes.h>

/* A process whose first thread has ended has none of its own any more; its threads have. */
FILE *gpc_maps_open(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    int first = maps ? fgetc(maps) : EOF;
    if (first != EOF && ungetc(first, maps) == first)
        return maps;
    if (maps)
        fclose(maps);
    return fopen("/proc/thread-self/maps", "re");
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

bool gpc_maps_check(uint64_t begin, uint64_t end, gpc_maps_judge *judge, const char **why)
{
    struct gpc_mapping m;
    FILE *maps = gpc_maps_open();
    if (!maps)
        return false;
    *why = NULL;
    while (!*why && begin < end && gpc_maps_next(maps, &m)) {
        if (m.end <= begin)
            continue;
        *why = m.begin <= begin ? judge(&m) : "part of it is not mapped";
        begin = m.end;
    }
    fclose(maps);
    if (!*why && begin < end)
        *why = "part of it is not mapped";
    return true;
}
