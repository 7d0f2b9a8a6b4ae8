/*
 * Linking: the driver's state, with the options it writes into. The handle's number stands for a
 * record of ours; it is looked up in the list of them, and goes with its context.
 */
#include "link.h"

#include <stdlib.h>
#include <string.h>

#include "fatbin.h"
#include "gpw_handlers.h"
#include "green.h"
#include "jit_options.h"
#include "module.h"

#define LOG_MAX (1u << 18)

struct gpw_link {
    struct gpw_link *next;
    CUlinkState state; /* the driver's */
    CUcontext context;
    struct gpw_jit_options options; /* the driver writes into it in later calls */
    uint64_t charged;
    const char *cubin; /* the driver's, NULL until it is complete */
    size_t cubin_bytes;
    char logs[];
};

static bool charge(struct gpw_session *s, struct gpw_link *link, uint64_t bytes)
{
    if (!gpw_budget_take(s, GPW_USE_OBJECTS, bytes))
        return false;
    link->charged += bytes;
    return true;
}

static void drop(struct gpw_session *s, struct gpw_link **at)
{
    struct gpw_link *link = *at;
    *at = link->next;
    gpw_budget_give(s, GPW_USE_OBJECTS, link->charged);
    free(link);
}

void gpw_links_context_ended(struct gpw_session *s, CUcontext context)
{
    for (struct gpw_link **at = &s->links; *at;)
        if ((*at)->context == context) {
            s->driver->cuLinkDestroy((*at)->state);
            drop(s, at);
        } else {
            at = &(*at)->next;
        }
}

static struct gpw_link *link_new(struct gpw_session *s, uint64_t logs)
{
    struct gpw_link *link = calloc(1, sizeof *link + logs);
    if (link && !charge(s, link, sizeof *link + logs)) {
        free(link);
        link = NULL;
    }
    return link;
}

CUresult gpw_gp_link_create(struct gpw_session *s, CUlinkState *link, uint32_t option_count,
                            const uint64_t *options, uint32_t info_size, uint32_t error_size)
{
    if (info_size > LOG_MAX || error_size > LOG_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpw_link *made = link_new(s, (uint64_t)info_size + error_size);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->next = s->links;
    s->links = made;
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    if (gpw_jit_take(&made->options, option_count, options)) {
        struct gpw_jit_options *o = &made->options;
        gpw_jit_ask(o, made->logs, info_size, made->logs + info_size, error_size);
        r = s->driver->cuLinkCreate_v2(o->count, o->names, o->values, &made->state);
    }
    if (r != CUDA_SUCCESS) {
        drop(s, &s->links);
        return r;
    }
    s->driver->cuCtxGetCurrent(&made->context);
    made->context = gpw_context_root(s, made->context);
    *link = (CUlinkState)made;
    return CUDA_SUCCESS;
}

/* The logs as far as they go now: the driver adds to them. */
static void tell(const struct gpw_link *link, CUresult r, struct gp_linked *said, char *info_log,
                 uint32_t *n_info_log, char *error_log, uint32_t *n_error_log)
{
    const struct gpw_jit_options *o = &link->options;
    float wall_time = gpw_jit_wall_time(o);
    uint32_t info = gpw_jit_written(o->info, o->info_room);
    uint32_t error = gpw_jit_written(o->error, o->error_room);
    *n_info_log = info < *n_info_log ? info : *n_info_log;
    *n_error_log = error < *n_error_log ? error : *n_error_log;
    memcpy(info_log, o->info, *n_info_log);
    memcpy(error_log, o->error, *n_error_log);
    said->result = (int32_t)r; /* an answer, so that the logs travel with it */
    said->threads = gpw_jit_threads(o);
    said->cubin_bytes = link->cubin_bytes;
    memcpy(&said->wall_time, &wall_time, sizeof wall_time);
}

/* A driver may read these by what their headers say. */
static bool must_be_sound(uint32_t type)
{
    return type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_FATBINARY;
}

/* What goes on as text is text, or a cubin or fat binary that is sound, as CuPy adds one and drivers
 * take it: nothing with pointers in it. Fat binaries are added one by one. */
static bool is_what_it_says(uint32_t type, const struct gpw_image *image)
{
    if (image->fatbins > 1)
        return false;
    return type != CU_JIT_INPUT_PTX ||
           gp_image_sniff(image->bytes, image->total) == GP_IMAGE_KIND_PTX ||
           gp_image_check(image->bytes, image->total, NULL) == GP_IMAGE_SOUND;
}

CUresult gpw_gp_link_add(struct gpw_session *s, CUlinkState state, uint32_t type,
                         const uint8_t *hash, const char *name, uint32_t option_count,
                         const uint64_t *options, uint32_t info_size, uint32_t error_size,
                         struct gp_linked *said, char *info_log, uint32_t *n_info_log,
                         char *error_log, uint32_t *n_error_log)
{
    (void)info_size;
    (void)error_size;
    struct gpw_link *link = (struct gpw_link *)state;
    struct gpw_jit_options own;
    CUresult r;
    const struct gpw_image *image = gpw_image_take(s, hash, must_be_sound(type), &said->state, &r);
    if (!image && r == CUDA_SUCCESS) /* it is missing, and `said` says so */
        *n_info_log = *n_error_log = 0;
    if (!image)
        return r;
    if (!is_what_it_says(type, image))
        r = CUDA_ERROR_INVALID_IMAGE;
    else if (link->cubin || !gpw_jit_take(&own, option_count, options))
        r = CUDA_ERROR_INVALID_VALUE;
    else if (!charge(s, link, image->total)) /* the driver keeps what it needs of it */
        r = CUDA_ERROR_OUT_OF_MEMORY;
    else
        r = s->driver->cuLinkAddData_v2(link->state, (CUjitInputType)type, image->bytes,
                                        image->total, *name ? name : NULL, own.count, own.names,
                                        own.values);
    gpw_image_drop(s, hash);
    tell(link, r, said, info_log, n_info_log, error_log, n_error_log);
    return CUDA_SUCCESS;
}

CUresult gpw_gp_link_complete(struct gpw_session *s, CUlinkState state, uint32_t info_size,
                              uint32_t error_size, struct gp_linked *said, char *info_log,
                              uint32_t *n_info_log, char *error_log, uint32_t *n_error_log)
{
    (void)info_size;
    (void)error_size;
    struct gpw_link *link = (struct gpw_link *)state;
    void *cubin = NULL;
    size_t bytes = 0;
    CUresult r = s->driver->cuLinkComplete(link->state, &cubin, &bytes);
    if (r == CUDA_SUCCESS && (!cubin || !bytes))
        r = CUDA_ERROR_UNKNOWN;
    if (r == CUDA_SUCCESS && !link->cubin && !charge(s, link, bytes))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS) {
        link->cubin = cubin;
        link->cubin_bytes = bytes;
    }
    tell(link, r, said, info_log, n_info_log, error_log, n_error_log);
    return CUDA_SUCCESS;
}

CUresult gpw_gp_link_read(struct gpw_session *s, CUlinkState state, uint64_t offset, uint32_t bytes,
                          void *data, uint32_t *n_data)
{
    (void)s;
    const struct gpw_link *link = (struct gpw_link *)state;
    if (!link->cubin || offset > link->cubin_bytes || bytes > link->cubin_bytes - offset)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(data, link->cubin + offset, bytes);
    *n_data = bytes;
    return CUDA_SUCCESS;
}

CUresult gpw_cuLinkDestroy(struct gpw_session *s, CUlinkState state)
{
    struct gpw_link **at = &s->links;
    while (*at && *at != (struct gpw_link *)state)
        at = &(*at)->next;
    if (!*at)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult r = s->driver->cuLinkDestroy((*at)->state);
    drop(s, at);
    return r;
}
