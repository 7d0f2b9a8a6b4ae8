#include "module.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "handle.h"
#include "managed.h"
#include "memory.h"
#include "session.h"
#include "shared.h"

static struct gpc_image_shadow *module_of(CUmodule module)
{
    return gpc_handle_shadow(GP_HANDLE_MODULE, (uint64_t)module);
}

static CUresult load(uint16_t op, CUmodule *module, const struct gpc_load *what)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t id;
    if ((r = gpc_image_load(NULL, op, what, false, &id)) != CUDA_SUCCESS)
        return r;
    if (!gpc_image_shadow_new(id, false)) {
        gpc_wire_cuModuleUnload((CUmodule)id);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *module = (CUmodule)id;
    return CUDA_SUCCESS;
}

CUresult gpc_as_cuModuleLoadDataEx(uint16_t op, CUmodule *module, const void *image,
                                   unsigned int numOptions, CUjit_option *options,
                                   void **optionValues)
{
    return load(op, module,
                &(struct gpc_load){.image = image,
                                   .option_count = numOptions,
                                   .options = options,
                                   .values = optionValues});
}

GPC_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    void *bytes;
    size_t size;
    CUresult r = gpc_enter(GP_OP_cuModuleLoad, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS || (r = gpc_image_read(fname, &bytes, &size)) != CUDA_SUCCESS)
        return r;
    r = load(GP_OP_cuModuleLoadData, module, &(struct gpc_load){.image = bytes});
    free(bytes);
    return r;
}

GPC_EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
    CUresult r = gpc_enter(GP_OP_cuModuleUnload, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_image_shadow *image = module_of(hmod);
    if (!image)
        return CUDA_ERROR_INVALID_HANDLE;
    if (image->is_library) /* a library's own: it goes with the library */
        return CUDA_ERROR_NOT_PERMITTED;
    r = gpc_wire_cuModuleUnload(hmod);
    if (r == CUDA_SUCCESS) {
        gpc_image_shadow_free(image);
        gpc_managed_variables_ended();
    }
    return gpc_leave(r);
}

static void module_ended(uint64_t id, void *shadow, void *context)
{
    struct gpc_image_shadow *image = shadow;
    if (!image || image->is_library || image->context != context)
        return;
    gpc_handle_drop(id);
    gpc_image_shadow_free(image);
}

void gpc_module_context_ended(CUcontext context)
{
    gpc_handle_each(GP_HANDLE_MODULE, module_ended, context);
    gpc_library_context_ended(context);
    gpc_kernel_context_ended(context);
}

GPC_EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    CUresult r = gpc_enter(GP_OP_cuModuleGetFunction, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_image_shadow *image = module_of(hmod);
    if (!hfunc || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!image)
        return CUDA_ERROR_INVALID_HANDLE;
    struct gpc_kernel *k;
    r = gpc_kernel_find(image, name, true, &k);
    if (r == CUDA_SUCCESS && image->is_library)
        return gpc_leave(gpc_kernel_function(k, hfunc));
    if (r == CUDA_SUCCESS)
        *hfunc = k->handle;
    return gpc_leave(r);
}

/* --- every kernel of an image ------------------------------------------------- */

/* More than any image has, and than they need: all messages but the last are full. */
#define KERNELS_MOST (1u << 20)
#define MESSAGES_MOST 256u

/* Call visit for each name. The worker gives as many as one message holds. */
static CUresult each_name(struct gpc_image_shadow *image,
                          CUresult (*visit)(struct gpc_image_shadow *, const char *, void *),
                          void *arg)
{
    char *names = malloc(GP_NAMES_MAX);
    if (!names)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_SUCCESS;
    for (uint32_t seen = 0, asked = 0, got; r == CUDA_SUCCESS;) {
        r = image->is_library ? gpc_wire_gp_library_names((CUlibrary)image->id, seen, names, &got)
                              : gpc_wire_gp_module_names((CUmodule)image->id, seen, names, &got);
        if (r != CUDA_SUCCESS || got == 0 || names[got - 1] != '\0')
            break;
        for (const char *at = names; r == CUDA_SUCCESS && at < names + got; at += strlen(at) + 1) {
            r = visit(image, at, arg);
            seen++;
        }
        if (seen > KERNELS_MOST ||
            ++asked > MESSAGES_MOST) /* a worker that never comes to an end */
            r = CUDA_ERROR_UNKNOWN;
    }
    free(names);
    return r;
}

struct visit {
    gpc_private_visit function;
    void *user;
};

static CUresult visit_function(struct gpc_image_shadow *image, const char *name, void *arg)
{
    const struct visit *v = arg;
    struct gpc_kernel *k;
    CUfunction f;
    CUresult r = gpc_kernel_find(image, name, false, &k);
    if (r != CUDA_SUCCESS)
        return r;
    f = k->handle;
    if (image->is_library && (r = gpc_kernel_function(k, &f)) != CUDA_SUCCESS)
        return r;
    v->function(v->user, f, k->name);
    return CUDA_SUCCESS;
}

CUresult gpc_module_each_function(CUmodule module, gpc_private_visit visit, void *user)
{
    struct gpc_image_shadow *image = module_of(module);
    struct visit v = {visit, user};
    return image ? each_name(image, visit_function, &v) : CUDA_ERROR_INVALID_HANDLE;
}

struct list {
    CUfunction *to;
    unsigned room, count;
};

static CUresult list_add(struct gpc_image_shadow *image, const char *name, void *arg)
{
    struct list *list = arg;
    struct gpc_kernel *k;
    if (list->count == list->room)
        return CUDA_SUCCESS;
    CUresult r = gpc_kernel_find(image, name, false, &k);
    if (r == CUDA_SUCCESS)
        list->to[list->count++] = k->handle;
    return r;
}

CUresult gpc_image_enumerate(enum gp_handle_kind kind, uint64_t id, CUfunction *to, unsigned room)
{
    struct gpc_image_shadow *image = gpc_handle_shadow(kind, id);
    if (!image)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!to || room == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {to, room, 0};
    return each_name(image, list_add, &list);
}
