/* Libraries: PTX that every context gets its own module of, when it first asks. */
#include "softgpu.h"

#define LOG_SIZE 1024

static void library_free(CUlibrary library)
{
    for (size_t i = 0; i < library->kernel_count; i++)
        sg_handle_remove(&library->kernels[i]);
    sg_handle_remove(library);
    sg_module_free(library->code);
    free(library->kernels);
    free(library->ptx);
    free(library);
}

static CUresult make_kernels(CUlibrary library)
{
    size_t count = sg_module_function_count(library->code);
    library->kernels = calloc(count ? count : 1, sizeof(*library->kernels));
    if (!library->kernels)
        return CUDA_ERROR_OUT_OF_MEMORY;
    library->kernel_count = count;
    for (size_t i = 0; i < count; i++) {
        CUkernel kernel = &library->kernels[i];
        kernel->library = library;
        kernel->index = i;
        for (int d = 0; d < SG_MAX_DEVICES; d++)
            sg_function_attributes_init(kernel->attributes[d]);
        if (!sg_handle_add(kernel, SG_KERNEL))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult library_make(const void *image, size_t size, CUlibrary *out, char *log)
{
    CUlibrary library = calloc(1, sizeof(*library));
    if (!library)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sg_image_ptx(image, size, false, &library->ptx, &library->length, log,
                                   LOG_SIZE);
    if (result == CUDA_SUCCESS)
        result = sg_module_parse(library->ptx, library->length, &library->code, log, LOG_SIZE);
    if (result == CUDA_SUCCESS)
        result = make_kernels(library);
    if (result == CUDA_SUCCESS && !sg_handle_add(library, SG_LIBRARY))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        library_free(library);
        return result;
    }
    *out = library;
    return CUDA_SUCCESS;
}

static CUresult load(CUlibrary *out, const void *image, size_t size, unsigned count,
                     CUjit_option *options, void **values)
{
    SG_LOCKED;
    SG_READY();
    struct sg_jit_log report;
    char log[LOG_SIZE] = "";
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_jit_options(count, options, values, &report));
    CUresult result = library_make(image, size, out, log);
    sg_jit_report(&report, result == CUDA_SUCCESS ? "" : log);
    if (result != CUDA_SUCCESS && log[0])
        sg_complain("cannot load a library: %s", log);
    return result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                           void **jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    (void)libraryOptions; /* host functions of unified pointers, a hint about lifetime */
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    return load(library, code, SIZE_MAX, numJitOptions, jitOptions, jitOptionsValues);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    char *bytes;
    size_t size;
    SG_READY();
    if (!library || !fileName)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_image_read(fileName, &bytes, &size));
    uint32_t magic = 0;
    memcpy(&magic, bytes, size < 4 ? size : 4);
    CUresult result = magic == 0x466243B1u
                          ? CUDA_ERROR_INVALID_IMAGE
                          : load(library, bytes, size, numJitOptions, jitOptions, jitOptionsValues);
    free(bytes);
    return result;
}

static CUmodule find_module(CUcontext context, CUlibrary library)
{
    for (CUmodule m = context->modules; m; m = m->next)
        if (m->library == library)
            return m;
    return NULL;
}

/* The library's module in a context, loaded if need be. */
static CUresult module_in(CUlibrary library, CUcontext context, CUmodule *out)
{
    char log[LOG_SIZE] = "";
    *out = find_module(context, library);
    if (*out)
        return CUDA_SUCCESS;
    CUresult result = sg_module_load(context, library->ptx, library->length, library, out, log,
                                     sizeof(log));
    if (result != CUDA_SUCCESS) {
        if (log[0])
            sg_complain("cannot load a library: %s", log);
        return result;
    }
    for (size_t i = 0; i < (*out)->function_count; i++)
        memcpy((*out)->functions[i].attributes,
               library->kernels[i].attributes[context->device->ordinal],
               sizeof((*out)->functions[i].attributes));
    return CUDA_SUCCESS;
}

CUresult sg_function_get(CUfunction handle, CUcontext context, CUfunction *out)
{
    CUmodule module;
    if (sg_handle_is(handle, SG_FUNCTION)) {
        *out = handle;
        return CUDA_SUCCESS;
    }
    if (!sg_handle_is(handle, SG_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    CUkernel kernel = (CUkernel)(void *)handle;
    SG_TRY(module_in(kernel->library, context, &module));
    *out = &module->functions[kernel->index];
    (*out)->found = true;
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(library, SG_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (CUcontext c = sg.contexts; c; c = c->next) {
        if (!c->alive || !find_module(c, library))
            continue;
        sg_context_wait(c);
        CUmodule module = c->alive ? find_module(c, library) : NULL;
        if (module)
            sg_module_unload(module);
    }
    if (!sg_handle_is(library, SG_LIBRARY)) /* another thread was faster */
        return CUDA_ERROR_INVALID_HANDLE;
    library_free(library);
    return CUDA_SUCCESS;
}

#define LIBRARY_CHECK(library)                                                                     \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(library, SG_LIBRARY))                                                        \
    return CUDA_ERROR_INVALID_HANDLE

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    LIBRARY_CHECK(library);
    if (!pKernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_function *code = sg_module_function(library->code, name);
    for (size_t i = 0; code && i < library->kernel_count; i++)
        if (sg_module_function_at(library->code, i) == code) {
            *pKernel = &library->kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    LIBRARY_CHECK(lib);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned)lib->kernel_count;
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    LIBRARY_CHECK(lib);
    if (!kernels || !numKernels)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numKernels && i < lib->kernel_count; i++)
        kernels[i] = &lib->kernels[i];
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    LIBRARY_CHECK(library);
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pMod)
        return CUDA_ERROR_INVALID_VALUE;
    return module_in(library, context, pMod);
}

static CUresult variable(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name,
                         bool only_managed)
{
    LIBRARY_CHECK(library);
    CUcontext context;
    CUmodule module;
    SG_TRY(sg_context_current(&context));
    if (!name || (!dptr && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(module_in(library, context, &module));
    return sg_module_global(module, name, only_managed, dptr, bytes);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return variable(dptr, bytes, library, name, false);
}

CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return variable(dptr, bytes, library, name, true);
}

/* ---- kernels ---- */
#define KERNEL_CHECK(kernel)                                                                       \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(kernel, SG_KERNEL))                                                          \
    return CUDA_ERROR_INVALID_HANDLE

static const struct sg_function_info *kernel_info(CUkernel kernel)
{
    return sg_function_info(sg_module_function_at(kernel->library->code, kernel->index));
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    KERNEL_CHECK(kernel);
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pFunc)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_function_get((CUfunction)(void *)kernel, context, pFunc);
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    KERNEL_CHECK(kernel);
    if (!pLib)
        return CUDA_ERROR_INVALID_VALUE;
    *pLib = kernel->library;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    KERNEL_CHECK(hfunc);
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = kernel_info(hfunc)->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    KERNEL_CHECK(kernel);
    if (!pi)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    return sg_function_attribute(pi, attrib, kernel_info(kernel), kernel->attributes[dev]);
}

/* A function has its kernel's setting until it gets one of its own. */
CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    KERNEL_CHECK(kernel);
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    SG_TRY(sg_function_attribute_set(attrib, val, kernel_info(kernel), kernel->attributes[dev]));
    for (CUcontext c = sg.contexts; c; c = c->next) {
        CUmodule module = c->alive && c->device == device ? find_module(c, kernel->library) : NULL;
        CUfunction function = module ? &module->functions[kernel->index] : NULL;
        if (function && !(function->own >> attrib & 1))
            function->attributes[attrib] = kernel->attributes[dev][attrib];
    }
    return CUDA_SUCCESS;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    KERNEL_CHECK(kernel);
    if (!sg_device(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                              size_t *paramSize)
{
    KERNEL_CHECK(kernel);
    CUcontext context;
    const struct sg_function_info *info = kernel_info(kernel);
    SG_TRY(sg_context_current(&context));
    if (!paramOffset || paramIndex >= info->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    *paramOffset = info->parameters[paramIndex].offset;
    if (paramSize)
        *paramSize = info->parameters[paramIndex].size;
    return CUDA_SUCCESS;
}
