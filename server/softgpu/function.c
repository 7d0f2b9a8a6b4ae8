/* Functions and their attributes. */
#include "softgpu.h"

#define A(name) CU_FUNC_ATTRIBUTE_##name

/* MAX_DYNAMIC_SHARED_SIZE_BYTES until someone sets it: what 48 KiB leave. */
#define NOT_SET (-1)

void sg_function_attributes_init(int *set)
{
    memset(set, 0, sizeof(int) * CU_FUNC_ATTRIBUTE_MAX);
    set[A(MAX_DYNAMIC_SHARED_SIZE_BYTES)] = NOT_SET;
    set[A(PREFERRED_SHARED_MEMORY_CARVEOUT)] = -1; /* CUDA's own "no preference" */
}

CUresult sg_function_attribute(int *value, CUfunction_attribute attribute,
                               const struct sg_function_info *info, const int *set)
{
    int left = (int)SG_SHARED_STATIC - (int)info->static_shared_bytes;
    switch (attribute) {
    case A(MAX_THREADS_PER_BLOCK):
        *value = (int)info->max_threads;
        return CUDA_SUCCESS;
    case A(SHARED_SIZE_BYTES):
        *value = (int)info->static_shared_bytes;
        return CUDA_SUCCESS;
    case A(CONST_SIZE_BYTES):
        *value = (int)info->constant_bytes;
        return CUDA_SUCCESS;
    case A(LOCAL_SIZE_BYTES):
        *value = (int)info->local_bytes;
        return CUDA_SUCCESS;
    case A(NUM_REGS):
        *value = (int)info->register_count;
        return CUDA_SUCCESS;
    case A(PTX_VERSION):
        *value = (int)info->ptx_target;
        return CUDA_SUCCESS;
    case A(BINARY_VERSION):
        *value = 90;
        return CUDA_SUCCESS;
    case A(MAX_DYNAMIC_SHARED_SIZE_BYTES):
        *value = set[attribute] == NOT_SET ? (left > 0 ? left : 0) : set[attribute];
        return CUDA_SUCCESS;
    case A(REQUIRED_CLUSTER_WIDTH):
    case A(REQUIRED_CLUSTER_HEIGHT):
    case A(REQUIRED_CLUSTER_DEPTH):
        *value = (int)info->cluster[attribute - A(REQUIRED_CLUSTER_WIDTH)];
        *value = *value ? *value : set[attribute];
        return CUDA_SUCCESS;
    default:
        if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        *value = set[attribute]; /* 0 unless it can be set */
        return CUDA_SUCCESS;
    }
}

CUresult sg_function_attribute_set(CUfunction_attribute attribute, int value,
                                   const struct sg_function_info *info, int *set)
{
    switch (attribute) {
    case A(MAX_DYNAMIC_SHARED_SIZE_BYTES):
        if (value < 0 || info->static_shared_bytes > SG_SHARED_OPTIN ||
            (unsigned)value > SG_SHARED_OPTIN - info->static_shared_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case A(PREFERRED_SHARED_MEMORY_CARVEOUT):
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case A(REQUIRED_CLUSTER_WIDTH):
    case A(REQUIRED_CLUSTER_HEIGHT):
    case A(REQUIRED_CLUSTER_DEPTH):
        if (info->cluster[0]) /* "it cannot be set at runtime" */
            return CUDA_ERROR_NOT_PERMITTED;
        if (value < 0)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case A(CLUSTER_SCHEDULING_POLICY_PREFERENCE):
        if (value < 0)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    case A(NON_PORTABLE_CLUSTER_SIZE_ALLOWED):
        value = value != 0;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    set[attribute] = value;
    return CUDA_SUCCESS;
}

#define FUNCTION_CHECK(handle)                                                                     \
    SG_LOCKED;                                                                                     \
    CUcontext context;                                                                             \
    CUfunction function;                                                                           \
    SG_TRY(sg_context_current(&context));                                                          \
    SG_TRY(sg_function_get(handle, context, &function));                                           \
    const struct sg_function_info *info __attribute__((unused)) = sg_function_info(function->code)

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    FUNCTION_CHECK(hfunc);
    if (!pi)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function->found && !function->loaded)
        return CUDA_ERROR_FUNCTION_NOT_LOADED;
    return sg_function_attribute(pi, attrib, info, function->attributes);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    FUNCTION_CHECK(hfunc);
    SG_TRY(sg_function_attribute_set(attrib, value, info, function->attributes));
    function->own |= 1u << attrib;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    FUNCTION_CHECK(hfunc);
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    FUNCTION_CHECK(hfunc);
    return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                              : CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    FUNCTION_CHECK(hfunc);
    if (!hmod)
        return CUDA_ERROR_INVALID_VALUE;
    *hmod = function->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    FUNCTION_CHECK(hfunc);
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = info->name;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                            size_t *paramSize)
{
    FUNCTION_CHECK(func);
    if (!paramOffset || paramIndex >= info->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = info->parameters[paramIndex].offset;
    if (paramSize)
        *paramSize = info->parameters[paramIndex].size;
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction hfunc)
{
    FUNCTION_CHECK(hfunc);
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = function->loaded ? CU_FUNCTION_LOADING_STATE_LOADED
                              : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction hfunc)
{
    FUNCTION_CHECK(hfunc);
    function->loaded = true;
    return CUDA_SUCCESS;
}
