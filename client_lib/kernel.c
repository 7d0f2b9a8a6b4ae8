/* Kernels and functions: looked up once, then known. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "handle.h"
#include "module.h"
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
    image->context = gpc_current();
    gpc_handle_attach(id, image);
    return image;
}

static void kernel_free(struct gpc_kernel *k)
{
    for (unsigned i = 0; k->twins && i < GP_SESSIONS_MAX; i++)
        gpc_handle_drop(k->twins[i]);
    free(k->twins);
    gpc_handle_drop((uint64_t)k->handle);
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
    pthread_mutex_lock(&lock);
    /* functions made from kernels stand before them in the list */
    for (struct gpc_kernel *k = image->kernels, *next; k; k = next) {
        next = k->next;
        kernel_free(k);
    }
    pthread_mutex_unlock(&lock);
    free(image);
}

static struct gpc_kernel *kernel_new(struct gpc_image_shadow *image, CUfunction handle,
                                     const char *name, const struct gp_parameter *parameters,
                                     uint32_t count)
{
    struct gpc_kernel *k = calloc(1, sizeof *k);
    struct gp_parameter *copy = malloc((count ? count : 1) * sizeof *copy);
    char *own_name = strdup(name);
    if (!k || !copy || !own_name) {
        free(k);
        free(copy);
        free(own_name);
        return NULL;
    }
    memcpy(copy, parameters, count * sizeof *copy);
    k->image = image;
    k->handle = handle;
    k->name = own_name;
    k->parameters = copy;
    k->count = count;
    for (uint32_t i = 0; i < count; i++)
        if (copy[i].offset + copy[i].size > k->bytes)
            k->bytes = copy[i].offset + copy[i].size;
    return k;
}

static struct gpc_kernel *known(const struct gpc_image_shadow *image, const char *name)
{
    for (struct gpc_kernel *k = image->kernels; k; k = k->next)
        if (!k->kernel && strcmp(k->name, name) == 0)
            return k;
    return NULL;
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

CUresult gpc_kernel_find(struct gpc_image_shadow *image, const char *name, struct gpc_kernel **out)
{
    pthread_mutex_lock(&lock);
    struct gpc_kernel *k = known(image, name);
    pthread_mutex_unlock(&lock);
    if (k) {
        *out = k;
        return CUDA_SUCCESS;
    }
    struct gp_parameter *parameters = malloc(GP_PARAMETERS_MAX * sizeof *parameters);
    if (!parameters)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t got = 0;
    int32_t max_threads = 0;
    CUfunction handle = NULL;
    CUresult r = image->is_library
                     ? gpc_wire_gp_library_get_kernel((CUkernel *)&handle, (CUlibrary)image->id,
                                                      name, &max_threads, parameters, &got)
                     : gpc_wire_gp_module_get_function(&handle, (CUmodule)image->id, name,
                                                       &max_threads, parameters, &got);
    uint32_t count = got / sizeof *parameters;
    if (r == CUDA_SUCCESS && !parameters_right(parameters, count))
        r = CUDA_ERROR_UNKNOWN;
    if (r == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        *out = known(image, name); /* another thread may have been faster */
        if (*out) {
            gpc_handle_drop((uint64_t)handle);
        } else if ((k = kernel_new(image, handle, name, parameters, count)) != NULL) {
            k->max_threads = max_threads > 0 ? (unsigned)max_threads : UINT32_MAX;
            k->next = image->kernels;
            image->kernels = k;
            gpc_handle_attach((uint64_t)handle, k);
            *out = k;
        } else {
            r = CUDA_ERROR_OUT_OF_MEMORY;
        }
        pthread_mutex_unlock(&lock);
    }
    free(parameters);
    return r;
}

CUresult gpc_kernel_function(struct gpc_kernel *kernel, CUfunction *out)
{
    CUcontext context = gpc_current();
    pthread_mutex_lock(&lock);
    for (struct gpc_kernel *k = kernel->image->kernels; k; k = k->next)
        if (k->kernel == kernel && k->context == context) {
            *out = k->handle;
            pthread_mutex_unlock(&lock);
            return CUDA_SUCCESS;
        }
    struct gpc_kernel *f = malloc(sizeof *f);
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    if (f) {
        *f = *kernel;
        f->kernel = kernel;
        f->context = context;
        f->set_mask = 0;
        f->twins = NULL;
        r = gpc_wire_cuKernelGetFunction(&f->handle, (CUkernel)kernel->handle);
    }
    if (r == CUDA_SUCCESS) {
        f->next = kernel->image->kernels;
        kernel->image->kernels = f;
        gpc_handle_attach((uint64_t)f->handle, f);
        *out = f->handle;
    } else {
        free(f);
    }
    pthread_mutex_unlock(&lock);
    return r;
}
