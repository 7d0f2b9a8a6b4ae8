#include "image.h"

#include <stdlib.h>
#include <string.h>

#include "movers.h"
#include "route.h"
#include "session.h"

/* The wrapper, as nvcc lays it into the application. */
struct wrapper {
    uint32_t magic;
    uint32_t version;
    const void *linked;
    const void *const *prelinked;
};

/* A fat binary of its header alone. */
static const unsigned char no_files[GP_FATBIN_HEADER] = {
    0x50, 0xED, 0x55, 0xBA, 1, 0, GP_FATBIN_HEADER};

/* How many bytes may lie behind `p` before the address space ends. */
static uint64_t room_behind(const void *p)
{
    uint64_t room = UINTPTR_MAX - (uintptr_t)p;
    return room < GP_IMAGE_BYTES_MAX ? room : GP_IMAGE_BYTES_MAX;
}

static CUresult ptx_size(const void *text, uint64_t limit, uint64_t *size)
{
    uint64_t n = strnlen(text, (size_t)limit);
    if (n == limit)
        return CUDA_ERROR_INVALID_IMAGE;
    *size = n + 1;
    return CUDA_SUCCESS;
}

static CUresult piece_describe(const void *image, struct gp_image_part *piece)
{
    uint64_t limit = room_behind(image), size = 0;
    enum gp_image_kind kind = gp_image_sniff(image, limit);
    enum gp_image_fault fault = GP_IMAGE_NOT_ONE;
    if (kind == GP_IMAGE_KIND_FATBIN)
        fault = gp_fatbin_size(image, limit, &size);
    else if (kind == GP_IMAGE_KIND_ELF)
        fault = gp_elf_size(image, limit, &size);
    else if (kind == GP_IMAGE_KIND_PTX && ptx_size(image, limit, &size) == CUDA_SUCCESS)
        fault = GP_IMAGE_SOUND;
    if (fault == GP_IMAGE_SOUND && kind == GP_IMAGE_KIND_FATBIN)
        fault = gp_fatbin_check(image, (size_t)size);
    if (fault != GP_IMAGE_SOUND)
        return CUDA_ERROR_INVALID_IMAGE;
    *piece = (struct gp_image_part){.data = image, .size = size};
    return CUDA_SUCCESS;
}

static CUresult fatbin_describe(const void *fatbin, struct gp_image_part *piece, uint64_t *total)
{
    CUresult r = piece_describe(fatbin, piece);
    if (r != CUDA_SUCCESS)
        return r;
    /* a wrapper may also be put around a cubin or PTX by hand: the driver takes that */
    if (piece->size > GP_IMAGE_BYTES_MAX - *total)
        return CUDA_ERROR_INVALID_IMAGE;
    *total += piece->size;
    return CUDA_SUCCESS;
}

static CUresult prelinked_count(const struct wrapper *w, uint32_t *count)
{
    uint32_t n = 0;
    while (w->prelinked && w->prelinked[n])
        if (++n >= GP_FATBINS_MAX)
            return CUDA_ERROR_INVALID_IMAGE;
    *count = n;
    return CUDA_SUCCESS;
}

static CUresult list_describe(const struct wrapper *w, uint32_t prelinked, struct gpc_image *out)
{
    if (!w->linked && prelinked == 0)
        return CUDA_ERROR_INVALID_IMAGE;
    struct gp_image_part *list = calloc((size_t)prelinked + 1, sizeof *list);
    if (!list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpc_image image = {.count = prelinked + 1, .pieces = list};
    CUresult r = fatbin_describe(w->linked ? w->linked : no_files, &list[0], &image.total);
    for (uint32_t i = 0; r == CUDA_SUCCESS && i < prelinked; i++)
        r = fatbin_describe(w->prelinked[i], &list[1 + i], &image.total);
    if (r != CUDA_SUCCESS) {
        free(list);
        return r;
    }
    *out = image;
    return CUDA_SUCCESS;
}

static CUresult one_describe(const void *image, struct gpc_image *out)
{
    struct gp_image_part piece;
    CUresult r = piece_describe(image, &piece);
    if (r != CUDA_SUCCESS)
        return r;
    *out = (struct gpc_image){.count = 1, .total = piece.size, .one = piece};
    out->pieces = &out->one;
    return CUDA_SUCCESS;
}

static bool is_wrapper(const void *image)
{
    static const unsigned char magic[4] = {0xB1, 0x43, 0x62, 0x46};
    const unsigned char *p = image;
    for (unsigned i = 0; i < sizeof magic; i++)
        if (p[i] != magic[i])
            return false;
    return true;
}

CUresult gpc_image_describe(const void *image, struct gpc_image *out)
{
    struct wrapper w;
    uint32_t prelinked;
    if (!image || !out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_wrapper(image))
        return one_describe(image, out);
    /* version 1 has a fourth member too, of no meaning */
    memcpy(&w, image, sizeof w);
    if (w.version == 1 && w.linked)
        return one_describe(w.linked, out);
    if (w.version != 2)
        return CUDA_ERROR_INVALID_IMAGE;
    CUresult r = prelinked_count(&w, &prelinked);
    return r == CUDA_SUCCESS ? list_describe(&w, prelinked, out) : r;
}

void gpc_image_release(struct gpc_image *image)
{
    if (image->pieces != &image->one)
        free((void *)(uintptr_t)image->pieces);
    image->pieces = NULL;
    image->count = 0;
}

static void work(void *naming)
{
    gp_image_naming_work(naming);
}

/* Most of the time of a program's first kernels is that of its libraries' images, and nothing else
 * can happen before they have names. */
static bool name_with_movers(const struct gpc_image *image, unsigned movers,
                             unsigned char name[GP_IMAGE_NAME_BYTES])
{
    struct gp_image_naming naming;
    int moves[GPC_MOVERS_MAX];
    if (!gp_image_naming_begin(&naming, image->pieces, image->count, image->total))
        return false;
    for (unsigned i = 0; i < movers; i++)
        moves[i] = gpc_move_begin_work(work, &naming);
    gp_image_naming_work(&naming);
    for (unsigned i = 0; i < movers; i++)
        gpc_move_finish(moves[i]);
    gp_image_naming_end(&naming, name);
    return true;
}

/* A worker of a release before it came knows images by their names of then. */
static bool knows_names(const struct gpc_route *on)
{
    struct gpc_route route = on ? *on : gpc_route_here();
    const struct gpc_session *s = gpc_route_session(&route);
    return !s || s->knows_image_names;
}

void gpc_image_name(const struct gpc_route *on, const struct gpc_image *image,
                    unsigned char name[GP_IMAGE_NAME_BYTES])
{
    if (!knows_names(on)) {
        gp_image_name_before(image->pieces, image->count, name);
        return;
    }
    unsigned movers = image->total > GP_IMAGE_EAGER ? gpc_movers() : 0;
    if (movers == 0 || !name_with_movers(image, movers, name))
        gp_image_name(image->pieces, image->count, image->total, name);
}
