#include "module.h"

#include <stdlib.h>
#include <string.h>

#include "fatbin.h"
#include "gpw_handlers.h"
#include "sha256.h"

/* What one session may have uploaded and not yet loaded. */
#define PENDING_BYTES_MAX GP_IMAGE_BYTES_MAX
#define KNOWN_MIN 1024u

struct image {
    struct image *next;
    uint8_t hash[32];
    uint64_t total, received;
    unsigned char *bytes;
};

struct known {
    CUfunction function;
    struct gp_parameter *parameters;
    uint32_t count, bytes, local;
};

struct gpw_modules {
    struct image *images;
    uint64_t pending_bytes;
    struct known *known; /* open addressing by the function's address */
    uint32_t known_room, known_count;
};

int gpw_modules_open(struct gpw_session *s)
{
    s->modules = calloc(1, sizeof *s->modules);
    return s->modules ? 0 : -1;
}

/* --- parameters ------------------------------------------------------------ */

static void known_clear(struct gpw_modules *m)
{
    for (uint32_t i = 0; i < m->known_room; i++)
        free(m->known[i].parameters);
    free(m->known);
    m->known = NULL;
    m->known_room = m->known_count = 0;
}

void gpw_modules_context_ended(struct gpw_session *s)
{
    known_clear(s->modules);
}

static struct known *known_at(struct known *table, uint32_t room, CUfunction function)
{
    uint64_t hash = ((uint64_t)function >> 4) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t i = (uint32_t)(hash >> 32) & (room - 1);
    while (table[i].function && table[i].function != function)
        i = (i + 1) & (room - 1);
    return &table[i];
}

/* Room for one more; false when there is no memory. */
static bool known_grow(struct gpw_modules *m)
{
    if (m->known_room && m->known_count < m->known_room / 2)
        return true;
    uint32_t room = m->known_room ? 2 * m->known_room : KNOWN_MIN;
    struct known *more = calloc(room, sizeof *more);
    if (!more)
        return false;
    for (uint32_t i = 0; i < m->known_room; i++)
        if (m->known[i].function)
            *known_at(more, room, m->known[i].function) = m->known[i];
    free(m->known);
    m->known = more;
    m->known_room = room;
    return true;
}

/* One parameter, asked of a CUfunction or, where it is one, a CUkernel: that needs no
 * context, and a program's first launch looks its kernel up before there is one. */
static CUresult parameter(struct gpw_session *s, CUfunction f, size_t i, size_t *offset, size_t *size)
{
    CUresult r = s->driver->cuFuncGetParamInfo(f, i, offset, size);
    if (r == CUDA_ERROR_INVALID_HANDLE || r == CUDA_ERROR_INVALID_CONTEXT)
        r = s->driver->cuKernelGetParamInfo((CUkernel)f, i, offset, size);
    return r;
}

static uint32_t local_bytes_of(struct gpw_session *s, CUfunction f)
{
    int bytes = 0;
    CUresult r = s->driver->cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f);
    return r == CUDA_SUCCESS && bytes > 0 ? (uint32_t)bytes : 0;
}

static CUresult ask_parameters(struct gpw_session *s, CUfunction f, struct known *k)
{
    struct gp_parameter list[GP_PARAMETERS_MAX];
    uint32_t count = 0, bytes = 0;
    for (; count < GP_PARAMETERS_MAX; count++) {
        size_t offset, size;
        CUresult r = parameter(s, f, count, &offset, &size);
        if (r == CUDA_ERROR_INVALID_VALUE)
            break; /* there are no more */
        if (r != CUDA_SUCCESS)
            return r;
        if (offset > GP_PARAMETER_BYTES_MAX || size > GP_PARAMETER_BYTES_MAX - offset)
            return CUDA_ERROR_INVALID_IMAGE;
        list[count] = (struct gp_parameter){(uint32_t)offset, (uint32_t)size};
        if (offset + size > bytes)
            bytes = (uint32_t)(offset + size);
    }
    k->parameters = malloc((count ? count : 1) * sizeof *list);
    if (!k->parameters)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(k->parameters, list, count * sizeof *list);
    k->function = f;
    k->count = count;
    k->bytes = bytes;
    k->local = local_bytes_of(s, f);
    return CUDA_SUCCESS;
}

CUresult gpw_parameters_of(struct gpw_session *s, CUfunction function, struct gpw_parameters *out)
{
    struct gpw_modules *m = s->modules;
    if (!known_grow(m))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct known *k = known_at(m->known, m->known_room, function);
    if (!k->function) {
        CUresult r = ask_parameters(s, function, k);
        if (r != CUDA_SUCCESS)
            return r;
        m->known_count++;
    }
    *out = (struct gpw_parameters){k->count, k->bytes, k->local, k->parameters};
    return CUDA_SUCCESS;
}

/* --- images ------------------------------------------------------------------ */

static struct image **image_find(struct gpw_modules *m, const uint8_t *hash)
{
    struct image **at = &m->images;
    while (*at && memcmp((*at)->hash, hash, 32) != 0)
        at = &(*at)->next;
    return at;
}

static void image_drop(struct gpw_modules *m, struct image **at)
{
    struct image *image = *at;
    *at = image->next;
    m->pending_bytes -= image->total;
    free(image->bytes);
    free(image);
}

void gpw_modules_close(struct gpw_session *s)
{
    while (s->modules && s->modules->images)
        image_drop(s->modules, &s->modules->images);
    if (s->modules)
        known_clear(s->modules);
    free(s->modules);
    s->modules = NULL;
}

static struct image *image_new(struct gpw_session *s, const uint8_t *hash, uint64_t total)
{
    struct gpw_modules *m = s->modules;
    if (total == 0 || total > PENDING_BYTES_MAX - m->pending_bytes) {
        gpw_log("warn", "an image of %llu bytes is refused: a session may have %llu MiB under way",
                (unsigned long long)total, (unsigned long long)(PENDING_BYTES_MAX >> 20));
        return NULL;
    }
    struct image *image = calloc(1, sizeof *image);
    if (!image || !(image->bytes = malloc(total))) {
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
    if (!image && offset == 0 && !(image = image_new(s, hash, total)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!image) /* its beginning was refused */
        return CUDA_ERROR_OUT_OF_MEMORY;
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
        image_drop(s->modules, at);
        gpw_session_broken(s, "an image is not what its hash says");
        *r = CUDA_ERROR_INVALID_IMAGE;
        return NULL;
    }
    if (fault != GP_IMAGE_SOUND) {
        gpw_log("warn", "an image is refused: %s", gp_image_fault_text(fault));
        image_drop(s->modules, at);
        *r = CUDA_ERROR_INVALID_IMAGE;
        return NULL;
    }
    return at;
}

/* --- JIT options --------------------------------------------------------------- */

#define OPTIONS_MAX 48

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

CUresult gpw_gp_module_load(struct gpw_session *s, CUmodule *module, const uint8_t *hash,
                            uint32_t option_count, const uint64_t *options, uint32_t info_size,
                            uint32_t error_size, uint32_t *state, int32_t *load_result,
                            float *wall_time, char *info_log, uint32_t *n_info_log, char *error_log, uint32_t *n_error_log)
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
    if (!jit_fill(&jit, option_count, options, info_log, info_size, error_log, error_size))
        return CUDA_ERROR_INVALID_VALUE;
    r = s->driver->cuModuleLoadDataEx(module, (*image)->bytes, jit.count, jit.names, jit.values);
    *wall_time = jit_wall_time(&jit);
    *n_info_log = jit_written(&jit, jit.info_size_at, info_log, info_size);
    *n_error_log = jit_written(&jit, jit.error_size_at, error_log, error_size);
    image_drop(s->modules, image);
    *load_result = (int32_t)r; /* an answer, so that the logs travel with it */
    return CUDA_SUCCESS;
}

CUresult gpw_gp_library_load(struct gpw_session *s, CUlibrary *library, const uint8_t *hash,
                             uint32_t option_count, const uint64_t *options,
                             uint32_t library_option_count, const uint64_t *library_options,
                             uint32_t info_size, uint32_t error_size, uint32_t *state,
                             int32_t *load_result, float *wall_time, char *info_log, uint32_t *n_info_log,
                             char *error_log, uint32_t *n_error_log)
{
    struct jit jit;
    CUlibraryOption names[4];
    void *values[4];
    CUresult r;
    *n_info_log = *n_error_log = 0;
    struct image **image = image_take(s, hash, state, &r);
    if (!image)
        return r;
    if (info_size)
        *info_log = '\0';
    if (error_size)
        *error_log = '\0';
    if (library_option_count > 4 ||
        !jit_fill(&jit, option_count, options, info_log, info_size, error_log, error_size))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned count = 0;
    for (uint32_t i = 0; i < library_option_count; i++) {
        if (library_options[2 * i] == CU_LIBRARY_BINARY_IS_PRESERVED)
            continue; /* the client's copy may be; ours is not */
        names[count] = (CUlibraryOption)library_options[2 * i];
        values[count++] = (void *)(uintptr_t)library_options[2 * i + 1];
    }
    r = s->driver->cuLibraryLoadData(library, (*image)->bytes, jit.names, jit.values, jit.count,
                                     names, values, count);
    *wall_time = jit_wall_time(&jit);
    *n_info_log = jit_written(&jit, jit.info_size_at, info_log, info_size);
    *n_error_log = jit_written(&jit, jit.error_size_at, error_log, error_size);
    image_drop(s->modules, image);
    *load_result = (int32_t)r; /* an answer, so that the logs travel with it */
    return CUDA_SUCCESS;
}

CUresult gpw_cuModuleUnload(struct gpw_session *s, CUmodule hmod)
{
    known_clear(s->modules); /* addresses of functions may come again */
    return s->driver->cuModuleUnload(hmod);
}

CUresult gpw_cuLibraryUnload(struct gpw_session *s, CUlibrary library)
{
    known_clear(s->modules);
    return s->driver->cuLibraryUnload(library);
}

/* --- functions ------------------------------------------------------------------- */

/* The largest block, 0 where the driver does not say without a context. */
static int32_t max_threads_of(struct gpw_session *s, CUfunction f)
{
    int threads = 0;
    CUresult r =
        s->driver->cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f);
    return r == CUDA_SUCCESS ? threads : 0;
}

/* Load now what the driver would load at the first launch: a launch must not block. */
static CUresult load_kernel(struct gpw_session *s, CUkernel kernel)
{
    CUcontext context = NULL;
    CUfunction function;
    s->driver->cuCtxGetCurrent(&context);
    if (!context || s->driver->cuKernelGetFunction(&function, kernel) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    CUresult r = s->driver->cuFuncLoad(function);
    return r == CUDA_ERROR_NOT_SUPPORTED ? CUDA_SUCCESS : r;
}

static CUresult give_parameters(struct gpw_session *s, CUfunction function,
                                struct gp_parameter *parameters, uint32_t *bytes)
{
    struct gpw_parameters p;
    CUresult r = gpw_parameters_of(s, function, &p);
    *bytes = 0;
    if (r != CUDA_SUCCESS)
        return r;
    memcpy(parameters, p.at, p.count * sizeof *parameters);
    *bytes = (uint32_t)(p.count * sizeof *parameters);
    return CUDA_SUCCESS;
}

CUresult gpw_gp_module_get_function(struct gpw_session *s, CUfunction *function, CUmodule module,
                                    const char *name, int32_t *max_threads,
                                    struct gp_parameter *parameters, uint32_t *n_parameters)
{
    CUresult r = s->driver->cuModuleGetFunction(function, module, name);
    if (r == CUDA_SUCCESS && s->driver->cuFuncLoad(*function) == CUDA_ERROR_OUT_OF_MEMORY)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        *max_threads = max_threads_of(s, *function);
    return r ? r : give_parameters(s, *function, parameters, n_parameters);
}

CUresult gpw_gp_library_get_kernel(struct gpw_session *s, CUkernel *kernel, CUlibrary library,
                                   const char *name, int32_t *max_threads,
                                   struct gp_parameter *parameters, uint32_t *n_parameters)
{
    CUresult r = s->driver->cuLibraryGetKernel(kernel, library, name);
    if (r == CUDA_SUCCESS)
        r = load_kernel(s, *kernel);
    if (r == CUDA_SUCCESS)
        *max_threads = max_threads_of(s, (CUfunction)*kernel);
    return r ? r : give_parameters(s, (CUfunction)*kernel, parameters, n_parameters);
}

/* Append a name and its NUL; false when there is no room for it. */
static bool name_add(char *names, uint32_t room, uint32_t *used, const char *name)
{
    size_t n = strlen(name) + 1;
    if (n > room - *used)
        return false;
    memcpy(names + *used, name, n);
    *used += (uint32_t)n;
    return true;
}

CUresult gpw_gp_module_names(struct gpw_session *s, CUmodule module, uint32_t skip, char *names,
                             uint32_t *n_names)
{
    unsigned count = 0;
    uint32_t room = *n_names;
    *n_names = 0;
    CUresult r = s->driver->cuModuleGetFunctionCount(&count, module);
    CUfunction *list = r == CUDA_SUCCESS ? calloc(count ? count : 1, sizeof *list) : NULL;
    if (r == CUDA_SUCCESS && !list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        r = s->driver->cuModuleEnumerateFunctions(list, count, module);
    for (unsigned i = skip; r == CUDA_SUCCESS && i < count; i++) {
        const char *name;
        r = s->driver->cuFuncGetName(&name, list[i]);
        if (r == CUDA_SUCCESS && !name_add(names, room, n_names, name))
            break;
    }
    free(list);
    return r;
}

CUresult gpw_gp_library_names(struct gpw_session *s, CUlibrary library, uint32_t skip, char *names,
                              uint32_t *n_names)
{
    unsigned count = 0;
    uint32_t room = *n_names;
    *n_names = 0;
    CUresult r = s->driver->cuLibraryGetKernelCount(&count, library);
    CUkernel *list = r == CUDA_SUCCESS ? calloc(count ? count : 1, sizeof *list) : NULL;
    if (r == CUDA_SUCCESS && !list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        r = s->driver->cuLibraryEnumerateKernels(list, count, library);
    for (unsigned i = skip; r == CUDA_SUCCESS && i < count; i++) {
        const char *name;
        r = s->driver->cuKernelGetName(&name, list[i]);
        if (r == CUDA_SUCCESS && !name_add(names, room, n_names, name))
            break;
    }
    free(list);
    return r;
}
