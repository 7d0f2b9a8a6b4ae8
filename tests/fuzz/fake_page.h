/*
 * The pages in which the GPU tells a client of events and of the ends of waits, as a fake server has
 * them: mapped a second time, because the client makes its own mapping of events one that is only
 * read.
 */
#ifndef FUZZ_FAKE_PAGE_H
#define FUZZ_FAKE_PAGE_H

#include "transport/transport.h"

/* In place of the transport's; a negative errno: this is no such page. */
int fake_page_share(const void *hint, size_t size, struct gp_share *out);
/* Whether it was one. */
bool fake_page_unshare(struct gp_share *share);
/* A word of it; nothing if there is no such page or place. */
void fake_page_write(uint64_t id, uint64_t place, uint64_t number);

#endif
