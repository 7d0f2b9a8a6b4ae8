#include "private_tables.h"

#if GPUPOOL_PRIVATE_TABLES
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "private_compile.h"
#include "private_internal.h"

/* --- the host --- */

static const struct gpc_private_host *the_host;

const struct gpc_private_host *gpc_private_kept_host(void)
{
    /* pairs with the exchange in gpc_private_table */
    return __atomic_load_n(&the_host, __ATOMIC_ACQUIRE);
}

/* --- 6bd5fb6c: runtime interface --- */

static CUresult runtime_load(CUmodule *out, const void *wrapper)
{
    return gpc_private_kept_host()->module_load(out, wrapper);
}

static CUresult runtime_primary(CUcontext *out, CUdevice device)
{
    return out ? gpc_private_kept_host()->context_primary(out, device) : CUDA_ERROR_INVALID_VALUE;
}

/* CUDA 10 and 11 */
static CUresult runtime_load_options(CUmodule *out, const void *wrapper, void *a, void *b,
                                     unsigned count)
{
    (void)a, (void)b, (void)count;
    return runtime_load(out, wrapper);
}

static void runtime_size_hint(size_t size)
{
    (void)size;
}

static CUresult runtime_load_header(const void *header, CUmodule *out, void *a, void *b,
                                    unsigned count)
{
    (void)a, (void)b, (void)count;
    return runtime_load(out, header);
}

static CUresult runtime_load_compilers(void)
{
    return CUDA_SUCCESS;
}

/* --- a094798c: callback hooks --- */

/* The runtime reads these to see whether a tool listens: zero says no. The sizes
 * reported may count words, so there is more than they say. */
#define HOOKS_A 1024
#define HOOKS_B 14
static uint64_t hooks_a[HOOKS_A], hooks_b[HOOKS_B];

static void hooks_buffer_a(void **buffer, size_t *size)
{
    if (buffer)
        *buffer = hooks_a;
    if (size)
        *size = HOOKS_A;
}

static void hooks_buffer_b(void **buffer, size_t *size)
{
    if (buffer)
        *buffer = hooks_b;
    if (size)
        *size = HOOKS_B;
}

static CUresult hooks_nothing(void)
{
    return CUDA_SUCCESS;
}

static CUresult hooks_state(const void *in, uint64_t *out)
{
    (void)in;
    if (!out)
        return CUDA_ERROR_UNKNOWN;
    *out = 0;
    return CUDA_SUCCESS;
}

/* --- 42d85a81: current context --- */

static CUresult current_get(CUcontext *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = gpc_private_kept_host()->context_current();
    return CUDA_SUCCESS;
}

/* --- d4082055: digest --- */

static CUresult digest_end(void)
{
    return CUDA_SUCCESS;
}

/* --- 263e8860: context checks --- */

static CUresult checks_flag(CUcontext ctx, uint32_t *flag, const void **inner)
{
    (void)ctx, (void)inner;
    if (!flag)
        return CUDA_ERROR_INVALID_VALUE;
    *flag = 0;
    return CUDA_SUCCESS;
}

static uint32_t checks_none(void)
{
    return 0;
}

/* --- 21318c60: identities --- */

static CUresult identities_context(CUcontext ctx, uint64_t *id)
{
    if (!id)
        return CUDA_ERROR_UNKNOWN;
    if (ctx)
        return gpc_private_kept_host()->context_id(ctx, id);
    *id = 0;
    return CUDA_SUCCESS;
}

/* The private part of a stream is its identity: callers only hand it back. */
static CUresult identities_stream_private(CUcontext ctx, CUstream stream, void **private,
                                          int per_thread)
{
    uint64_t identity;
    if (!private)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream)
        stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    CUresult r = gpc_private_kept_host()->stream_identity(ctx, stream, &identity);
    if (r == CUDA_SUCCESS)
        *private = (void *)(uintptr_t)identity;
    return r;
}

static CUresult identities_stream(CUcontext ctx, const void *private, uint64_t *identity)
{
    (void)ctx;
    if (!private || !identity)
        return CUDA_ERROR_INVALID_VALUE;
    *identity = (uintptr_t)private;
    return CUDA_SUCCESS;
}

/* --- 1734dc26: processor topology --- */

/* For a caller that does not look at the result: memory that may be read. */
static uint8_t topology_unknown[256];

static uint8_t *bytes_copy(const uint8_t *from, size_t size)
{
    uint8_t *copy = malloc(size);
    if (copy)
        memcpy(copy, from, size);
    return copy;
}

static CUresult topology_fail(uint8_t **gpc, uint8_t **index, CUresult why)
{
    *gpc = topology_unknown;
    *index = topology_unknown;
    return why;
}

static CUresult topology_get(uint8_t **gpc, uint8_t **index)
{
    struct gpc_private_topology t = {0};
    if (!gpc || !index)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_private_kept_host()->topology(&t);
    if (r == CUDA_SUCCESS && t.pairs == 0)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r != CUDA_SUCCESS)
        return topology_fail(gpc, index, r);
    uint8_t *a = bytes_copy(t.gpc, t.pairs), *b = bytes_copy(t.index, t.pairs);
    if (!a || !b) {
        free(a);
        free(b);
        return topology_fail(gpc, index, CUDA_ERROR_OUT_OF_MEMORY);
    }
    *gpc = a;
    *index = b;
    return CUDA_SUCCESS;
}

static CUresult topology_free(uint8_t *gpc, uint8_t *index)
{
    if (gpc != topology_unknown)
        free(gpc);
    if (index != topology_unknown)
        free(index);
    return CUDA_SUCCESS;
}

/* --- 6e163fbe: module functions --- */

/* Not a CUresult: 1 is success. */
static int modules_functions(CUcontext ctx, CUmodule module, gpc_private_visit visit, void *user)
{
    (void)ctx; /* the module knows its own */
    if (!module || !visit)
        return 0;
    return gpc_private_kept_host()->module_functions(module, visit, user) == CUDA_SUCCESS;
}

/* --- the tables --- */

#define KNOWN_MAX 7
#define SLOT(n, function) {(n), (void *)(uintptr_t)(function)}

struct slot {
    unsigned n;
    void *function;
};

/* Every slot not named is a stub (private_stubs.c), but for the one that is null in
 * NVIDIA's table too; slot 0 is the size in bytes. */
struct description {
    unsigned char uuid[16];
    unsigned slots;
    unsigned null_slot; /* 0: none */
    struct slot known[KNOWN_MAX];
};

static const struct description descriptions[PRIVATE_TABLES] = {
    [PRIVATE_RUNTIME] = {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39,
                          0x12, 0xfd, 0x9d, 0xf9},
                         13,
                         10,
                         {SLOT(1, runtime_load), SLOT(2, runtime_primary),
                          SLOT(6, runtime_load_options), SLOT(7, runtime_size_hint),
                          SLOT(8, runtime_load_header), SLOT(12, runtime_load_compilers)}},
    [PRIVATE_HOOKS] = {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00,
                        0x20, 0x0c, 0x0a, 0x66},
                       7,
                       0,
                       {SLOT(1, hooks_nothing), SLOT(2, hooks_buffer_a), SLOT(3, hooks_nothing),
                        SLOT(4, hooks_state), SLOT(5, hooks_nothing), SLOT(6, hooks_buffer_b)}},
    [PRIVATE_CURRENT] = {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7,
                          0x8a, 0x3a, 0xec, 0xdc},
                         3,
                         0,
                         {SLOT(2, current_get)}},
    [PRIVATE_DIGEST] = {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12,
                         0x3c, 0x66, 0xe1, 0xf2},
                        3,
                        0,
                        {SLOT(1, gpc_digest_answer), SLOT(2, digest_end)}},
    [PRIVATE_CHECKS] = {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5,
                         0x00, 0x6d, 0xfa, 0x7e},
                        15,
                        0,
                        {SLOT(2, checks_flag), SLOT(3, checks_none)}},
    [PRIVATE_IDENTITIES] = {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff,
                             0x73, 0x24, 0xc8, 0xf2},
                            93,
                            91,
                            {SLOT(4, identities_context), SLOT(39, identities_stream),
                             SLOT(51, identities_stream_private)}},
    [PRIVATE_TOPOLOGY] = {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1,
                           0xe7, 0xdd, 0x8b, 0xca},
                          17,
                          0,
                          {SLOT(4, topology_get), SLOT(13, topology_free)}},
    [PRIVATE_MODULES] = {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82,
                          0xaf, 0xf1, 0x99, 0x1e},
                         99,
                         93,
                         {SLOT(7, modules_functions)}},
    [PRIVATE_COMPILE] = {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26,
                          0xd5, 0x33, 0xe3, 0x28},
                         7,
                         0,
                         {SLOT(1, gpc_compile_open), SLOT(2, gpc_compile_close),
                          SLOT(3, gpc_compile_get), SLOT(4, gpc_compile_put),
                          SLOT(6, gpc_compile_free)}},
};

static const unsigned char storage_uuid[16] = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11,
                                               0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
static const void *const storage_table[3] = {(void *)(uintptr_t)gpc_storage_put,
                                             (void *)(uintptr_t)gpc_storage_delete,
                                             (void *)(uintptr_t)gpc_storage_get};

static const void *tables[PRIVATE_TABLES][PRIVATE_SLOTS_MAX];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

const void *gpc_private_address(enum private_id id)
{
    return tables[id];
}

static void table_fill(enum private_id id)
{
    const struct description *d = &descriptions[id];
    const void **table = tables[id];
    table[0] = (const void *)(uintptr_t)(d->slots * sizeof *table);
    for (unsigned i = 1; i < d->slots; i++)
        table[i] = i == d->null_slot ? NULL : gpc_private_stub(id, i);
    for (unsigned i = 0; i < KNOWN_MAX && d->known[i].function; i++)
        table[d->known[i].n] = d->known[i].function;
}

static void tables_fill(void)
{
    for (unsigned id = 0; id < PRIVATE_TABLES; id++)
        table_fill(id);
}

static const void *table_find(const unsigned char uuid[16])
{
    if (memcmp(uuid, storage_uuid, sizeof storage_uuid) == 0)
        return storage_table;
    for (unsigned id = 0; id < PRIVATE_TABLES; id++)
        if (memcmp(uuid, descriptions[id].uuid, sizeof descriptions[id].uuid) == 0)
            return tables[id];
    return NULL;
}

CUresult gpc_private_table(const void **table, const unsigned char uuid[16],
                           const struct gpc_private_host *host)
{
    const struct gpc_private_host *none = NULL;
    if (!table)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    if (!uuid || !host)
        return CUDA_ERROR_INVALID_VALUE;
    __atomic_compare_exchange_n(&the_host, &none, host, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    pthread_once(&filled, tables_fill);
    *table = table_find(uuid);
    return *table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
#else
CUresult gpc_private_table(const void **table, const unsigned char uuid[16],
                           const struct gpc_private_host *host)
{
    (void)uuid, (void)host;
    if (table)
        *table = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

size_t gpc_private_counts(struct gpc_private_count *out, size_t room)
{
    (void)out, (void)room;
    return 0;
}
#endif
