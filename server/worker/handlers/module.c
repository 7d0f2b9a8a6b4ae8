#include "module.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "fatbin.h"
#include "function.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "sha256.h"

/* What one session may have uploaded and not yet loaded. */
#define PENDING_BYTES_MAX GP_IMAGE_BYTES_MAX

struct image {
    struct image *next;
    uint8_t hash[32];
    uint64_t total, received;
    unsigned char *bytes;
};

struct gpw_modules {
    struct image *images;
    uint64_t pending_bytes;
};

int gpw_modules_open(struct gpw_session *s)
{
    s->modules = calloc(1, sizeof *s->modules);
    return s->modules ? 0 : -1;
}

/* --- images ------------------------------------------------------------------ */

static struct image **image_find(struct gpw_modules *m, const uint8_t *hash)
{
    struct image **at = &m->images;
    while (*at && memcmp((*at)->hash, hash, 32) != 0)
        at = &(*at)->next;
    return at;
}

static void image_drop(struct gpw_session *s, struct image **at)
{
    struct gpw_modules *m = s->modules;
    struct image *image = *at;
    *at = image->next;
    m->pending_bytes -= image->total;
    gpw_budget_give(s, GPW_USE_IMAGES, image->total);
    free(image->bytes);
    free(image);
}

void gpw_modules_close(struct gpw_session *s)
{
    while (s->modules && s->modules->images)
        image_drop(s, &s->modules->images);
    free(s->modules);
    s->modules = NULL;
    gpw_functions_forget(s);
}

static struct image *image_new(struct gpw_session *s, const uint8_t *hash, uint64_t total)
{
    struct gpw_modules *m = s->modules;
    if (total == 0 || total > PENDING_BYTES_MAX - m->pending_bytes) {
        gpw_log("warn", "an image of %llu bytes is refused: a session may have %llu MiB under way",
                (unsigned long long)total, (unsigned long long)(PENDING_BYTES_MAX >> 20));
        return NULL;
    }
    if (!gpw_budget_take(s, GPW_USE_IMAGES, total))
        return NULL;
    struct image *image = calloc(1, sizeof *image);
    if (!image || !(image->bytes = malloc(total))) {
        gpw_budget_give(s, GPW_USE_IMAGES, total);
        free(image);
        return NULL;
    }
    memcpy(image->hash, hash, 32);
    image->total = total;
    image->next = m->images;
    m->images = image;
    m->pending_bytes += total;
    return image;
}

CUresult gpw_gp_image_put(struct gpw_session *s, const uint8_t *hash, uint64_t total,
                          uint64_t offset, uint32_t bytes, const void *data)
{
    struct image *image = *image_find(s->modules, hash);
    if (image && image->received == image->total)
        return CUDA_SUCCESS; /* it is here already */
    if (!image && offset == 0)
        image = image_new(s, hash, total);
    if (!image) /* refused, or its beginning was: the load finds none, and that is its error */
        return CUDA_SUCCESS;
    if (image->total != total || image->received != offset || bytes > total - offset) {
        gpw_session_broken(s, "the pieces of an image do not follow each other");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    memcpy(image->bytes + offset, data, bytes);
    image->received += bytes;
    return CUDA_SUCCESS;
}

/* The image, checked, or NULL with `state` or an error. */
static struct image **image_take(struct gpw_session *s, const uint8_t *hash, uint32_t *state,
                                 CUresult *r)
{
    struct image **at = image_find(s->modules, hash);
    *r = CUDA_SUCCESS;
    *state = GP_IMAGE_LOADED;
    if (!*at || (*at)->received != (*at)->total) {
        *state = GP_IMAGE_MISSING;
        return NULL;
    }
    struct gp_sha256 h;
    unsigned char real[32];
    gp_sha256_start(&h);
    gp_sha256_add(&h, (*at)->bytes, (*at)->total);
    gp_sha256_finish(&h, real);
    enum gp_image_fault fault = gp_image_check((*at)->bytes, (*at)->total, NULL);
    if (memcmp(real, hash, 32) != 0) {
        image_drop(s, at);
        gpw_session_broken(s, "an image is not what its hash says");
        *r = CUDA_ERROR_INVALID_IMAGE;
        return NULL;
    }
    if (fault != GP_IMAGE_SOUND) {
        gpw_log("warn", "an image is refused: %s", gp_image_fault_text(fault));
        image_drop(s, at);
        *r = CUDA_ERROR_INVALID_IMAGE;
        return NULL;
    }
    return at;
}

/* --- JIT options --------------------------------------------------------------- */

#define OPTIONS_MAX 48
#define LIBRARY_OPTIONS_MAX 4

struct jit {
    CUjit_option names[OPTIONS_MAX];
    void *values[OPTIONS_MAX];
    unsigned count;
    int wall_time_at, info_size_at, error_size_at;
};

/* Options that are a number; the rest are pointers, and not for the wire. */
static bool option_is_value(uint64_t option)
{
    switch (option) {
    case CU_JIT_MAX_REGISTERS:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_OPTIMIZATION_LEVEL:
    case CU_JIT_TARGET_FROM_CUCONTEXT:
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_GENERATE_DEBUG_INFO:
    case CU_JIT_LOG_VERBOSE:
    case CU_JIT_GENERATE_LINE_INFO:
    case CU_JIT_CACHE_MODE:
    case CU_JIT_POSITION_INDEPENDENT_CODE:
    case CU_JIT_MIN_CTA_PER_SM:
    case CU_JIT_MAX_THREADS_PER_BLOCK:
    case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
        return true;
    default:
        return false;
    }
}

static int jit_add(struct jit *jit, CUjit_option name, uint64_t value)
{
    jit->names[jit->count] = name;
    jit->values[jit->count] = (void *)(uintptr_t)value;
    return (int)jit->count++;
}

static bool jit_fill(struct jit *jit, uint32_t count, const uint64_t *options, char *info,
                     uint32_t info_size, char *error, uint32_t error_size)
{
    jit->count = 0;
    jit->info_size_at = jit->error_size_at = -1;
    for (uint32_t i = 0; i < count; i++) {
        if (jit->count >= OPTIONS_MAX - 6 || !option_is_value(options[2 * i]))
            return false;
        jit_add(jit, (CUjit_option)options[2 * i], options[2 * i + 1]);
    }
    jit->wall_time_at = jit_add(jit, CU_JIT_WALL_TIME, 0);
    if (info_size) {
        jit_add(jit, CU_JIT_INFO_LOG_BUFFER, (uint64_t)(uintptr_t)info);
        jit->info_size_at = jit_add(jit, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, info_size);
    }
    if (error_size) {
        jit_add(jit, CU_JIT_ERROR_LOG_BUFFER, (uint64_t)(uintptr_t)error);
        jit->error_size_at = jit_add(jit, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error_size);
    }
    return true;
}

/* The driver leaves in the size options how much it has written. */
static uint32_t jit_written(const struct jit *jit, int at, const char *log, uint32_t room)
{
    if (at < 0)
        return 0;
    (void)jit;
    uint32_t n = (uint32_t)strnlen(log, room);
    return n < room ? n + 1 : room;
}

static float jit_wall_time(const struct jit *jit)
{
    float ms;
    memcpy(&ms, &jit->values[jit->wall_time_at], sizeof ms);
    return ms;
}

/* A module or a library, whichever is asked for. The one option of libraries that is no
 * pointer says that the client's copy stays: ours does not, so it is not passed on. */
static CUresult load(struct gpw_session *s, CUmodule *module, CUlibrary *library,
                     const struct image *image, struct jit *jit)
{
    return module ? s->driver->cuModuleLoadDataEx(module, image->bytes, jit->count, jit->names,
                                                  jit->values)
                  : s->driver->cuLibraryLoadData(library, image->bytes, jit->names, jit->values,
                                                 jit->count, NULL, NULL, 0);
}

static bool library_options_known(uint32_t count, const uint64_t *options)
{
    for (uint32_t i = 0; i < count && count <= LIBRARY_OPTIONS_MAX; i++)
        if (options[2 * i] != CU_LIBRARY_BINARY_IS_PRESERVED)
            return false;
    return count <= LIBRARY_OPTIONS_MAX;
}

CUresult gpw_image_load(struct gpw_session *s, CUmodule *module, CUlibrary *library,
                        const uint8_t *hash, uint32_t option_count, const uint64_t *options,
                        uint32_t library_option_count, const uint64_t *library_options,
                        uint32_t info_size, uint32_t error_size, uint32_t *state,
                        int32_t *load_result, float *wall_time, char *info_log,
                        uint32_t *n_info_log, char *error_log, uint32_t *n_error_log)
{
    struct jit jit;
    CUresult r;
    *n_info_log = *n_error_log = 0;
    struct image **image = image_take(s, hash, state, &r);
    if (!image)
        return r;
    if (info_size)
        *info_log = '\0';
    if (error_size)
        *error_log = '\0';
    if (!library_options_known(library_option_count, library_options) ||
        !jit_fill(&jit, option_count, options, info_log, info_size, error_log, error_size))
        return CUDA_ERROR_INVALID_VALUE;
    r = load(s, module, library, *image, &jit);
    *wall_time = jit_wall_time(&jit);
    *n_info_log = jit_written(&jit, jit.info_size_at, info_log, info_size);
    *n_error_log = jit_written(&jit, jit.error_size_at, error_log, error_size);
    gpw_handle_next_image(s, r == CUDA_SUCCESS ? (*image)->total : 0);
    image_drop(s, image);
    *load_result = (int32_t)r; /* an answer, so that the logs travel with it */
    return CUDA_SUCCESS;
}
