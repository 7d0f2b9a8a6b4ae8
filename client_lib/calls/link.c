/*
 * Linking code: the driver of the GPU host links, each call is made there at once. What options of
 * cuLinkCreate ask for is written by the calls that follow it, as the driver does.
 */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "handle.h"
#include "image.h"
#include "jit_options.h"
#include "module.h"

struct link {
    struct gpc_jit_options options;
    void *cubin; /* NULL until it is complete */
    uint64_t bytes;
};

static struct link *link_of(CUlinkState state)
{
    return gpc_handle_shadow(GP_HANDLE_LINK, (uint64_t)state);
}

CUresult gpc_as_cuLinkCreate_v2(uint16_t op, unsigned int numOptions, CUjit_option *options,
                                void **optionValues, CUlinkState *stateOut)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!stateOut)
        return CUDA_ERROR_INVALID_VALUE;
    struct link *link = calloc(1, sizeof *link);
    if (!link)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct gpc_jit_options *o = &link->options;
    CUlinkState state;
    r = gpc_jit_split(op, numOptions, options, optionValues, &link->options);
    if (r == CUDA_SUCCESS)
        r = gpc_wire_gp_link_create(&state, o->count, o->pairs, o->info_room, o->error_room);
    if (r != CUDA_SUCCESS) {
        free(link);
        return gpc_leave(r);
    }
    gpc_handle_attach((uint64_t)state, link);
    *stateOut = state;
    return CUDA_SUCCESS;
}

/* --- what is added ----------------------------------------------------------------------- */

/* What came of a step, and what the driver has written into options. */
static CUresult step_done(const struct link *link, const struct gp_linked *said, uint32_t info,
                          uint32_t error)
{
    float wall_time;
    memcpy(&wall_time, &said->wall_time, sizeof wall_time);
    gpc_jit_answer(&link->options, wall_time, info, error);
    if (link->options.threads && said->threads)
        *link->options.threads = (void *)(uintptr_t)said->threads;
    return said->state == GP_IMAGE_MISSING ? CUDA_ERROR_OUT_OF_MEMORY
                                           : gpc_result_from(said->result);
}

static CUresult add(uint16_t op, CUlinkState state, CUjitInputType type, const void *data,
                    size_t size, const char *name, unsigned option_count, CUjit_option *options,
                    void **values)
{
    struct link *link = link_of(state);
    struct gpc_jit_options own;
    struct gp_linked said;
    uint32_t info = 0, error = 0;
    char none;
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    if (link->cubin || !data || !size || (unsigned)type >= CU_JIT_NUM_INPUT_TYPES)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_jit_split(op, option_count, options, values, &own);
    if (r == CUDA_SUCCESS && gpc_jit_is_whole(option_count, options))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r != CUDA_SUCCESS)
        return r;
    const struct gp_image_part piece = {.data = data, .size = size};
    const struct gpc_image image = {.count = 1, .pieces = &piece, .total = size};
    const struct gpc_jit_options *o = &link->options;
    unsigned char hash[32];
    gpc_image_name(NULL, &image, hash);
    gpc_image_lock(hash);
    if ((r = gpc_image_put(NULL, &image, hash)) == CUDA_SUCCESS)
        r = gpc_wire_gp_link_add(state, type, hash, name ? name : "", own.count, own.pairs,
                                 o->info_room, o->error_room, &said, o->info_room ? o->info : &none,
                                 o->error_room ? o->error : &none, &info, &error);
    gpc_image_unlock(hash);
    return r == CUDA_SUCCESS ? step_done(link, &said, info, error) : r;
}

CUresult gpc_as_cuLinkAddData_v2(uint16_t op, CUlinkState state, CUjitInputType type, void *data,
                                 size_t size, const char *name, unsigned int numOptions,
                                 CUjit_option *options, void **optionValues)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    return gpc_leave(r ? r
                       : add(op, state, type, data, size, name, numOptions, options, optionValues));
}

CUresult gpc_as_cuLinkAddFile_v2(uint16_t op, CUlinkState state, CUjitInputType type,
                                 const char *path, unsigned int numOptions, CUjit_option *options,
                                 void **optionValues)
{
    void *bytes;
    size_t size;
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r == CUDA_SUCCESS && !link_of(state))
        r = CUDA_ERROR_INVALID_HANDLE;
    if (r != CUDA_SUCCESS || (r = gpc_image_read(path, &bytes, &size)) != CUDA_SUCCESS)
        return r;
    r = add(op, state, type, bytes, size, path, numOptions, options, optionValues);
    free(bytes);
    return gpc_leave(r);
}

/* --- what comes of it ----------------------------------------------------------------------- */

static CUresult cubin_read(CUlinkState state, char *to, uint64_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    for (uint64_t at = 0; r == CUDA_SUCCESS && at < bytes;) {
        uint32_t got, n = bytes - at < GP_CHUNK_MAX ? (uint32_t)(bytes - at) : GP_CHUNK_MAX;
        r = gpc_wire_gp_link_read(state, at, n, to + at, &got);
        if (r == CUDA_SUCCESS && got != n)
            r = CUDA_ERROR_UNKNOWN;
        at += n;
    }
    return r;
}

static CUresult cubin_fetch(struct link *link, CUlinkState state, uint64_t bytes)
{
    if (bytes == 0 || bytes > GP_IMAGE_BYTES_MAX)
        return CUDA_ERROR_UNKNOWN;
    char *cubin = malloc(bytes);
    CUresult r = cubin ? cubin_read(state, cubin, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        free(cubin);
        return r;
    }
    link->cubin = cubin;
    link->bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult complete(struct link *link, CUlinkState state)
{
    const struct gpc_jit_options *o = &link->options;
    struct gp_linked said;
    uint32_t info = 0, error = 0;
    char none;
    CUresult r = gpc_wire_gp_link_complete(state, o->info_room, o->error_room, &said,
                                           o->info_room ? o->info : &none,
                                           o->error_room ? o->error : &none, &info, &error);
    if (r == CUDA_SUCCESS)
        r = step_done(link, &said, info, error);
    return r == CUDA_SUCCESS ? cubin_fetch(link, state, said.cubin_bytes) : r;
}

GPC_EXPORT CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
    CUresult r = gpc_enter(GP_OP_cuLinkComplete, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct link *link = link_of(state);
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!cubinOut)
        return CUDA_ERROR_INVALID_VALUE;
    if (link->cubin) /* it was complete before */
        return CUDA_ERROR_INVALID_HANDLE;
    if ((r = complete(link, state)) != CUDA_SUCCESS)
        return gpc_leave(r);
    *cubinOut = link->cubin;
    if (sizeOut)
        *sizeOut = link->bytes;
    return gpc_leave(CUDA_SUCCESS);
}

GPC_EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
    CUresult r = gpc_enter(GP_OP_cuLinkDestroy, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    struct link *link = link_of(state);
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    r = gpc_wire_cuLinkDestroy(state);
    if (r == CUDA_SUCCESS) {
        free(link->cubin);
        free(link);
    }
    return gpc_leave(r);
}
