#include "image_prints.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#ifdef GPW_UNPACKS
#include <lz4.h>
#include <zstd.h>
#endif

#include "budget.h"
#include "fatbin.h"

static bool names_it(const void *bytes, uint64_t size)
{
    static const char name[] = "vprintf";
    return memmem(bytes, size, name, sizeof name - 1) != NULL;
}

/* Exactly as many bytes as its header says; else nobody knows what it is. */
static bool unpack(const struct gp_fatbin_entry *e, void *to)
{
#ifdef GPW_UNPACKS
    if (e->flags & GP_FATBIN_FLAG_ZSTD)
        return ZSTD_decompress(to, e->uncompressed_size, e->payload, e->compressed_size) ==
               e->uncompressed_size;
    return e->compressed_size <= INT_MAX && e->uncompressed_size <= INT_MAX &&
           LZ4_decompress_safe((const char *)e->payload, to, (int)e->compressed_size,
                               (int)e->uncompressed_size) == (int)e->uncompressed_size;
#else
    (void)e, (void)to;
    return false;
#endif
}

/* In memory that counts as the session's images do; where there is none, it may print. */
static bool packed_prints(struct gpw_session *s, const struct gp_fatbin_entry *e)
{
    uint64_t size = e->uncompressed_size;
    if (!gpw_budget_take(s, GPW_USE_IMAGES, size))
        return true;
    void *bytes = malloc(size ? size : 1);
    bool prints = !bytes || !unpack(e, bytes) || names_it(bytes, size);
    free(bytes);
    gpw_budget_give(s, GPW_USE_IMAGES, size);
    return prints;
}

/* Machine code of another family is not what the driver takes. */
static bool is_of_device(struct gpw_session *s, uint32_t sm)
{
    for (uint32_t i = 0; i < s->device_count; i++) {
        int major = 0;
        if (s->driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                            s->devices[i]) != CUDA_SUCCESS ||
            sm / 10 == (uint32_t)major)
            return true;
    }
    return false;
}

static bool entry_prints(struct gpw_session *s, const struct gp_fatbin_entry *e)
{
    if (e->kind != GP_FATBIN_KIND_PTX && e->kind != GP_FATBIN_KIND_ELF)
        return true;
    if (e->kind == GP_FATBIN_KIND_ELF && !is_of_device(s, e->sm))
        return false;
    return e->flags & (GP_FATBIN_FLAG_LZ4 | GP_FATBIN_FLAG_ZSTD)
               ? packed_prints(s, e)
               : names_it(e->payload, e->payload_size);
}

static bool fatbin_prints(struct gpw_session *s, const void *bytes, uint64_t size)
{
    size_t offset = 0;
    struct gp_fatbin_entry e;
    bool more = true;
    while (gp_fatbin_next(bytes, size, &offset, &e, &more) == GP_IMAGE_SOUND && more)
        if (entry_prints(s, &e))
            return true;
    return more; /* it did not come to the end */
}

bool gpw_image_prints(struct gpw_session *s, const struct gpw_image *image)
{
    const unsigned char *at = image->bytes, *end = image->bytes + image->total;
    if (gp_image_sniff(at, image->total) != GP_IMAGE_KIND_FATBIN)
        return names_it(at, image->total);
    for (uint64_t size; at < end; at += size)
        if (gp_fatbin_size(at, (uint64_t)(end - at), &size) != GP_IMAGE_SOUND || size == 0 ||
            fatbin_prints(s, at, size))
            return true;
    return false;
}
