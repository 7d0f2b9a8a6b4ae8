/* What the files private_*.c share among themselves. */
#ifndef GPC_PRIVATE_INTERNAL_H
#define GPC_PRIVATE_INTERNAL_H

#include "private_tables.h"

/* Tables with a header, in the order of docs/private-tables.md. */
enum private_id {
    PRIVATE_RUNTIME,
    PRIVATE_HOOKS,
    PRIVATE_CURRENT,
    PRIVATE_DIGEST,
    PRIVATE_CHECKS,
    PRIVATE_IDENTITIES,
    PRIVATE_TOPOLOGY,
    PRIVATE_MODULES,
    PRIVATE_COMPILE,
    PRIVATE_TABLES
};
#define PRIVATE_SLOTS_MAX 100

/* The host, once any table has been handed out. */
const struct gpc_private_host *gpc_private_kept_host(void);
/* The table's address: its slot 0. */
const void *gpc_private_address(enum private_id id);

/* The stub of an unknown slot, 0 < slot < the table's size. */
void *gpc_private_stub(enum private_id id, unsigned slot);
/* The table's name in counts: the first eight digits of its UUID. */
const char *gpc_private_name(enum private_id id);

/* Context storage (private_storage.c): a table without a header. */
typedef void (*gpc_storage_destructor)(CUcontext ctx, void *key, void *value);
CUresult gpc_storage_put(CUcontext ctx, void *key, void *value, gpc_storage_destructor destructor);
CUresult gpc_storage_delete(CUcontext ctx, void *key);
CUresult gpc_storage_get(void **value, CUcontext ctx, void *key);

/* The digest (private_digest.c), apart from where its parts come from. */
struct gpc_digest_input {
    uint32_t driver_version;
    uint32_t version; /* as the runtime gives it: CUDART_VERSION + 0, 1 or 2 */
    uint32_t pid;
    uint32_t thread; /* low half of pthread_self() */
    uint64_t runtime_table;
    uint64_t digest_table;
    uint64_t function;
    uint64_t seconds;
    int device_count;
    bool (*device_get)(int ordinal, struct gpc_private_device *out);
};
void gpc_digest_compute(const struct gpc_digest_input *input, uint64_t out[2]);
/* Slot 1 of d4082055. */
CUresult gpc_digest_answer(uint32_t version, uint64_t seconds, uint64_t out[2]);

#endif
