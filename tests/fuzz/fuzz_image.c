/*
 * Hostile images: the bounded checks must read nothing outside the bytes, and
 * what they find sound must be so for the walk and the sizing as well.
 */
#include <stdint.h>
#include <stdlib.h>

#include "fatbin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Touch every byte that an entry claims. */
static unsigned entries_touch(const uint8_t *data, size_t size)
{
    unsigned sum = 0;
    size_t offset = 0;
    for (;;) {
        struct gp_fatbin_entry e;
        bool more;
        if (gp_fatbin_next(data, size, &offset, &e, &more) != GP_IMAGE_SOUND)
            abort();
        if (!more)
            return sum;
        if (e.compressed_size > e.payload_size || e.payload_size > size)
            abort();
        for (uint64_t i = 0; i < e.payload_size; i++)
            sum += e.payload[i];
    }
}

/* Together they are all of the bytes, and each is one by itself. */
static void several(const uint8_t *data, size_t size)
{
    uint32_t count;
    uint64_t length;
    if (gp_fatbins_check(data, size, &count) != GP_IMAGE_SOUND)
        return;
    for (; count; count--, data += length, size -= length)
        if (gp_fatbin_size(data, size, &length) != GP_IMAGE_SOUND || length > size ||
            gp_fatbin_check(data, length) != GP_IMAGE_SOUND)
            abort();
    if (size != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum gp_image_kind kind;
    uint64_t length = 0;
    volatile unsigned sum = 0;
    several(data, size);
    if (gp_image_check(data, size, &kind) != GP_IMAGE_SOUND)
        return 0;
    switch (kind) {
    case GP_IMAGE_KIND_FATBIN:
        if (gp_fatbin_size(data, size, &length) != GP_IMAGE_SOUND || length != size)
            abort();
        sum = entries_touch(data, size);
        break;
    case GP_IMAGE_KIND_ELF:
        if (gp_elf_size(data, size, &length) != GP_IMAGE_SOUND || length > size)
            abort();
        break;
    case GP_IMAGE_KIND_PTX:
        if (data[size - 1] != 0)
            abort();
        break;
    case GP_IMAGE_KIND_UNKNOWN:
        abort();
    }
    (void)sum;
    return 0;
}
