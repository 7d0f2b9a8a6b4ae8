/* GPUPOOL_SERVER and GPUPOOL_TOKEN, or GPUPOOL_TOKEN_FILE: the servers of a client, in the order of their
 * devices, and what to show each of them. Both client libraries link it. */
#ifndef GPC_SERVERS_H
#define GPC_SERVERS_H

#include <stddef.h>

#include "snapshot.h"

#define GPC_SERVER_MAX 256 /* an address, with its NUL */
#define GPC_SERVERS_WHY 320
#define GPC_TOKENS_MAX (64 << 10) /* bytes of a file with tokens */

struct gpc_servers {
    unsigned count; /* 1 to GP_SESSIONS_MAX */
    char server[GP_SESSIONS_MAX][GPC_SERVER_MAX];
    const char *token[GP_SESSIONS_MAX];
    char *tokens; /* memory of the tokens */
};

/* What the environment names. -1 and `why` (a line) when it names nothing, or nothing
 * that can be used. */
int gpc_servers_of_environment(struct gpc_servers *out, char *why, size_t why_size);

/* Read both lists; one token is for all servers. -1 and `why` (a line) when they are
 * wrong. */
int gpc_servers_read(const char *servers, const char *tokens, struct gpc_servers *out, char *why,
                     size_t why_size);
void gpc_servers_free(struct gpc_servers *list);

#endif
