/* What is asked of kernels and functions, and set on them. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "module.h"
#include "session.h"

/* The shadow, or the error. */
static struct gpc_kernel *enter(uint16_t op, CUfunction f, enum gpc_needs needs, CUresult *r)
{
    *r = gpc_enter(op, needs);
    if (*r != CUDA_SUCCESS)
        return NULL;
    struct gpc_kernel *k = gpc_kernel_of(f);
    if (!k)
        *r = CUDA_ERROR_INVALID_HANDLE;
    return k;
}

GPC_EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    CUresult r;
    struct gpc_kernel *k =
        enter(GP_OP_cuKernelGetFunction, (CUfunction)kernel, GPC_NEEDS_CONTEXT, &r);
    if (!k)
        return r;
    if (!pFunc)
        return CUDA_ERROR_INVALID_VALUE;
    if (!k->image->is_library || k->kernel)
        return CUDA_ERROR_INVALID_HANDLE;
    return gpc_leave(gpc_kernel_function(k, pFunc));
}

GPC_EXPORT CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    CUresult r;
    struct gpc_kernel *k = enter(GP_OP_cuKernelGetLibrary, (CUfunction)kernel, GPC_NEEDS_INIT, &r);
    if (!k)
        return r;
    if (!pLib)
        return CUDA_ERROR_INVALID_VALUE;
    if (!k->image->is_library)
        return CUDA_ERROR_INVALID_HANDLE;
    *pLib = (CUlibrary)k->image->id;
    return CUDA_SUCCESS;
}

static CUresult get_name(uint16_t op, const char **name, CUfunction f)
{
    CUresult r;
    struct gpc_kernel *k = enter(op, f, GPC_NEEDS_INIT, &r);
    if (!k)
        return r;
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = k->name;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    return get_name(GP_OP_cuKernelGetName, name, (CUfunction)hfunc);
}

GPC_EXPORT CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    return get_name(GP_OP_cuFuncGetName, name, hfunc);
}

static CUresult get_parameter(uint16_t op, CUfunction f, size_t index, size_t *offset, size_t *size)
{
    CUresult r;
    struct gpc_kernel *k = enter(op, f, GPC_NEEDS_INIT, &r);
    if (!k)
        return r;
    if (!offset || index >= k->count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = k->parameters[index].offset;
    if (size)
        *size = k->parameters[index].size;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                         size_t *paramSize)
{
    return get_parameter(GP_OP_cuKernelGetParamInfo, (CUfunction)kernel, paramIndex, paramOffset,
                         paramSize);
}

GPC_EXPORT CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                                       size_t *paramSize)
{
    return get_parameter(GP_OP_cuFuncGetParamInfo, func, paramIndex, paramOffset, paramSize);
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

/* Frameworks set the same attribute to the same value before every launch. */
static bool set_already(struct gpc_kernel *k, unsigned attribute, int value, CUdevice device)
{
    return attribute < GPC_SET_ATTRIBUTES && (k->set_mask >> attribute & 1) &&
           k->set_value[attribute] == value && k->set_device[attribute] == device;
}

static void set_note(struct gpc_kernel *k, unsigned attribute, int value, CUdevice device)
{
    if (attribute >= GPC_SET_ATTRIBUTES)
        return;
    k->set_value[attribute] = value;
    k->set_device[attribute] = device;
    k->set_mask |= 1u << attribute;
}

/* What CUDA refuses at once: too much dynamic shared memory, read-only attributes. */
static CUresult check_set(CUfunction f, CUfunction_attribute attribute, int value, CUdevice device)
{
    if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
        attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return CUDA_SUCCESS;
    const struct gp_device_info *d = gpc_device_info(device);
    int fixed = 0;
    if (!d || value < 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_wire_cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f);
    if (r != CUDA_SUCCESS)
        return r;
    int most = d->attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] - fixed;
    return value <= most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GPC_EXPORT CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    CUresult r;
    struct gpc_kernel *k = enter(GP_OP_cuFuncSetAttribute, hfunc, GPC_NEEDS_CONTEXT, &r);
    if (!k)
        return r;
    CUdevice device = gpc_context_device(gpc_current());
    if (set_already(k, (unsigned)attrib, value, device))
        return CUDA_SUCCESS;
    if ((r = check_set(hfunc, attrib, value, device)) != CUDA_SUCCESS)
        return r;
    r = gpc_wire_cuFuncSetAttribute(hfunc, attrib, value);
    if (r == CUDA_SUCCESS)
        set_note(k, (unsigned)attrib, value, device);
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                         CUdevice dev)
{
    CUresult r;
    struct gpc_kernel *k =
        enter(GP_OP_cuKernelSetAttribute, (CUfunction)kernel, GPC_NEEDS_INIT, &r);
    if (!k)
        return r;
    if (set_already(k, (unsigned)attrib, val, dev))
        return CUDA_SUCCESS;
    if (!gpc_device_info(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (attrib < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || attrib >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    r = gpc_wire_cuKernelSetAttribute(attrib, val, kernel, dev);
    if (r == CUDA_SUCCESS)
        set_note(k, (unsigned)attrib, val, dev);
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    CUresult r = gpc_enter(GP_OP_cuFuncSetCacheConfig, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_wire_cuFuncSetCacheConfig(hfunc, config));
}
