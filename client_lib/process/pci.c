#include "pci.h"

#include <stdio.h>

bool gpc_pci_read(const char *text, struct gpc_pci *out)
{
    return sscanf(text, "%8x:%2x:%2x", &out->domain, &out->bus, &out->device) == 3;
}

void gpc_pci_write(const struct gpc_pci *pci, char *text, size_t room)
{
    snprintf(text, room, "%04X:%02X:%02X.0", pci->domain, pci->bus & 0xffu, pci->device & 0xffu);
}

static bool is_taken(const struct gpc_pci *pci, unsigned domain, const struct gpc_pci *taken,
                     unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (taken[i].domain == domain && taken[i].bus == pci->bus && taken[i].device == pci->device)
            return true;
    return false;
}

unsigned gpc_pci_free_domain(const struct gpc_pci *pci, const struct gpc_pci *taken, unsigned count,
                             unsigned wanted)
{
    if (!is_taken(pci, pci->domain, taken, count))
        return pci->domain;
    while (is_taken(pci, wanted, taken, count))
        wanted++;
    return wanted;
}
