#include "module.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "budget.h"
#include "fatbin.h"
#include "function.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "image_bytes.h"
#include "image_look.h"
#include "image_store.h"
#include "jit_options.h"
#include "memory.h"

/* What one session may have uploaded and not yet loaded. */
#define PENDING_BYTES_MAX GP_IMAGE_BYTES_MAX

struct gpw_modules {
    struct gpw_image *images;
    uint64_t pending_bytes;
    bool may_print, print; /* kernels of some image; one that was launched */
    uint64_t *silent;      /* modules and libraries whose kernels do not print; some are gone */
    uint32_t silent_count, silent_room;
};

int gpw_modules_open(struct gpw_session *s)
{
    s->modules = calloc(1, sizeof *s->modules);
    return s->modules ? 0 : -1;
}

/* --- printing ---------------------------------------------------------------- */

bool gpw_modules_print(const struct gpw_session *s)
{
    return s->modules->print;
}

static uint64_t *silent_find(const struct gpw_modules *m, uint64_t real)
{
    for (uint32_t i = 0; i < m->silent_count; i++)
        if (m->silent[i] == real)
            return &m->silent[i];
    return NULL;
}

/* Where there is no memory for it, it may print. */
static void silent_add(struct gpw_modules *m, uint64_t real)
{
    if (silent_find(m, real))
        return;
    if (m->silent_count == m->silent_room) {
        uint32_t room = m->silent_room ? 2 * m->silent_room : 64;
        uint64_t *more = realloc(m->silent, room * sizeof *more);
        if (!more)
            return;
        m->silent = more;
        m->silent_room = room;
    }
    m->silent[m->silent_count++] = real;
}

/* A module or library was loaded, perhaps at the address of one that is gone. */
static void note_loaded(struct gpw_modules *m, uint64_t real, bool prints)
{
    uint64_t *known = prints ? silent_find(m, real) : NULL;
    if (known)
        *known = m->silent[--m->silent_count];
    if (!prints)
        silent_add(m, real);
    m->may_print |= prints;
}

bool gpw_function_prints(struct gpw_session *s, CUfunction function)
{
    struct gpw_modules *m = s->modules;
    CUmodule module = NULL;
    CUlibrary library = NULL;
    if (!m->may_print)
        return false; /* nor may it later: its image is loaded */
    if (s->driver->cuFuncGetModule(&module, function) == CUDA_SUCCESS)
        return !silent_find(m, (uint64_t)module);
    return s->driver->cuKernelGetLibrary(&library, (CUkernel)function) != CUDA_SUCCESS ||
           !silent_find(m, (uint64_t)library);
}

void gpw_modules_launched(struct gpw_session *s, bool prints)
{
    if (!prints || s->modules->print)
        return;
    s->modules->print = true;
    gpw_event_page_print(s);
}

/* --- images ------------------------------------------------------------------ */

static struct gpw_image **image_find(struct gpw_modules *m, const uint8_t *hash)
{
    struct gpw_image **at = &m->images;
    while (*at && memcmp((*at)->hash, hash, 32) != 0)
        at = &(*at)->next;
    return at;
}

/* The image, no longer in the list; its charge stays. */
static struct gpw_image *image_unlink(struct gpw_session *s, struct gpw_image **at)
{
    struct gpw_image *image = *at;
    *at = image->next;
    s->modules->pending_bytes -= image->total;
    gpw_image_bytes_free(image);
    return image;
}

static void image_drop(struct gpw_session *s, struct gpw_image **at)
{
    struct gpw_image *image = image_unlink(s, at);
    gpw_budget_give(s, GPW_USE_IMAGES, image->total);
    if (image->file >= 0)
        close(image->file);
    free(image);
}

/* It has been loaded: what came from the client is offered to the store, and all else goes. */
static void image_loaded(struct gpw_session *s, const uint8_t *hash)
{
    struct gpw_image **at = image_find(s->modules, hash);
    if ((*at)->stored)
        gpw_image_store_used(s, hash);
    if ((*at)->file < 0) {
        image_drop(s, at);
        return;
    }
    struct gpw_image *image = image_unlink(s, at);
    gpw_image_store_offer(s, hash, image->total, image->file);
    free(image);
}

void gpw_modules_close(struct gpw_session *s)
{
    while (s->modules && s->modules->images)
        image_drop(s, &s->modules->images);
    if (s->modules)
        free(s->modules->silent);
    free(s->modules);
    s->modules = NULL;
    gpw_functions_forget(s);
}

/* `stored` has its bytes, -1: they come from the client. */
static struct gpw_image *image_new(struct gpw_session *s, const uint8_t *hash, uint64_t total,
                                   int stored)
{
    struct gpw_modules *m = s->modules;
    if (total == 0 || total > PENDING_BYTES_MAX - m->pending_bytes) {
        gpw_log("warn", "an image of %llu bytes is refused: a session may have %llu MiB under way",
                (unsigned long long)total, (unsigned long long)(PENDING_BYTES_MAX >> 20));
        return NULL;
    }
    if (!gpw_budget_take(s, GPW_USE_IMAGES, total))
        return NULL;
    struct gpw_image *image = calloc(1, sizeof *image);
    if (image)
        image->total = total;
    if (!image ||
        !(stored >= 0 ? gpw_image_bytes_stored(image, stored) : gpw_image_bytes_new(s, image))) {
        gpw_budget_give(s, GPW_USE_IMAGES, total);
        free(image);
        return NULL;
    }
    memcpy(image->hash, hash, 32);
    image->next = m->images;
    m->images = image;
    m->pending_bytes += total;
    return image;
}

CUresult gpw_gp_image_put(struct gpw_session *s, const uint8_t *hash, uint64_t total,
                          uint64_t offset, uint32_t bytes, const void *data)
{
    struct gpw_image *image = *image_find(s->modules, hash);
    if (image && image->received == image->total)
        return CUDA_SUCCESS; /* it is here already */
    if (!image && offset == 0)
        image = image_new(s, hash, total, -1);
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

void gpw_image_drop(struct gpw_session *s, const uint8_t *hash)
{
    image_drop(s, image_find(s->modules, hash));
}

/* What an earlier session has sent, or NULL. */
static struct gpw_image *image_from_store(struct gpw_session *s, const uint8_t *hash)
{
    uint64_t total;
    int file = gpw_image_store_find(s, hash, &total);
    if (file < 0)
        return NULL;
    struct gpw_image *image = image_new(s, hash, total, file);
    close(file);
    return image;
}

static enum gp_image_fault image_check(struct gpw_image *image)
{
    if (gp_image_sniff(image->bytes, image->total) == GP_IMAGE_KIND_FATBIN)
        return gp_fatbins_check(image->bytes, image->total, &image->fatbins);
    return gp_image_check(image->bytes, image->total, NULL);
}

/* NULL, with `state`: it has not come whole. */
static struct gpw_image *image_came(struct gpw_session *s, const uint8_t *hash, uint32_t *state)
{
    struct gpw_image *image = *image_find(s->modules, hash);
    if (!image)
        image = image_from_store(s, hash);
    bool whole = image && image->received == image->total;
    *state = whole ? GP_IMAGE_LOADED : GP_IMAGE_MISSING;
    return whole ? image : NULL;
}

/* The end of a look. False: the image is another than its hash says, and it is dropped. */
static bool image_genuine(struct gpw_image_look *look, uint32_t *state, CUresult *r)
{
    struct gpw_session *s = look->session;
    gpw_image_look_end(look);
    if (look->is_genuine)
        return true;
    if (look->image->stored) {
        gpw_log("warn", "an image that was kept is damaged; the client sends it again");
        *state = GP_IMAGE_MISSING;
        *r = CUDA_SUCCESS;
    } else {
        gpw_session_broken(s, "an image is not what its hash says");
        *r = CUDA_ERROR_INVALID_IMAGE;
    }
    gpw_image_drop(s, look->image->hash);
    return false;
}

static CUresult image_refuse(struct gpw_session *s, const struct gpw_image *image,
                             enum gp_image_fault fault)
{
    gpw_log("warn", "an image is refused: %s", gp_image_fault_text(fault));
    gpw_image_drop(s, image->hash);
    return CUDA_ERROR_INVALID_IMAGE;
}

const struct gpw_image *gpw_image_take(struct gpw_session *s, const uint8_t *hash, bool sound,
                                       uint32_t *state, CUresult *r)
{
    struct gpw_image *image = image_came(s, hash, state);
    struct gpw_image_look look;
    *r = CUDA_SUCCESS;
    if (!image)
        return NULL;
    gpw_image_look_begin(&look, s, image, false);
    enum gp_image_fault fault = sound ? image_check(image) : GP_IMAGE_SOUND;
    if (!image_genuine(&look, state, r))
        return NULL;
    if (fault != GP_IMAGE_SOUND) {
        *r = image_refuse(s, image, fault);
        return NULL;
    }
    return image;
}

/* --- loading ------------------------------------------------------------------ */

#define LIBRARY_OPTIONS_MAX 4

/* How a program has fat binaries that its driver is to link. */
struct wrapper {
    uint32_t magic, version;
    const void *linked;
    const void *const *prelinked; /* up to a NULL */
    const void *list[];
};

static struct wrapper *wrapper_new(const struct gpw_image *image)
{
    struct wrapper *w = calloc(1, sizeof *w + image->fatbins * sizeof w->list[0]);
    if (!w)
        return NULL;
    *w = (struct wrapper){GP_FATBIN_WRAPPER_MAGIC, 2, image->bytes, w->list};
    uint64_t size = 0;
    const unsigned char *at = image->bytes;
    for (uint32_t i = 0; i + 1 < image->fatbins; i++) {
        gp_fatbin_size(at, image->total - (uint64_t)(at - image->bytes), &size);
        w->list[i] = at += size;
    }
    return w;
}

/* A module or a library, whichever is asked for. The one option of libraries that is no
 * pointer says that the client's copy stays: ours does not, so it is not passed on. */
static CUresult load(struct gpw_session *s, CUmodule *module, CUlibrary *library,
                     const struct gpw_image *image, struct gpw_jit_options *jit)
{
    struct wrapper *w = image->fatbins > 1 ? wrapper_new(image) : NULL;
    if (image->fatbins > 1 && !w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const void *code = w ? (const void *)w : image->bytes;
    CUresult r = module ? s->driver->cuModuleLoadDataEx(module, code, jit->count, jit->names,
                                                        jit->values)
                        : s->driver->cuLibraryLoadData(library, code, jit->names, jit->values,
                                                       jit->count, NULL, NULL, 0);
    free(w);
    return r;
}

/* What was loaded is not what the program asked for. */
static void unload(struct gpw_session *s, CUmodule *module, CUlibrary *library)
{
    if (module) {
        s->driver->cuModuleUnload(*module);
        *module = NULL;
    } else {
        s->driver->cuLibraryUnload(*library);
        *library = NULL;
    }
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
    struct gpw_jit_options jit;
    struct gpw_image_look look;
    CUresult r, damage;
    *n_info_log = *n_error_log = 0;
    struct gpw_image *image = image_came(s, hash, state);
    if (!image)
        return CUDA_SUCCESS;
    if (!library_options_known(library_option_count, library_options) ||
        !gpw_jit_take(&jit, option_count, options))
        return CUDA_ERROR_INVALID_VALUE;
    gpw_jit_ask(&jit, info_log, info_size, error_log, error_size);
    gpw_image_look_begin(&look, s, image, s->transport->caps & GP_CAP_SHARE);
    enum gp_image_fault fault = image_check(image);
    r = fault == GP_IMAGE_SOUND ? load(s, module, library, image, &jit) : CUDA_ERROR_INVALID_IMAGE;
    if (!image_genuine(&look, state, &damage)) {
        if (r == CUDA_SUCCESS)
            unload(s, module, library);
        return damage;
    }
    if (fault != GP_IMAGE_SOUND)
        return image_refuse(s, image, fault);
    if (r == CUDA_SUCCESS)
        note_loaded(s->modules, module ? (uint64_t)*module : (uint64_t)*library, look.prints);
    *wall_time = gpw_jit_wall_time(&jit);
    *n_info_log = gpw_jit_written(info_log, info_size);
    *n_error_log = gpw_jit_written(error_log, error_size);
    gpw_handle_next_image(s, r == CUDA_SUCCESS ? image->total : 0);
    if (r == CUDA_SUCCESS)
        image_loaded(s, hash);
    else
        gpw_image_drop(s, hash);
    *load_result = (int32_t)r; /* an answer, so that the logs travel with it */
    return CUDA_SUCCESS;
}
