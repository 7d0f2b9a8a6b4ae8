/* driver_random.c: memsets, kernels, copies of every kind, and calls of the host. */
#ifndef RANDOM_WORK_H
#define RANDOM_WORK_H

#include "random_memory.h"

/* --- work -------------------------------------------------------------------------------- */

static struct buffer *any_device(struct worker *w)
{
    return &w->device[pick(w, DEVICE_BUFFERS)];
}

struct part {
    size_t at, size;
};

/* Of `bytes` bytes, a multiple of `unit` in place and size; of size 0 if there is none. */
static struct part part(struct worker *w, size_t bytes, size_t unit)
{
    if (bytes < unit)
        return (struct part){0, 0};
    size_t at = pick(w, (unsigned)(bytes / unit)) * unit;
    return (struct part){at, (1 + pick(w, (unsigned)((bytes - at) / unit))) * unit};
}

static void set_units(struct worker *w, unsigned unit)
{
    struct buffer *b = any_device(w);
    uint32_t value = check_random(&w->random);
    struct part p = part(w, b->bytes, unit);
    if (p.size == 0)
        return;
    if (unit == 1)
        CU(cuMemsetD8Async(b->device + p.at, (uint8_t)value, p.size, stream_of(w)));
    else if (unit == 2)
        CU(cuMemsetD16Async(b->device + p.at, (uint16_t)value, p.size / 2, stream_of(w)));
    else
        CU(cuMemsetD32Async(b->device + p.at, value, p.size / 4, stream_of(w)));
    happens(w, (struct action){.what = SET,
                               .to = b->model + p.at,
                               .width = p.size,
                               .height = 1,
                               .value = value,
                               .unit = unit});
}

static void set_bytes(struct worker *w)
{
    set_units(w, 1);
}

static void set_words(struct worker *w)
{
    set_units(w, 4);
}

static void set_memory(struct worker *w)
{
    set_units(w, 1u << pick(w, 3));
}

static void launch(struct worker *w)
{
    struct buffer *b = any_device(w);
    struct part p = part(w, b->bytes < 65536 ? b->bytes : 65536, 4);
    if (p.size == 0)
        return;
    CUdeviceptr values = b->device + p.at;
    int n = (int)(p.size / 4);
    void *parameters[] = {&values, &n};
    CU(cuLaunchKernel(increment, (unsigned)(n + 127) / 128, 1, 1, 128, 1, 1, 0, stream_of(w),
                      parameters, NULL));
    happens(
        w, (struct action){.what = INCREMENT, .to = b->model + p.at, .width = p.size, .height = 1});
}

static void copy_on_device(struct worker *w)
{
    unsigned from = pick(w, DEVICE_BUFFERS),
             to = (from + 1 + pick(w, DEVICE_BUFFERS - 1)) % DEVICE_BUFFERS;
    struct buffer *a = &w->device[from], *b = &w->device[to];
    size_t bytes = a->bytes < b->bytes ? a->bytes : b->bytes;
    struct part p = part(w, bytes, 1);
    if (pick(w, 2))
        CU(cuMemcpyDtoDAsync(b->device + p.at, a->device + p.at, p.size, stream_of(w)));
    else
        CU(cuMemcpyAsync(b->device + p.at, a->device + p.at, p.size, stream_of(w)));
    happens(w, (struct action){.what = COPY,
                               .to = b->model + p.at,
                               .from = a->model + p.at,
                               .width = p.size,
                               .height = 1});
}

/* There or back; what lies there is modelled, too. */
static void copy_to_other_device(struct worker *w)
{
    struct buffer *b = any_device(w), *far = &w->far;
    if (!far->device)
        return;
    bool back = pick(w, 2);
    const struct buffer *from = back ? far : b, *to = back ? b : far;
    struct part p = part(w, b->bytes < far->bytes ? b->bytes : far->bytes, 1);
    CU(cuMemcpyPeerAsync(to->device + p.at, back ? driver_context : other_context,
                         from->device + p.at, back ? other_context : driver_context, p.size,
                         stream_of(w)));
    happens(w, (struct action){.what = COPY,
                               .to = to->model + p.at,
                               .from = from->model + p.at,
                               .width = p.size,
                               .height = 1});
}

/* The legacy stream is not in the order of ours: alone, and waited for. */
static void copy_blocking(struct worker *w, struct buffer *d, struct buffer *h, struct part p,
                          bool to_device)
{
    wait_all(w);
    if (to_device) {
        CU(cuMemcpyHtoD(d->device + p.at, h->host + p.at, p.size));
        CU(cuStreamSynchronize(CU_STREAM_LEGACY));
        memcpy(d->model + p.at, h->model + p.at, p.size);
    } else {
        CU(cuMemcpyDtoH(h->host + p.at, d->device + p.at, p.size));
        memcpy(h->model + p.at, d->model + p.at, p.size);
        compare(w, "host memory behind a blocking copy", h->host, h);
    }
}

static void copy_with_host(struct worker *w)
{
    struct buffer *d = any_device(w), *h = &w->host[pick(w, HOST_BUFFERS)];
    size_t bytes = d->bytes < h->bytes ? d->bytes : h->bytes;
    bool to_device = pick(w, 2);
    if (w->capturing) { /* what is not pinned cannot be captured */
        if (h->kind == PAGEABLE || w->graph_host_copies == GRAPH_HOST_COPIES)
            return;
        w->graph_host_copies++;
        bytes = bytes < GRAPH_HOST_BYTES ? bytes : GRAPH_HOST_BYTES;
    }
    struct part p = part(w, bytes, 1);
    if (!w->capturing && pick(w, 8) == 0) {
        copy_blocking(w, d, h, p, to_device);
        return;
    }
    if (to_device)
        CU(cuMemcpyHtoDAsync(d->device + p.at, h->host + p.at, p.size, stream_of(w)));
    else
        CU(cuMemcpyDtoHAsync(h->host + p.at, d->device + p.at, p.size, stream_of(w)));
    happens(w, (struct action){.what = COPY,
                               .to = (to_device ? d : h)->model + p.at,
                               .from = (to_device ? h : d)->model + p.at,
                               .width = p.size,
                               .height = 1});
    /* pageable memory has been read when the call returns, and may change at once */
    if (to_device && h->kind == PAGEABLE && !h->busy && pick(w, 2))
        host_fill(w, h);
    else
        h->busy |= h->kind != PAGEABLE || !to_device;
}

static void CUDA_CB count_call(void *called)
{
    __atomic_add_fetch((unsigned *)called, 1, __ATOMIC_RELEASE);
}

static void call_host(struct worker *w)
{
    CU(cuLaunchHostFunc(stream_of(w), count_call, &w->called));
    w->calls_wanted++;
}

static void check_device(struct worker *w)
{
    struct buffer *b = any_device(w);
    uint8_t *found = check_alloc(b->bytes);
    CU(cuMemcpyDtoHAsync(found, b->device, b->bytes, stream_of(w)));
    wait_all(w);
    compare(w, "device memory", found, b);
    free(found);
}

#endif
