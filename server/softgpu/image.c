/*
 * Images: finds the PTX in what cuModuleLoadData and cuLibraryLoadData take.
 *
 *   wrapper  { u32 0x466243B1, u32 version, header *, ... }
 *   header   { u32 0xBA55ED50, u16 1, u16 header bytes, u64 bytes that follow }
 *   file     { u16 kind, u16, u32 header bytes, u64 payload bytes,
 *              u32 compressed bytes, u32, u32, u32 sm, u32, u32, u64 flags, u64,
 *              u64 uncompressed bytes }
 * A header says how long it is; nothing beyond that, nor beyond what the caller
 * says is readable, is looked at.
 */
#include "link.h"

#include <lz4.h>
#include <stdio.h>
#include <zstd.h>

#define WRAPPER_MAGIC 0x466243B1u
#define HEADER_MAGIC 0xBA55ED50u
#define KIND_PTX 1
#define FLAG_LZ4 0x2000u
#define FLAG_ZSTD 0x8000u
#define NEWEST_SM 90u
#define PTX_MAX ((uint64_t)256 << 20)

struct file {
    const unsigned char *payload;
    uint64_t payload_size, compressed, uncompressed, flags;
    uint32_t sm;
};

static uint16_t u16(const unsigned char *p)
{
    uint16_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static uint32_t u32(const unsigned char *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static uint64_t u64(const unsigned char *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

/* The newest PTX that is meant for GPUs like this; else the oldest of what is meant for later ones.
 * A driver refuses that. Here it is all that can run, because machine code cannot, and what a
 * program that ignores the error computes would be wrong: it says by name what is not known. */
static bool is_better(uint32_t sm, const struct file *found)
{
    if (!found->payload)
        return true;
    if (sm <= NEWEST_SM)
        return found->sm > NEWEST_SM || sm > found->sm;
    return sm < found->sm;
}

/* Looks through the files of a fat binary for the PTX to run, which is for no GPU after `newest`.
 * *found stays as it is when there is none; false: the layout makes no sense. */
static bool best_ptx(const unsigned char *bytes, uint64_t size, uint32_t newest, struct file *found)
{
    while (size >= 64) {
        uint64_t header = u32(bytes + 4), payload = u64(bytes + 8);
        if (header < 64 || header > size || payload > size - header)
            return false;
        uint32_t sm = u32(bytes + 28);
        if (u16(bytes) == KIND_PTX && sm <= newest && is_better(sm, found))
            *found = (struct file){.payload = bytes + header,
                                   .payload_size = payload,
                                   .compressed = u32(bytes + 16),
                                   .sm = sm,
                                   .flags = u64(bytes + 40),
                                   .uncompressed = u64(bytes + 56)};
        bytes += header + payload;
        size -= header + payload;
    }
    return true;
}

static CUresult expand(const struct file *file, char **ptx, size_t *length)
{
    bool lz4 = file->flags & FLAG_LZ4, zstd = file->flags & FLAG_ZSTD;
    uint64_t size = lz4 || zstd ? file->uncompressed : file->payload_size;
    if (size == 0 || size > PTX_MAX)
        return CUDA_ERROR_INVALID_IMAGE;
    if ((lz4 || zstd) && (file->compressed > file->payload_size || file->compressed > INT32_MAX))
        return CUDA_ERROR_INVALID_IMAGE;
    char *text = malloc(size + 1);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool good = true;
    if (lz4)
        good = LZ4_decompress_safe((const char *)file->payload, text, (int)file->compressed,
                                   (int)size) == (int)size;
    else if (zstd)
        good = ZSTD_decompress(text, size, file->payload, file->compressed) == size;
    else
        memcpy(text, file->payload, size);
    if (!good) {
        free(text);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    text[size] = 0;
    *ptx = text;
    *length = strlen(text); /* the payload is padded with NULs */
    return CUDA_SUCCESS;
}

static CUresult from_header(const unsigned char *bytes, size_t size, uint32_t newest, char **ptx,
                            size_t *length, char *log, size_t log_size)
{
    struct file found = {0};
    if (size < 16)
        return CUDA_ERROR_INVALID_IMAGE;
    uint64_t header = u16(bytes + 6), follows = u64(bytes + 8);
    if (header < 16 || header > size || follows > size - header)
        return CUDA_ERROR_INVALID_IMAGE;
    if (!best_ptx(bytes + header, follows, newest, &found))
        return CUDA_ERROR_INVALID_IMAGE;
    if (!found.payload) {
        snprintf(log, log_size,
                 "the image has no PTX%s, which the soft GPU needs: compile with it, as in"
                 " -gencode arch=compute_75,code=compute_75",
                 newest == NEWEST_SM ? " for GPUs that it can be linked for" : "");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return expand(&found, ptx, length);
}

static CUresult from_text(const char *text, size_t size, char **ptx, size_t *length)
{
    size_t n = size == SIZE_MAX ? strlen(text) : strnlen(text, size);
    unsigned char first = n ? (unsigned char)text[0] : 0;
    if (!(first >= 0x20 && first < 0x7f) && first != '\n' && first != '\r' && first != '\t')
        return CUDA_ERROR_INVALID_IMAGE;
    *ptx = malloc(n + 1);
    if (!*ptx)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(*ptx, text, n);
    (*ptx)[n] = 0;
    *length = n;
    return CUDA_SUCCESS;
}

/* What is linked, or else what its linker makes of the rest (version 2). */
static CUresult from_wrapper(const unsigned char *wrapper, uint32_t newest, char **ptx,
                             size_t *length, char *log, size_t log_size)
{
    const uint32_t magic = HEADER_MAGIC, version = u32(wrapper + 4);
    const unsigned char *linked = (const unsigned char *)(uintptr_t)u64(wrapper + 8);
    const void *const *prelinked = (const void *const *)(uintptr_t)u64(wrapper + 16);
    if (!linked || memcmp(linked, &magic, 4) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    bool parts = version == 2 && prelinked && prelinked[0];
    CUresult result = from_header(linked, SIZE_MAX, parts ? NEWEST_SM : newest, ptx, length, log,
                                  log_size);
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU && parts)
        result = sg_link_fatbins(prelinked, ptx, length, log, log_size);
    return result;
}

CUresult sg_image_ptx(const void *image, size_t size, bool part, char **ptx, size_t *length,
                      char *log, size_t log_size)
{
    /* of libcudadevrt, which programs bring along, later parts want more than earlier ones */
    const uint32_t newest = part ? NEWEST_SM : UINT32_MAX;
    const unsigned char *bytes = image;
    log[0] = 0;
    /* Text may be shorter than a magic number: compare byte for byte. */
    const uint32_t wrapper = WRAPPER_MAGIC, header = HEADER_MAGIC;
    if (size >= 4 && strncmp(image, "\177ELF", 4) == 0) {
        snprintf(log, log_size,
                 "the image is machine code: the soft GPU needs PTX, as from"
                 " nvcc -ptx or -gencode arch=compute_75,code=compute_75");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (size >= 24 && bytes[0] == (wrapper & 0xff) && memcmp(image, &wrapper, 4) == 0)
        return from_wrapper(bytes, newest, ptx, length, log, log_size);
    if (size >= 4 && bytes[0] == (header & 0xff) && memcmp(bytes, &header, 4) == 0)
        return from_header(bytes, size, newest, ptx, length, log, log_size);
    return from_text((const char *)bytes, size, ptx, length);
}

CUresult sg_image_read(const char *path, char **bytes, size_t *size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    size_t used = 0, room = 0;
    char *content = NULL;
    CUresult result = CUDA_SUCCESS;
    for (;;) {
        if (room - used < 65536) {
            room = room ? room * 2 : 131072;
            char *bigger = room <= PTX_MAX * 2 ? realloc(content, room) : NULL;
            if (!bigger) {
                result = CUDA_ERROR_OUT_OF_MEMORY;
                break;
            }
            content = bigger;
        }
        size_t n = fread(content + used, 1, room - used - 1, file);
        used += n;
        if (n == 0)
            break;
    }
    if (result == CUDA_SUCCESS && ferror(file))
        result = CUDA_ERROR_OPERATING_SYSTEM;
    fclose(file);
    if (result != CUDA_SUCCESS) {
        free(content);
        return result;
    }
    content[used] = 0;
    *bytes = content;
    *size = used;
    return CUDA_SUCCESS;
}
