/* GPUPOOL_SERVER and GPUPOOL_TOKEN: the servers of a client, in the order of their
 * devices, and what to show each of them. Both client libraries link it. */
#ifndef GPC_SERVERS_H
#define GPC_SERVERS_H

#include <stddef.h>

#include "snapshot.h"

#define GPC_SERVER_MAX 256 /* an address, with its NUL */

struct gpc_servers {
    unsigned count; /* 1 to GP_SESSIONS_MAX */
    char server[GP_SESSIONS_MAX][GPC_SERVER_MAX];
    const char *token[GP_SESSIONS_MAX];
    char *tokens; /* memory of the tokens */
};

/* Read both lists; one token is for all servers. -1 and `why` (a line) when they are
 * wrong. */
int gpc_servers_read(const char *servers, const char *tokens, struct gpc_servers *out, char *why,
                     size_t why_size);
void gpc_servers_free(struct gpc_servers *list);

#endif
