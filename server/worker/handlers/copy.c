/* Copies between user memory, as messages or shared, and the device. */
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "memory_internal.h"
#include "span.h"

/* --- to the device -------------------------------------------------------------- */

CUresult gpw_gp_htod(struct gpw_session *s, CUdeviceptr dst, CUstream stream, uint32_t bytes,
                     const void *data)
{
    return gpw_landing_upload(s, dst, stream, bytes, data);
}

struct arena_use {
    uint32_t slot;
};

static void arena_read(struct gpw_session *s, void *arg, CUresult result)
{
    struct arena_use *use = arg;
    (void)result;
    gpw_notify_gp_arena_free(s, use->slot);
    free(use);
}

CUresult gpw_gp_htod_arena(struct gpw_session *s, CUdeviceptr dst, CUstream stream, uint64_t offset,
                           uint32_t bytes, uint32_t slot)
{
    struct arena_use *use = malloc(sizeof *use);
    if (!use)
        return CUDA_ERROR_OUT_OF_MEMORY;
    use->slot = slot;
    const void *from = gpw_arena_at(s, offset, bytes);
    struct gpw_after *after;
    CUresult r = from && gpw_memory_is_device(s, dst, bytes) ? gpw_not_capturing(s, stream)
                                                             : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = gpw_after_prepare_unasked(s, arena_read, use, &after);
    if (r == CUDA_SUCCESS)
        r = gpw_after_submitted(s, after, stream,
                                s->driver->cuMemcpyHtoDAsync_v2(dst, from, bytes, stream));
    if (r != CUDA_SUCCESS)
        arena_read(s, use, r); /* the slot is the client's again, whatever happened */
    return r;
}

CUresult gpw_gp_array_upload(struct gpw_session *s, CUarray array, const struct gp_array_box *at,
                             CUstream stream, uint32_t bytes, const void *data)
{
    CUDA_MEMCPY3D box;
    if (!gpw_array_from_host(s, array, at, bytes, &box))
        return CUDA_ERROR_INVALID_VALUE;
    if (!(box.srcHost = gpw_landing_bytes(s, data, bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return s->driver->cuMemcpy3DAsync_v2(&box, stream);
}

/* --- from the device ------------------------------------------------------------- */

/* What is copied: memory, or (`array`) what of an array a copy says. */
struct source {
    uint32_t bytes;
    CUdeviceptr memory;
    const CUDA_MEMCPY3D *array;
};

static CUresult submit(struct gpw_session *s, void *to, const struct source *from, CUstream stream)
{
    if (!from->array)
        return s->driver->cuMemcpyDtoHAsync_v2(to, from->memory, from->bytes, stream);
    CUDA_MEMCPY3D own = *from->array;
    own.dstHost = to;
    return s->driver->cuMemcpy3DAsync_v2(&own, stream);
}

/* `done` is called once the bytes are there; not if this returns an error. */
static CUresult download(struct gpw_session *s, void *to, const struct source *from,
                         CUstream stream, gpw_done *done, void *arg)
{
    struct gpw_after *after;
    CUresult r = gpw_after_prepare_unasked(s, done, arg, &after);
    return r ? r : gpw_after_submitted(s, after, stream, submit(s, to, from, stream));
}

typedef int answer_bytes(struct gpw_session *s, struct gpw_token token, CUresult result,
                         const void *data, uint32_t bytes);

struct dtoh {
    struct gpw_token token;
    struct gpw_staging *staging;
    uint32_t bytes;
    answer_bytes *answer;
};

static void dtoh_done(struct gpw_session *s, void *arg, CUresult result)
{
    struct dtoh *d = arg;
    s->lends = d->staging->memory;
    d->answer(s, d->token, result, d->staging->memory, result == CUDA_SUCCESS ? d->bytes : 0);
    s->lends = NULL;
    gpw_staging_leave(s, d->staging);
    free(d);
}

static CUresult download_to_answer(struct gpw_session *s, struct gpw_token token,
                                   const struct source *from, CUstream stream, answer_bytes *answer)
{
    CUresult r = gpw_not_capturing(s, stream);
    if (r != CUDA_SUCCESS)
        return r;
    struct dtoh *d = malloc(sizeof *d);
    struct gpw_staging *staging = gpw_staging_take(s);
    if (!d || !staging) {
        free(d);
        if (staging)
            gpw_staging_give(s, staging);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *d = (struct dtoh){token, staging, from->bytes, answer};
    r = download(s, staging->memory, from, stream, dtoh_done, d);
    if (r == CUDA_SUCCESS)
        return GPW_DEFERRED;
    gpw_staging_give(s, staging);
    free(d);
    return r;
}

CUresult gpw_gp_dtoh(struct gpw_session *s, struct gpw_token token, CUdeviceptr src,
                     CUstream stream, uint32_t bytes)
{
    const struct source from = {.bytes = bytes, .memory = src};
    return bytes <= GP_CHUNK_MAX && gpw_memory_is_device(s, src, bytes)
               ? download_to_answer(s, token, &from, stream, gpw_answer_gp_dtoh)
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpw_gp_array_download(struct gpw_session *s, struct gpw_token token, CUarray array,
                               const struct gp_array_box *at, CUstream stream, uint32_t bytes)
{
    CUDA_MEMCPY3D box;
    const struct source from = {.bytes = bytes, .array = &box};
    return bytes <= GP_CHUNK_MAX && gpw_array_to_host(s, array, at, bytes, &box)
               ? download_to_answer(s, token, &from, stream, gpw_answer_gp_array_download)
               : CUDA_ERROR_INVALID_VALUE;
}

/* A pinned buffer that is not shared: its bytes go back as a notice, before the
 * answer of anybody who waits for the stream. */
struct pinned_read {
    struct gpw_staging *staging;
    uint64_t cookie, offset;
    uint32_t bytes, last;
};

static void pinned_read_done(struct gpw_session *s, void *arg, CUresult result)
{
    struct pinned_read *p = arg;
    s->lends = p->staging->memory;
    gpw_notify_gp_pinned_data(s, p->cookie, p->offset, result == CUDA_SUCCESS ? p->bytes : 0,
                              p->last, p->staging->memory);
    s->lends = NULL;
    gpw_staging_leave(s, p->staging);
    free(p);
}

static CUresult download_to_notice(struct gpw_session *s, const struct source *from,
                                   CUstream stream, const struct pinned_read *to)
{
    CUresult r = gpw_not_capturing(s, stream);
    if (r != CUDA_SUCCESS)
        return r;
    struct pinned_read *p = malloc(sizeof *p);
    struct gpw_staging *staging = gpw_staging_take(s);
    if (!p || !staging) {
        free(p);
        if (staging)
            gpw_staging_give(s, staging);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *p = *to;
    p->staging = staging;
    r = download(s, staging->memory, from, stream, pinned_read_done, p);
    if (r == CUDA_SUCCESS)
        return r;
    gpw_staging_give(s, staging);
    free(p);
    return r;
}

CUresult gpw_gp_dtoh_pinned(struct gpw_session *s, CUdeviceptr src, CUstream stream,
                            uint64_t cookie, uint64_t offset, uint32_t bytes, uint32_t last)
{
    const struct source from = {.bytes = bytes, .memory = src};
    const struct pinned_read to = {NULL, cookie, offset, bytes, last};
    return bytes <= GP_CHUNK_MAX && gpw_memory_is_device(s, src, bytes)
               ? download_to_notice(s, &from, stream, &to)
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpw_gp_array_download_pinned(struct gpw_session *s, CUarray array,
                                      const struct gp_array_box *at, CUstream stream,
                                      uint64_t cookie, uint64_t offset, uint32_t bytes,
                                      uint32_t last)
{
    CUDA_MEMCPY3D box;
    const struct source from = {.bytes = bytes, .array = &box};
    const struct pinned_read to = {NULL, cookie, offset, bytes, last};
    return bytes <= GP_CHUNK_MAX && gpw_array_to_host(s, array, at, bytes, &box)
               ? download_to_notice(s, &from, stream, &to)
               : CUDA_ERROR_INVALID_VALUE;
}

/* --- both ends known here --------------------------------------------------------- */

/* What the driver is told for a client's address: pinned buffers lie elsewhere here. */
static bool end_take(struct gpw_session *s, uint64_t address, uint64_t bytes, CUdeviceptr *real,
                     bool *host)
{
    void *pinned = gpw_pinned_find(s, address, bytes);
    if (!pinned)
        pinned = gpw_captured_find(s, address, bytes);
    *host = pinned != NULL;
    *real = pinned ? (CUdeviceptr)(uintptr_t)pinned : address;
    return pinned || gpw_memory_reach(s, address, bytes);
}

CUresult gpw_gp_copy(struct gpw_session *s, uint64_t dst, uint64_t src, uint64_t bytes,
                     CUstream stream, uint32_t kind)
{
    CUdeviceptr to, from;
    bool to_host, from_host;
    (void)kind;
    if (!end_take(s, dst, bytes, &to, &to_host) || !end_take(s, src, bytes, &from, &from_host))
        return CUDA_ERROR_INVALID_VALUE;
    if (to_host && from_host)
        return s->driver->cuMemcpyAsync(to, from, bytes, stream);
    if (to_host)
        return s->driver->cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to, from, bytes, stream);
    if (from_host)
        return s->driver->cuMemcpyHtoDAsync_v2(to, (const void *)(uintptr_t)from, bytes, stream);
    return s->driver->cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

/* One end of a pitched copy, checked; its steps are written out, so that the driver has
 * nothing to fill in by rules of its own. */
static bool pitched_take(struct gpw_session *s, uint64_t address, const CUDA_MEMCPY3D *c,
                         struct gp_span_end *end, CUdeviceptr *real, CUmemorytype *type)
{
    const struct gp_span_box box = {c->WidthInBytes, c->Height, c->Depth};
    struct gp_span span;
    uint64_t first;
    bool host;
    if (!gp_span_make(end, &box, &span) || __builtin_add_overflow(address, span.offset, &first) ||
        !end_take(s, first, span.bytes, real, &host))
        return false;
    *type = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    *end = (struct gp_span_end){.pitch = span.pitch, .rows = span.rows};
    return true;
}

bool gpw_copy_3d_take(struct gpw_session *s, const CUDA_MEMCPY3D *copy,
                      const struct gpw_copy_arrays *arrays, CUDA_MEMCPY3D *own)
{
    const CUDA_MEMCPY3D *c = copy;
    struct gp_span_end from = {c->srcXInBytes, c->srcY, c->srcZ, c->srcPitch, c->srcHeight};
    struct gp_span_end to = {c->dstXInBytes, c->dstY, c->dstZ, c->dstPitch, c->dstHeight};
    /* of the client's, only numbers: a pointer or an array of its has no meaning here */
    *own = (CUDA_MEMCPY3D){.WidthInBytes = c->WidthInBytes, .Height = c->Height, .Depth = c->Depth};
    if (c->WidthInBytes == 0 || c->Height == 0 || c->Depth == 0 ||
        !(arrays->src
              ? gpw_array_take_src(s, arrays->src, &from, own)
              : pitched_take(s, c->srcDevice, c, &from, &own->srcDevice, &own->srcMemoryType)) ||
        !(arrays->dst
              ? gpw_array_take_dst(s, arrays->dst, &to, own)
              : pitched_take(s, c->dstDevice, c, &to, &own->dstDevice, &own->dstMemoryType)))
        return false;
    own->srcHost = (const void *)(uintptr_t)own->srcDevice;
    own->dstHost = (void *)(uintptr_t)own->dstDevice;
    own->srcPitch = from.pitch;
    own->srcHeight = from.rows;
    own->dstPitch = to.pitch;
    own->dstHeight = to.rows;
    return true;
}

CUresult gpw_copy_3d(struct gpw_session *s, const CUDA_MEMCPY3D *copy, CUarray dst, CUarray src,
                     CUstream stream)
{
    const struct gpw_copy_arrays arrays = {dst, src};
    CUDA_MEMCPY3D own;
    if (copy->WidthInBytes == 0 || copy->Height == 0 || copy->Depth == 0)
        return CUDA_SUCCESS;
    return gpw_copy_3d_take(s, copy, &arrays, &own) ? s->driver->cuMemcpy3DAsync_v2(&own, stream)
                                                    : CUDA_ERROR_INVALID_VALUE;
}
