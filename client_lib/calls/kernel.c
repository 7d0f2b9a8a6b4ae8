/* Kernels and functions: looked up once, then known. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "context.h"
#include "gpc_wire.h"
#include "handle.h"
#include "module.h"
#include "ranges.h"
#include "session.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct gpc_kernel *gpc_kernel_of(CUfunction function)
{
    return gpc_handle_shadow(GP_HANDLE_FUNCTION, (uint64_t)function);
}

struct gpc_image_shadow *gpc_image_shadow_new(uint64_t id, bool is_library)
{
    struct gpc_image_shadow *image = calloc(1, sizeof *image);
    if (!image)
        return NULL;
    image->id = id;
    image->is_library = is_library;
    image->context = gpc_context_owner(gpc_current());
    gpc_handle_attach(id, image);
    return image;
}

static void kernel_free(struct gpc_kernel *k)
{
    for (unsigned i = 0; k->replicas && i < GP_SESSIONS_MAX; i++)
        gpc_handle_drop(k->replicas[i]);
    free(k->replicas);
    free(k->settings);
    gpc_handle_drop((uint64_t)k->handle);
    gpc_attributes_free(k);
    if (!k->kernel) { /* a function made from a kernel shares these */
        free(k->name);
        free((void *)(uintptr_t)k->parameters);
    }
    free(k);
}

void gpc_image_shadow_free(struct gpc_image_shadow *image)
{
    if (!image)
        return;
    if (__atomic_load_n(&image->has_variables, __ATOMIC_RELAXED))
        gpc_range_image_ended(image->id);
    pthread_mutex_lock(&lock);
    /* functions made from kernels stand before them in the list */
    for (struct gpc_kernel *k = image->kernels, *next; k; k = next) {
        next = k->next;
        kernel_free(k);
    }
    image->kernels = NULL; /* a walk over libraries may come by */
    pthread_mutex_unlock(&lock);
    gpc_handle_free(image);
}

/* Nothing that does not fit a launch's message may be believed. */
static bool parameters_right(const struct gp_parameter *p, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (p[i].offset > GP_PARAMETER_BYTES_MAX ||
            p[i].size > GP_PARAMETER_BYTES_MAX - p[i].offset)
            return false;
    return true;
}

CUresult gpc_kernel_parameters(struct gpc_kernel *k, const struct gp_parameter *parameters,
                               uint32_t count)
{
    if (!parameters_right(parameters, count))
        return CUDA_ERROR_UNKNOWN;
    if (k->parameters) /* on every device the same */
        return CUDA_SUCCESS;
    struct gp_parameter *copy = malloc((count ? count : 1) * sizeof *copy);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, parameters, count * sizeof *copy);
    k->count = count;
    k->bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        if (copy[i].offset + copy[i].size > k->bytes)
            k->bytes = copy[i].offset + copy[i].size;
    __atomic_store_n(&k->parameters, copy, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

bool gpc_kernel_is_contextless(const struct gpc_kernel *k)
{
    return k->image->is_library && !k->kernel;
}

CUdevice gpc_kernel_device(const struct gpc_kernel *k)
{
    if (gpc_kernel_is_contextless(k))
        return gpc_context_device(gpc_current());
    return gpc_context_device(k->kernel ? k->context : k->image->context);
}

static struct gpc_kernel *known(const struct gpc_image_shadow *image, const char *name)
{
    for (struct gpc_kernel *k = image->kernels; k; k = k->next)
        if (!k->kernel && strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

static struct gpc_kernel *look_up(const struct gpc_image_shadow *image, const char *name,
                                  bool by_name)
{
    struct gpc_kernel *k = known(image, name);
    if (k && by_name)
        __atomic_store_n(&k->listed, false, __ATOMIC_RELAXED);
    return k;
}

/* What a look-up has answered. */
struct answer {
    CUfunction handle;
    struct gp_function_attributes attributes;
    struct gp_parameter *parameters;
    uint32_t count;
};

static CUresult ask(const struct gpc_image_shadow *image, const char *name, bool describe,
                    struct answer *a)
{
    uint32_t got = 0;
    CUresult r = image->is_library
                     ? gpc_wire_gp_library_get_kernel((CUkernel *)&a->handle, (CUlibrary)image->id,
                                                      name, describe, &a->attributes, a->parameters,
                                                      &got)
                     : gpc_wire_gp_module_get_function(&a->handle, (CUmodule)image->id, name,
                                                       describe, &a->attributes, a->parameters,
                                                       &got);
    a->count = got / sizeof *a->parameters;
    return r;
}

static CUresult kernel_new(struct gpc_image_shadow *image, const char *name, bool describe,
                           const struct answer *a, struct gpc_kernel **out)
{
    struct gpc_kernel *k = calloc(1, sizeof *k);
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    if (!k)
        return r;
    k->image = image;
    k->handle = a->handle;
    k->name = strdup(name);
    k->listed = !describe && !image->is_library;
    if (k->name)
        r = a->attributes.flags & GP_DESCRIBED_PARAMETERS
                ? gpc_kernel_parameters(k, a->parameters, a->count)
                : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS && !gpc_attributes_begin(k, gpc_kernel_device(k), &a->attributes))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        kernel_free(k); /* and its handle */
        return r;
    }
    *out = k;
    return CUDA_SUCCESS;
}

/* Add what was answered, unless another thread was faster. Under `lock`. */
static CUresult add(struct gpc_image_shadow *image, const char *name, bool describe,
                    const struct answer *a, struct gpc_kernel **out)
{
    if ((*out = look_up(image, name, describe)) != NULL) {
        gpc_handle_drop((uint64_t)a->handle);
        return CUDA_SUCCESS;
    }
    CUresult r = kernel_new(image, name, describe, a, out);
    if (r != CUDA_SUCCESS)
        return r;
    (*out)->next = image->kernels;
    image->kernels = *out;
    gpc_handle_attach((uint64_t)a->handle, *out);
    return CUDA_SUCCESS;
}

CUresult gpc_kernel_find(struct gpc_image_shadow *image, const char *name, bool describe,
                         struct gpc_kernel **out)
{
    pthread_mutex_lock(&lock);
    struct gpc_kernel *k = look_up(image, name, describe);
    pthread_mutex_unlock(&lock);
    if (k) {
        *out = k;
        return CUDA_SUCCESS;
    }
    struct answer a = {.parameters = malloc(GP_PARAMETERS_MAX * sizeof *a.parameters)};
    if (!a.parameters)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = ask(image, name, describe, &a);
    if (r == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        r = add(image, name, describe, &a, out);
        pthread_mutex_unlock(&lock);
    }
    free(a.parameters);
    return r;
}

/* --- functions of kernels ------------------------------------------------------- */

struct gpc_kernel *gpc_kernel_functions(const struct gpc_kernel *kernel)
{
    /* pairs with the release in function_new() */
    return __atomic_load_n(&kernel->functions, __ATOMIC_ACQUIRE);
}

static struct gpc_kernel *function_in(const struct gpc_kernel *kernel, CUcontext context)
{
    struct gpc_kernel *f = gpc_kernel_functions(kernel);
    while (f && __atomic_load_n(&f->context, __ATOMIC_RELAXED) != context)
        f = f->next_function;
    return f;
}

const struct gpc_kernel *gpc_kernel_here(const struct gpc_kernel *k, CUcontext context)
{
    const struct gpc_kernel *f = gpc_kernel_is_contextless(k) ? function_in(k, context) : k;
    return f ? f : k;
}

/* Under `lock`. */
static CUresult function_new(struct gpc_kernel *kernel, CUcontext context, CUfunction *out)
{
    struct gpc_kernel *f = malloc(sizeof *f);
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *f = *kernel;
    f->kernel = kernel;
    f->context = context;
    f->attributes = NULL;
    f->functions = NULL;
    f->replicas = NULL;
    f->settings = NULL;
    CUresult r = gpc_wire_cuKernelGetFunction(&f->handle, (CUkernel)kernel->handle);
    if (r != CUDA_SUCCESS) {
        free(f);
        return r;
    }
    gpc_attributes_inherit(f, gpc_context_device(context)); /* else they are asked for */
    f->next = kernel->image->kernels;
    kernel->image->kernels = f;
    f->next_function = kernel->functions;
    gpc_handle_attach((uint64_t)f->handle, f);
    __atomic_store_n(&kernel->functions, f, __ATOMIC_RELEASE);
    *out = f->handle;
    return CUDA_SUCCESS;
}

CUresult gpc_kernel_function(struct gpc_kernel *kernel, CUfunction *out)
{
    CUcontext context = gpc_current();
    const struct gpc_kernel *f = function_in(kernel, context);
    if (f) {
        *out = f->handle;
        return CUDA_SUCCESS;
    }
    CUresult r = gpc_attributes_ready(kernel, gpc_context_device(context), NULL);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    f = function_in(kernel, context); /* another thread may have been faster */
    if (f)
        *out = f->handle;
    else
        r = function_new(kernel, context, out);
    pthread_mutex_unlock(&lock);
    return r;
}

/* The functions that a library's kernels have been in a context are no more; a new context
 * may have the same number. They stay in their lists, because readers take no lock. */
static void library_context_ended(uint64_t id, void *shadow, void *arg)
{
    (void)id;
    const struct gpc_image_shadow *image = shadow;
    const CUcontext *context = arg;
    pthread_mutex_lock(&lock);
    for (struct gpc_kernel *k = image ? image->kernels : NULL; k; k = k->next)
        if (k->kernel && k->context == *context) {
            gpc_handle_drop((uint64_t)k->handle);
            __atomic_store_n(&k->context, NULL, __ATOMIC_RELAXED);
        } else if (!k->kernel) {
            gpc_attributes_context_ended(k, gpc_context_device(*context));
        }
    pthread_mutex_unlock(&lock);
}

void gpc_kernel_context_ended(CUcontext context)
{
    gpc_handle_each(GP_HANDLE_LIBRARY, library_context_ended, &context);
}
