#include "fatbin.h"

#include <string.h>

#define ENTRY_HEADER 64u
#define ELF_HEADER 64u
#define ELF_SECTION 64u
#define ELF_SEGMENT 56u
#define SECTION_NOBITS 8u
#define SEGMENTS_IN_SECTION_0 0xFFFFu

static uint16_t u16_at(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static uint32_t u32_at(const unsigned char *p)
{
    return (uint32_t)u16_at(p) | (uint32_t)u16_at(p + 2) << 16;
}
static uint64_t u64_at(const unsigned char *p)
{
    return (uint64_t)u32_at(p) | (uint64_t)u32_at(p + 4) << 32;
}

const char *gp_image_fault_text(enum gp_image_fault fault)
{
    static const char *const text[GP_IMAGE_FAULTS] = {
        [GP_IMAGE_SOUND] = "sound",
        [GP_IMAGE_NOT_ONE] = "neither a fat binary, a cubin nor PTX text",
        [GP_IMAGE_TRUNCATED] = "it ends before a header or table that it names",
        [GP_IMAGE_BAD_HEADER] = "a header's version, class or size is impossible",
        [GP_IMAGE_BAD_SIZE] = "a size inside it is impossible",
        [GP_IMAGE_TOO_LARGE] = "it is, or unpacks to, more than 4 GiB",
        [GP_IMAGE_NOT_TERMINATED] = "the PTX text does not end at its NUL",
    };
    return (unsigned)fault < GP_IMAGE_FAULTS ? text[fault] : "an unknown fault";
}

/* --- what it is --- */

static bool starts_with(const unsigned char *p, uint64_t size, const char *magic)
{
    for (unsigned i = 0; i < 4; i++)
        if (i >= size || p[i] != (unsigned char)magic[i])
            return false;
    return true;
}

static bool text_byte(unsigned char c)
{
    return (c >= 0x20 && c < 0x7F) || (c >= '\t' && c <= '\r');
}

enum gp_image_kind gp_image_sniff(const void *bytes, uint64_t size)
{
    const unsigned char *p = bytes;
    if (starts_with(p, size, "\x50\xED\x55\xBA"))
        return GP_IMAGE_KIND_FATBIN;
    if (starts_with(p, size,
                    "\x7F"
                    "ELF"))
        return GP_IMAGE_KIND_ELF;
    if (size > 0 && text_byte(p[0]))
        return GP_IMAGE_KIND_PTX;
    return GP_IMAGE_KIND_UNKNOWN;
}

/* --- fat binaries --- */

enum gp_image_fault gp_fatbin_size(const void *bytes, uint64_t limit, uint64_t *size)
{
    const unsigned char *p = bytes;
    uint64_t total;
    if (gp_image_sniff(p, limit) != GP_IMAGE_KIND_FATBIN)
        return GP_IMAGE_NOT_ONE;
    if (limit < GP_FATBIN_HEADER)
        return GP_IMAGE_TRUNCATED;
    uint16_t header = u16_at(p + 6);
    if (u16_at(p + 4) != 1 || header < GP_FATBIN_HEADER)
        return GP_IMAGE_BAD_HEADER;
    if (__builtin_add_overflow(u64_at(p + 8), (uint64_t)header, &total) ||
        total > GP_IMAGE_BYTES_MAX)
        return GP_IMAGE_TOO_LARGE;
    if (total > limit)
        return GP_IMAGE_TRUNCATED;
    *size = total;
    return GP_IMAGE_SOUND;
}

static enum gp_image_fault entry_read(const unsigned char *p, uint64_t left,
                                      struct gp_fatbin_entry *entry, uint64_t *bytes)
{
    if (left < ENTRY_HEADER)
        return GP_IMAGE_TRUNCATED;
    uint32_t header = u32_at(p + 4);
    uint64_t payload = u64_at(p + 8);
    if (header < ENTRY_HEADER)
        return GP_IMAGE_BAD_HEADER;
    if (header > left || payload > left - header)
        return GP_IMAGE_TRUNCATED;
    struct gp_fatbin_entry e = {
        .kind = u16_at(p),
        .sm = u32_at(p + 28),
        .flags = u64_at(p + 40),
        .payload = p + header,
        .payload_size = payload,
    };
    if (e.flags & (GP_FATBIN_FLAG_LZ4 | GP_FATBIN_FLAG_ZSTD)) {
        e.compressed_size = u32_at(p + 16);
        e.uncompressed_size = u64_at(p + 56);
        if (e.compressed_size > payload)
            return GP_IMAGE_BAD_SIZE;
    }
    *bytes = header + payload;
    *entry = e;
    return GP_IMAGE_SOUND;
}

enum gp_image_fault gp_fatbin_next(const void *bytes, size_t size, size_t *offset,
                                   struct gp_fatbin_entry *entry, bool *more)
{
    uint64_t total, taken;
    enum gp_image_fault fault = gp_fatbin_size(bytes, size, &total);
    if (fault != GP_IMAGE_SOUND)
        return fault;
    size_t at = *offset ? *offset : u16_at((const unsigned char *)bytes + 6);
    *more = at < total;
    if (at >= total)
        return at == total ? GP_IMAGE_SOUND : GP_IMAGE_TRUNCATED;
    fault = entry_read((const unsigned char *)bytes + at, total - at, entry, &taken);
    if (fault == GP_IMAGE_SOUND)
        *offset = at + (size_t)taken;
    return fault;
}

/* A cubin that lies in the fat binary as it is must be sound by itself. */
static enum gp_image_fault entry_check(const struct gp_fatbin_entry *entry)
{
    if (entry->flags & (GP_FATBIN_FLAG_LZ4 | GP_FATBIN_FLAG_ZSTD) ||
        entry->kind != GP_FATBIN_KIND_ELF)
        return GP_IMAGE_SOUND;
    return gp_elf_check(entry->payload, (size_t)entry->payload_size);
}

enum gp_image_fault gp_fatbin_check(const void *bytes, size_t size)
{
    uint64_t total, unpacked = 0;
    enum gp_image_fault fault = gp_fatbin_size(bytes, size, &total);
    if (fault != GP_IMAGE_SOUND)
        return fault;
    if (total != size)
        return GP_IMAGE_BAD_SIZE;
    size_t offset = 0;
    for (;;) {
        struct gp_fatbin_entry entry;
        bool more;
        fault = gp_fatbin_next(bytes, size, &offset, &entry, &more);
        if (fault != GP_IMAGE_SOUND || !more)
            return fault;
        fault = entry_check(&entry);
        if (fault != GP_IMAGE_SOUND)
            return fault;
        if (__builtin_add_overflow(unpacked, entry.uncompressed_size, &unpacked) ||
            unpacked > GP_IMAGE_BYTES_MAX)
            return GP_IMAGE_TOO_LARGE;
    }
}

enum gp_image_fault gp_fatbins_check(const void *bytes, size_t size, uint32_t *count)
{
    const unsigned char *p = bytes;
    uint32_t n = 0;
    for (uint64_t at = 0, one = 0; at < size; at += one, n++) {
        if (n == GP_FATBINS_MAX)
            return GP_IMAGE_TOO_LARGE;
        enum gp_image_fault fault = gp_fatbin_size(p + at, size - at, &one);
        if (fault == GP_IMAGE_SOUND)
            fault = gp_fatbin_check(p + at, (size_t)one);
        if (fault == GP_IMAGE_SOUND && at + one < size && one % 8)
            fault = GP_IMAGE_BAD_SIZE;
        if (fault != GP_IMAGE_SOUND)
            return fault;
    }
    if (n == 0)
        return GP_IMAGE_TRUNCATED;
    *count = n;
    return GP_IMAGE_SOUND;
}

/* --- cubins --- */

/* Let `*end` reach to offset + size, which must stay within the limit. */
static enum gp_image_fault reach(uint64_t *end, uint64_t offset, uint64_t size, uint64_t limit)
{
    uint64_t to;
    if (__builtin_add_overflow(offset, size, &to) || to > GP_IMAGE_BYTES_MAX)
        return GP_IMAGE_TOO_LARGE;
    if (to > limit)
        return GP_IMAGE_TRUNCATED;
    if (to > *end)
        *end = to;
    return GP_IMAGE_SOUND;
}

struct elf {
    const unsigned char *bytes;
    uint64_t sections, segments; /* offsets of the tables */
    uint64_t section_count, segment_count;
};

/* Counts that do not fit the header stand in section 0. */
static enum gp_image_fault elf_counts(struct elf *elf, uint64_t limit, uint64_t *end)
{
    const unsigned char *p = elf->bytes;
    elf->segments = u64_at(p + 32);
    elf->sections = u64_at(p + 40);
    elf->segment_count = elf->segments ? u16_at(p + 56) : 0;
    elf->section_count = elf->sections ? u16_at(p + 60) : 0;
    if (elf->segment_count && u16_at(p + 54) != ELF_SEGMENT)
        return GP_IMAGE_BAD_HEADER;
    if (!elf->sections)
        return GP_IMAGE_SOUND;
    if (u16_at(p + 58) != ELF_SECTION)
        return GP_IMAGE_BAD_HEADER;
    if (elf->section_count && elf->segment_count != SEGMENTS_IN_SECTION_0)
        return GP_IMAGE_SOUND;
    enum gp_image_fault fault = reach(end, elf->sections, ELF_SECTION, limit);
    if (fault != GP_IMAGE_SOUND)
        return fault;
    const unsigned char *first = p + elf->sections;
    if (elf->section_count == 0)
        elf->section_count = u64_at(first + 32);
    if (elf->segment_count == SEGMENTS_IN_SECTION_0)
        elf->segment_count = u32_at(first + 44);
    return GP_IMAGE_SOUND;
}

static enum gp_image_fault elf_table(uint64_t offset, uint64_t count, uint64_t each, uint64_t limit,
                                     uint64_t *end)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, each, &bytes))
        return GP_IMAGE_TOO_LARGE;
    return reach(end, offset, bytes, limit);
}

static enum gp_image_fault elf_contents(const struct elf *elf, uint64_t limit, uint64_t *end)
{
    enum gp_image_fault fault = GP_IMAGE_SOUND;
    for (uint64_t i = 0; fault == GP_IMAGE_SOUND && i < elf->section_count; i++) {
        const unsigned char *s = elf->bytes + elf->sections + i * ELF_SECTION;
        uint32_t type = u32_at(s + 4);
        /* section 0 holds no bytes, its fields serve elf_counts */
        if (i > 0 && type != 0 && type != SECTION_NOBITS)
            fault = reach(end, u64_at(s + 24), u64_at(s + 32), limit);
    }
    for (uint64_t i = 0; fault == GP_IMAGE_SOUND && i < elf->segment_count; i++) {
        const unsigned char *s = elf->bytes + elf->segments + i * ELF_SEGMENT;
        uint64_t bytes = u64_at(s + 32);
        if (bytes > 0)
            fault = reach(end, u64_at(s + 8), bytes, limit);
    }
    return fault;
}

enum gp_image_fault gp_elf_size(const void *bytes, uint64_t limit, uint64_t *size)
{
    struct elf elf = {.bytes = bytes};
    const unsigned char *p = bytes;
    uint64_t end = ELF_HEADER;
    if (gp_image_sniff(p, limit) != GP_IMAGE_KIND_ELF)
        return GP_IMAGE_NOT_ONE;
    if (limit < ELF_HEADER)
        return GP_IMAGE_TRUNCATED;
    /* 64 bits, little endian */
    if (p[4] != 2 || p[5] != 1 || u16_at(p + 18) != GP_ELF_MACHINE_CUDA)
        return GP_IMAGE_BAD_HEADER;
    enum gp_image_fault fault = elf_counts(&elf, limit, &end);
    if (fault == GP_IMAGE_SOUND)
        fault = elf_table(elf.sections, elf.section_count, ELF_SECTION, limit, &end);
    if (fault == GP_IMAGE_SOUND)
        fault = elf_table(elf.segments, elf.segment_count, ELF_SEGMENT, limit, &end);
    if (fault == GP_IMAGE_SOUND)
        fault = elf_contents(&elf, limit, &end);
    if (fault == GP_IMAGE_SOUND)
        *size = end;
    return fault;
}

enum gp_image_fault gp_elf_check(const void *bytes, size_t size)
{
    uint64_t end;
    enum gp_image_fault fault = gp_elf_size(bytes, size, &end);
    if (fault == GP_IMAGE_SOUND && size > GP_IMAGE_BYTES_MAX)
        return GP_IMAGE_TOO_LARGE;
    return fault;
}

/* --- PTX --- */

enum gp_image_fault gp_ptx_check(const void *bytes, size_t size)
{
    if (gp_image_sniff(bytes, size) != GP_IMAGE_KIND_PTX)
        return GP_IMAGE_NOT_ONE;
    if (size > GP_IMAGE_BYTES_MAX)
        return GP_IMAGE_TOO_LARGE;
    const unsigned char *nul = memchr(bytes, 0, size);
    return nul == (const unsigned char *)bytes + size - 1 ? GP_IMAGE_SOUND
                                                          : GP_IMAGE_NOT_TERMINATED;
}

enum gp_image_fault gp_image_check(const void *bytes, size_t size, enum gp_image_kind *kind)
{
    enum gp_image_kind what = gp_image_sniff(bytes, size);
    if (kind)
        *kind = what;
    switch (what) {
    case GP_IMAGE_KIND_FATBIN:
        return gp_fatbin_check(bytes, size);
    case GP_IMAGE_KIND_ELF:
        return gp_elf_check(bytes, size);
    case GP_IMAGE_KIND_PTX:
        return gp_ptx_check(bytes, size);
    case GP_IMAGE_KIND_UNKNOWN:
        break;
    }
    return GP_IMAGE_NOT_ONE;
}
