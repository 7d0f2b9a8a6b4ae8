/* Libraries: images that belong to no context. */
#include <pthread.h>
#include <stdlib.h>

#include "call.h"
#include "context.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "managed.h"
#include "memory.h"
#include "module.h"
#include "replica.h"
#include "session.h"
#include "shared.h"

static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;

static struct gpc_image_shadow *library_of(CUlibrary library)
{
    return gpc_handle_shadow(GP_HANDLE_LIBRARY, (uint64_t)library);
}

static CUresult library_load(uint16_t op, CUlibrary *library, const struct gpc_load *what)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t id;
    struct gpc_source *source;
    if ((r = gpc_image_load(NULL, op, what, true, &id)) != CUDA_SUCCESS)
        return r;
    r = gpc_source_keep(what, &source);
    struct gpc_image_shadow *image = r == CUDA_SUCCESS ? gpc_image_shadow_new(id, true) : NULL;
    if (!image) {
        gpc_source_free(source);
        gpc_wire_cuLibraryUnload((CUlibrary)id);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    image->source = source;
    *library = (CUlibrary)id;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code,
                                      CUjit_option *jitOptions, void **jitOptionsValues,
                                      unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                      void **libraryOptionValues, unsigned int numLibraryOptions)
{
    return library_load(GP_OP_cuLibraryLoadData, library,
                        &(struct gpc_load){code, numJitOptions, jitOptions, jitOptionsValues,
                                           numLibraryOptions, libraryOptions, libraryOptionValues});
}

GPC_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName,
                                          CUjit_option *jitOptions, void **jitOptionsValues,
                                          unsigned int numJitOptions,
                                          CUlibraryOption *libraryOptions,
                                          void **libraryOptionValues,
                                          unsigned int numLibraryOptions)
{
    void *bytes;
    size_t size;
    CUresult r = gpc_enter(GP_OP_cuLibraryLoadFromFile, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS || (r = gpc_image_read(fileName, &bytes, &size)) != CUDA_SUCCESS)
        return r;
    r = library_load(GP_OP_cuLibraryLoadData, library,
                     &(struct gpc_load){bytes, numJitOptions, jitOptions, jitOptionsValues,
                                        numLibraryOptions, libraryOptions, libraryOptionValues});
    free(bytes);
    return r;
}

/* Forget what the library is in a context, or (NULL) in all. */
static void modules_drop(struct gpc_image_shadow *image, CUcontext context)
{
    pthread_mutex_lock(&modules_lock);
    for (struct gpc_library_module **at = &image->modules; *at;) {
        struct gpc_library_module *m = *at;
        if (context && m->context != context) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        gpc_handle_drop((uint64_t)m->handle);
        free(m);
    }
    pthread_mutex_unlock(&modules_lock);
}

static void context_ended(uint64_t id, void *shadow, void *context)
{
    (void)id;
    if (shadow)
        modules_drop(shadow, context);
}

void gpc_library_context_ended(CUcontext context)
{
    gpc_handle_each(GP_HANDLE_LIBRARY, context_ended, context);
}

GPC_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    CUresult r = gpc_enter(GP_OP_cuLibraryUnload, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_image_shadow *image = library_of(library);
    if (!image)
        return CUDA_ERROR_INVALID_HANDLE;
    r = gpc_replica_unload(image);
    if (r != CUDA_SUCCESS)
        return r;
    modules_drop(image, NULL);
    gpc_source_free(image->source);
    gpc_image_shadow_free(image);
    gpc_managed_variables_ended();
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    CUresult r = gpc_enter(GP_OP_cuLibraryGetKernel, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_image_shadow *image = library_of(library);
    if (!pKernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!image)
        return CUDA_ERROR_INVALID_HANDLE;
    struct gpc_kernel *k;
    r = gpc_kernel_find(image, name, true, &k);
    if (r == CUDA_SUCCESS)
        *pKernel = (CUkernel)k->handle;
    return gpc_leave(r);
}

static CUresult managed_here(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    CUdeviceptr at;
    size_t size;
    CUresult r = gpc_wire_cuLibraryGetManaged(&at, &size, library, name);
    if (r == CUDA_SUCCESS)
        r = gpc_memory_note_global((uint64_t)library, at, size);
    if (r == CUDA_SUCCESS && dptr)
        *dptr = at;
    if (r == CUDA_SUCCESS && bytes)
        *bytes = size;
    return r;
}

/* The runtime asks before it has any context: the bytes are then brought in the first device's. */
GPC_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                                        const char *name)
{
    CUresult r = gpc_enter(GP_OP_cuLibraryGetManaged, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if ((!dptr && !bytes) || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!library_of(library))
        return CUDA_ERROR_INVALID_HANDLE;
    struct gpc_thread *t = gpc_thread();
    CUcontext before = t->current;
    if (!before && (r = gpc_context_retain(0, &t->current)) != CUDA_SUCCESS)
        return r;
    r = managed_here(dptr, bytes, library, name);
    t->current = before;
    return gpc_leave(r);
}

/* The library's module in the current context, made once. Under `modules_lock`. */
static CUresult module_here(struct gpc_image_shadow *image, CUlibrary library, CUmodule *out)
{
    CUcontext context = gpc_current();
    struct gpc_library_module *m = image->modules;
    while (m && m->context != context)
        m = m->next;
    if (m) {
        *out = m->handle;
        return CUDA_SUCCESS;
    }
    CUmodule made;
    CUresult r = gpc_wire_cuLibraryGetModule(&made, library);
    if (r != CUDA_SUCCESS)
        return r;
    if (!(m = malloc(sizeof *m))) {
        gpc_handle_drop((uint64_t)made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *m = (struct gpc_library_module){image->modules, context, made};
    image->modules = m;
    gpc_handle_attach((uint64_t)made, image); /* its kernels are the library's */
    *out = made;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    CUresult r = gpc_enter(GP_OP_cuLibraryGetModule, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_image_shadow *image = library_of(library);
    if (!pMod)
        return CUDA_ERROR_INVALID_VALUE;
    if (!image)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&modules_lock);
    r = module_here(image, library, pMod);
    pthread_mutex_unlock(&modules_lock);
    return gpc_leave(r);
}
