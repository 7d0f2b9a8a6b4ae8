/* PCI addresses as text, and how those of several hosts are told apart. Both client
 * libraries link it, so that they number devices alike. */
#ifndef GPC_PCI_H
#define GPC_PCI_H

#include <stdbool.h>
#include <stddef.h>

struct gpc_pci {
    unsigned domain, bus, device;
};

/* "0000:3b:00.0", with as many digits of the domain as there are. */
bool gpc_pci_read(const char *text, struct gpc_pci *out);
/* Back into the text that it was read from: with at least four digits of the domain. */
void gpc_pci_write(const struct gpc_pci *pci, char *text, size_t room);
/* The domain under which this address is none of `taken`: its own, else the first that
 * is free from `wanted` on. */
unsigned gpc_pci_free_domain(const struct gpc_pci *pci, const struct gpc_pci *taken, unsigned count,
                             unsigned wanted);

#endif
