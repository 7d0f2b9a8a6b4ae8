/*
 * GPU code images as bytes with a size: what they are, whether every size
 * inside them is sound, and, for an image handed over as a bare pointer, how
 * long it is. Pure functions, used on both sides: the client sizes what the
 * application hands it, the worker checks what a client sent before its driver
 * reads a single size from it.
 *
 * A fat binary is a header of 16 bytes or more
 *   u32 0xBA55ED50, u16 version 1, u16 header size, u64 bytes that follow
 * and then entries, each a header of 64 bytes or more and its payload:
 *    0 u16 kind (1 PTX, 2 ELF)   2 u16 0x101        4 u32 header size
 *    8 u64 payload bytes        16 u32 compressed bytes
 *   28 u32 sm                   40 u64 flags (0x2000 LZ4, 0x8000 Zstd)
 *   56 u64 bytes once uncompressed
 */
#ifndef GP_FATBIN_H
#define GP_FATBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GP_FATBIN_WRAPPER_MAGIC 0x466243B1u
#define GP_FATBIN_MAGIC 0xBA55ED50u
#define GP_FATBIN_HEADER 16u
#define GP_ELF_MACHINE_CUDA 190u

/* No image, compressed or not, is larger. */
#define GP_IMAGE_BYTES_MAX (UINT64_C(1) << 32)

/* A larger image is asked for before it is sent, and kept for sessions to come: up to here it costs
 * less to send it than to wait for the answer. */
#define GP_IMAGE_EAGER (1u << 20)

enum gp_image_kind {
    GP_IMAGE_KIND_UNKNOWN = 0,
    GP_IMAGE_KIND_FATBIN = 1, /* from its 0xBA55ED50 header on */
    GP_IMAGE_KIND_ELF = 2,    /* a cubin, machine 190 */
    GP_IMAGE_KIND_PTX = 3,    /* text, the terminating NUL included in the size */
};

enum gp_image_fault {
    GP_IMAGE_SOUND = 0,
    GP_IMAGE_NOT_ONE,        /* none of the known kinds */
    GP_IMAGE_TRUNCATED,      /* a header or table lies beyond the end */
    GP_IMAGE_BAD_HEADER,     /* a version, class or header size that cannot be */
    GP_IMAGE_BAD_SIZE,       /* a size that is absurd or contradicts another */
    GP_IMAGE_TOO_LARGE,      /* over GP_IMAGE_BYTES_MAX, or it would unpack to more */
    GP_IMAGE_NOT_TERMINATED, /* PTX without its NUL at the very end */
    GP_IMAGE_FAULTS
};

/* One clause for a log line, never NULL. */
const char *gp_image_fault_text(enum gp_image_fault fault);

/* What the first bytes say it is. Reads at most `size` bytes, and of those none
 * behind the first that decides. */
enum gp_image_kind gp_image_sniff(const void *bytes, uint64_t size);

/* Whether `size` bytes are exactly one sound fat binary / cubin / PTX text. The
 * bytes need no alignment. Compressed payloads are not unpacked: their sizes are
 * checked, and their sum once unpacked is at most GP_IMAGE_BYTES_MAX. */
enum gp_image_fault gp_fatbin_check(const void *bytes, size_t size);
/* Fat binaries one behind the other, each at a multiple of 8: `*count` of them on GP_IMAGE_SOUND. */
#define GP_FATBINS_MAX (1u << 16) /* more than any program has files */
enum gp_image_fault gp_fatbins_check(const void *bytes, size_t size, uint32_t *count);
enum gp_image_fault gp_elf_check(const void *bytes, size_t size);
enum gp_image_fault gp_ptx_check(const void *bytes, size_t size);
/* Any of the three, by sniffing; `kind` may be NULL. */
enum gp_image_fault gp_image_check(const void *bytes, size_t size, enum gp_image_kind *kind);

/* How long the fat binary (cubin) at `bytes` is, by its own headers, when at most
 * `limit` bytes may be read. `*size` is set on GP_IMAGE_SOUND only. Nothing is
 * read that the headers do not claim. */
enum gp_image_fault gp_fatbin_size(const void *bytes, uint64_t limit, uint64_t *size);
enum gp_image_fault gp_elf_size(const void *bytes, uint64_t limit, uint64_t *size);

/* One entry of a fat binary, as its header describes it. */
struct gp_fatbin_entry {
    uint16_t kind; /* 1 PTX, 2 ELF; others exist and are passed over */
    uint32_t sm;
    uint64_t flags;
    const unsigned char *payload;
    uint64_t payload_size;      /* as stored, padding included */
    uint64_t compressed_size;   /* 0 unless a compression flag is set */
    uint64_t uncompressed_size; /* likewise */
};
#define GP_FATBIN_KIND_PTX 1u
#define GP_FATBIN_KIND_ELF 2u
#define GP_FATBIN_FLAG_LZ4 UINT64_C(0x2000)
#define GP_FATBIN_FLAG_ZSTD UINT64_C(0x8000)

/* Walk the entries: start with *offset = 0; `*more` is false, and `entry` left
 * alone, after the last one. */
enum gp_image_fault gp_fatbin_next(const void *bytes, size_t size, size_t *offset,
                                   struct gp_fatbin_entry *entry, bool *more);

#endif
