/* What is asked of kernels and functions, and set on them. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "gpc_stubs.h"
#include "handle.h"
#include "its.h"
#include "module.h"
#include "session.h"

struct gpc_kernel *gpc_kernel_its(CUfunction f, CUresult *r)
{
    struct gpc_kernel *k = gpc_kernel_of(f);
    if (!k)
        *r = CUDA_ERROR_INVALID_HANDLE;
    return k;
}

/* The shadow, or the error. */
static struct gpc_kernel *enter(uint16_t op, CUfunction f, enum gpc_needs needs, CUresult *r)
{
    *r = gpc_enter(op, needs);
    return *r == CUDA_SUCCESS ? gpc_kernel_its(f, r) : NULL;
}

GPC_EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    CUresult r;
    struct gpc_kernel *k = enter(GP_OP_cuKernelGetFunction, (CUfunction)kernel, GPC_NEEDS_CONTEXT,
                                 &r);
    if (!k)
        return r;
    if (!pFunc)
        return CUDA_ERROR_INVALID_VALUE;
    if (!k->image->is_library || k->kernel)
        return CUDA_ERROR_INVALID_HANDLE;
    return gpc_leave(gpc_kernel_function(k, pFunc));
}

CUresult gpc_as_cuFuncGetParamInfo(uint16_t op, CUfunction func, size_t paramIndex,
                                   size_t *paramOffset, size_t *paramSize)
{
    CUresult r;
    struct gpc_kernel *k = enter(op, func, GPC_NEEDS_INIT, &r);
    if (!k)
        return r;
    if (gpc_kernel_is_contextless(k) && !gpc_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if ((r = gpc_attributes_parameters(k)) != CUDA_SUCCESS)
        return r;
    if (!paramOffset || paramIndex >= k->count)
        return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = k->parameters[paramIndex].offset;
    if (paramSize)
        *paramSize = k->parameters[paramIndex].size;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    CUresult r;
    struct gpc_kernel *k = enter(GP_OP_cuFuncGetModule, hfunc, GPC_NEEDS_CONTEXT, &r);
    if (!k)
        return r;
    if (!hmod)
        return CUDA_ERROR_INVALID_VALUE;
    if (k->image->is_library)
        return cuLibraryGetModule(hmod, (CUlibrary)k->image->id);
    *hmod = (CUmodule)k->image->id;
    return CUDA_SUCCESS;
}

/* --- attributes ------------------------------------------------------------------- */

static CUresult check_settable(CUfunction_attribute attribute)
{
    return attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
                   attribute >= CU_FUNC_ATTRIBUTE_MAX
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

/* As enter(), for a function or a kernel that stands for its function here. */
static struct gpc_kernel *enter_function(uint16_t op, CUfunction f, CUresult *r)
{
    struct gpc_kernel *k = enter(op, f, GPC_NEEDS_CONTEXT, r);
    if (!k || !gpc_kernel_is_contextless(k))
        return k;
    *r = gpc_kernel_function(k, &f);
    return *r == CUDA_SUCCESS ? gpc_kernel_of(f) : NULL;
}

GPC_EXPORT CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    CUresult r;
    struct gpc_kernel *k = enter_function(GP_OP_cuFuncGetAttribute, hfunc, &r);
    if (!k)
        return r;
    if (!pi)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_attribute_get(k, gpc_kernel_device(k), attrib, pi));
}

GPC_EXPORT CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel,
                                         CUdevice dev)
{
    CUresult r;
    struct gpc_kernel *k = enter(GP_OP_cuKernelGetAttribute, (CUfunction)kernel, GPC_NEEDS_INIT,
                                 &r);
    if (!k)
        return r;
    if (!pi)
        return CUDA_ERROR_INVALID_VALUE;
    if (!gpc_kernel_is_contextless(k))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!gpc_device_info(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    return gpc_leave(gpc_attribute_get(k, dev, attrib, pi));
}

GPC_EXPORT CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    CUresult r;
    struct gpc_kernel *k = enter_function(GP_OP_cuFuncSetAttribute, hfunc, &r);
    if (!k)
        return r;
    if ((r = check_settable(attrib)) != CUDA_SUCCESS)
        return r;
    return gpc_leave(gpc_attribute_set(k, gpc_kernel_device(k), attrib, value));
}

GPC_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                         CUdevice dev)
{
    CUresult r;
    struct gpc_kernel *k = enter(GP_OP_cuKernelSetAttribute, (CUfunction)kernel, GPC_NEEDS_INIT,
                                 &r);
    if (!k)
        return r;
    if (!gpc_kernel_is_contextless(k))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!gpc_device_info(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if ((r = check_settable(attrib)) != CUDA_SUCCESS)
        return r;
    return gpc_leave(gpc_attribute_set(k, dev, attrib, val));
}
