/*
 * The tables that cuGetExportTable hands out: interfaces between NVIDIA's
 * runtime libraries and its driver that no header declares. docs/private-tables.md
 * says what each is for and how we know. All of it lives in private_*.c, and
 * -DGPUPOOL_PRIVATE_TABLES=OFF leaves it out: every UUID is then unknown.
 */
#ifndef GPC_PRIVATE_TABLES_H
#define GPC_PRIVATE_TABLES_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpc_private_device {
    unsigned char uuid[16];
    int32_t pci_domain; /* device attributes 50, 33 and 34 */
    int32_t pci_bus;
    int32_t pci_device;
};

struct gpc_private_topology {
    uint8_t gpc[256];   /* graphics cluster of each pair of multiprocessors */
    uint8_t index[256]; /* and its place within that cluster */
    size_t pairs;       /* 0: the worker's driver does not say */
};

typedef void (*gpc_private_visit)(void *user, CUfunction function, const char *name);

/*
 * What the tables need of the client. Filled once; every member is set but the
 * last two, callable from any thread and, where not said otherwise, before cuInit.
 */
struct gpc_private_host {
    /* The calling thread's context, NULL if none. On the runtime's hot path. */
    CUcontext (*context_current)(void);
    /* The handle that a retain of the device's primary context would give, without
     * retaining it or changing whether it is active. */
    CUresult (*context_primary)(CUcontext *out, CUdevice device);
    /* Whether the handle names a context; an unretained primary one does. */
    bool (*context_is_live)(CUcontext context);
    /* As cuCtxGetId, for a live context: unique, never used again. */
    CUresult (*context_id)(CUcontext context, uint64_t *id);
    /* As cuModuleLoadData. */
    CUresult (*module_load)(CUmodule *out, const void *image);
    /* Call `visit` for each kernel of the module, its mangled name beside it. */
    CUresult (*module_functions)(CUmodule module, gpc_private_visit visit, void *user);
    /* A number for the stream, stable, never 0, different for each. `stream` may be
     * CU_STREAM_LEGACY or CU_STREAM_PER_THREAD, never NULL; INVALID_HANDLE if it is
     * none. `context` may be NULL for the current one. */
    CUresult (*stream_identity)(CUcontext context, CUstream stream, uint64_t *identity);
    /* The devices as cuDeviceGetCount, cuDeviceGetUuid and cuDeviceGetAttribute show
     * them; 0 before cuInit. device_get: false if there is no such ordinal. */
    int (*device_count)(void);
    bool (*device_get)(int ordinal, struct gpc_private_device *out);
    /* As cuDriverGetVersion says. */
    int (*driver_version)(void);
    /* Of the current context's device. */
    CUresult (*topology)(struct gpc_private_topology *out);
    /* Told at the first call of each slot that we do not know. May be NULL. */
    void (*unknown_slot)(const char *table, unsigned slot);
    /* A line for the log; `warn`: the user should do something about it. May be NULL. */
    void (*note)(bool warn, const char *line);
};

/* cuGetExportTable. INVALID_VALUE and *table = NULL for an unknown UUID,
 * INVALID_VALUE for a null argument. The host given first is kept for ever. */
CUresult gpc_private_table(const void **table, const unsigned char uuid[16],
                           const struct gpc_private_host *host);

/* Run the destructors of what the runtime stored on the context, each once, and
 * forget it. Call when a context has been destroyed or reset or released for the
 * last time, outside of all locks: a destructor may call anything. */
void gpc_storage_context_ended(void *ctx);

/* One slot that we do not know and that was called all the same. */
struct gpc_private_count {
    const char *table; /* its UUID's first eight digits */
    unsigned slot;
    uint64_t calls;
};
/* Fill up to `room` of them; returns how many there are. For GPUPOOL_STATS. */
size_t gpc_private_counts(struct gpc_private_count *out, size_t room);

/* What was asked of the compile cache. For GPUPOOL_STATS. */
struct gpc_private_compile_counts {
    uint64_t memory_hits, file_hits, misses, stored;
};
void gpc_private_compile_counted(struct gpc_private_compile_counts *out);

#endif
