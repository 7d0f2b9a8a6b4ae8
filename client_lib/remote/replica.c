#include "replica.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "image.h"
#include "session.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- sources -------------------------------------------------------------- */

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(bytes ? bytes : 1);
    if (copy && bytes)
        memcpy(copy, from, bytes);
    return copy;
}

static bool is_preserved(const struct gpc_load *load)
{
    for (unsigned i = 0; i < load->library_option_count; i++)
        if (load->library_options[i] == CU_LIBRARY_BINARY_IS_PRESERVED)
            return !load->library_values || load->library_values[i];
    return false;
}

/* Logs are for the first load alone. */
static bool is_for_log(CUjit_option option)
{
    return option == CU_JIT_WALL_TIME || option == CU_JIT_INFO_LOG_BUFFER ||
           option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || option == CU_JIT_ERROR_LOG_BUFFER ||
           option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
}

static bool keep_options(struct gpc_source *s, const struct gpc_load *load)
{
    unsigned n = load->option_count, m = load->library_option_count;
    s->options = calloc(n + 1, sizeof *s->options);
    s->values = calloc(n + 1, sizeof *s->values);
    s->library_options = copy_of(load->library_options, m * sizeof *s->library_options);
    s->library_values = calloc(m + 1, sizeof *s->library_values);
    if (!s->options || !s->values || !s->library_options || !s->library_values)
        return false;
    for (unsigned i = 0; i < n; i++) {
        if (is_for_log(load->options[i]))
            continue;
        s->options[s->load.option_count] = load->options[i];
        s->values[s->load.option_count++] = load->values[i];
    }
    if (load->library_values)
        memcpy(s->library_values, load->library_values, m * sizeof *s->library_values);
    s->load.options = s->options;
    s->load.values = s->values;
    s->load.library_option_count = m;
    s->load.library_options = s->library_options;
    s->load.library_values = s->library_values;
    return true;
}

CUresult gpc_source_keep(const struct gpc_load *load, struct gpc_source **source)
{
    *source = NULL;
    if (gpc_session_count() < 2)
        return CUDA_SUCCESS;
    struct gpc_source *s = calloc(1, sizeof *s);
    struct gpc_image image;
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_SUCCESS;
    s->load.image = load->image;
    if (!is_preserved(load) && (r = gpc_image_describe(load->image, &image)) == CUDA_SUCCESS) {
        s->load.image = s->copy = copy_of(image.pieces[0].data, (size_t)image.pieces[0].size);
        gpc_image_release(&image);
    }
    if (r == CUDA_SUCCESS && (!s->load.image || !keep_options(s, load)))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        gpc_source_free(s);
        return r;
    }
    *source = s;
    return CUDA_SUCCESS;
}

void gpc_source_free(struct gpc_source *source)
{
    if (!source)
        return;
    free(source->copy);
    free(source->options);
    free(source->values);
    free(source->library_options);
    free(source->library_values);
    free(source);
}

/* --- replicas ---------------------------------------------------------------- */

/* The library as this session has it. Under `lock`. */
static CUresult library_in(struct gpc_image_shadow *image, const struct gpc_route *on,
                           uint64_t *wire)
{
    const struct gpc_session *s = on->session;
    if (gpc_session_of_handle(image->id) != s && !image->replicas[s->index]) {
        if (!image->source)
            return CUDA_ERROR_INVALID_HANDLE;
        CUresult r = gpc_image_load(on, GP_OP_cuLibraryLoadData, &image->source->load, true,
                                    &image->replicas[s->index]);
        if (r != CUDA_SUCCESS) {
            image->replicas[s->index] = 0;
            return r;
        }
    }
    *wire = gpc_session_of_handle(image->id) == s ? image->id : image->replicas[s->index];
    return CUDA_SUCCESS;
}

static CUresult kernel_in(struct gpc_kernel *k, const struct gpc_route *on, uint64_t *wire)
{
    const struct gpc_session *s = on->session;
    if (!k->replicas && !(k->replicas = calloc(GP_SESSIONS_MAX, sizeof *k->replicas)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!k->replicas[s->index]) {
        uint64_t library;
        CUresult r = library_in(k->image, on, &library);
        struct gp_parameter *parameters = malloc(GP_PARAMETERS_MAX * sizeof *parameters);
        if (r == CUDA_SUCCESS && !parameters)
            r = CUDA_ERROR_OUT_OF_MEMORY;
        struct gp_function_attributes attributes; /* asked for by device, when they are */
        uint32_t got;
        CUkernel made;
        if (r == CUDA_SUCCESS)
            r = gpc_wire_gp_library_get_kernel_on(on, &made, (CUlibrary)library, k->name, true,
                                                  &attributes, parameters, &got);
        free(parameters);
        if (r != CUDA_SUCCESS)
            return r;
        k->replicas[s->index] = (uint64_t)made;
    }
    *wire = k->replicas[s->index];
    return CUDA_SUCCESS;
}

/* The handle names its session, as most do. */
static CUresult plain(struct gpc_call *call, uint64_t id)
{
    struct gpc_session *s = gpc_session_of_handle(id);
    return gpc_route_take(&call->route, s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult gpc_replica_wire(struct gpc_call *call, enum gp_handle_kind kind, uint64_t id,
                          uint64_t *wire)
{
    void *shadow = gpc_handle_shadow(kind, id);
    struct gpc_kernel *k = kind == GP_HANDLE_FUNCTION ? shadow : NULL;
    struct gpc_image_shadow *image = kind == GP_HANDLE_LIBRARY ? shadow : NULL;
    /* a module's function, one made from a kernel, or a replica itself */
    if (k ? !k->image->is_library || k->kernel : !image)
        return plain(call, id);
    struct gpc_session *s = gpc_route_session(&call->route);
    if (!s || s == gpc_session_of_handle(id))
        return CUDA_SUCCESS;
    struct gpc_route on = gpc_route_to(s);
    on.context = call->route.context;
    pthread_mutex_lock(&lock);
    CUresult r = k ? kernel_in(k, &on, wire) : library_in(image, &on, wire);
    pthread_mutex_unlock(&lock);
    return r;
}

CUresult gpc_replica_unload(struct gpc_image_shadow *library)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < gpc_session_count(); i++) {
        struct gpc_session *s = gpc_session_at(i);
        bool home = gpc_session_of_handle(library->id) == s;
        if (!home && !library->replicas[i])
            continue;
        struct gpc_route on = gpc_route_to(s);
        CUresult one = gpc_wire_cuLibraryUnload_on(&on, (CUlibrary)library->id);
        if (home)
            r = one;
    }
    return r;
}
