/* Modules: PTX placed in one context's memory, with its functions. */
#include "array.h"

#include <stdio.h>

#define LOG_SIZE 1024

/* ---- JIT options: logs are filled, the rest is accepted ---- */
CUresult sg_jit_options(unsigned count, const CUjit_option *options, void **values,
                        struct sg_jit_log *log)
{
    *log = (struct sg_jit_log){0};
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        switch ((int)options[i]) {
        case CU_JIT_INFO_LOG_BUFFER:
            log->info = values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            log->info_size = (unsigned)(uintptr_t)values[i];
            log->info_value = &values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER:
            log->error = values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            log->error_size = (unsigned)(uintptr_t)values[i];
            log->error_value = &values[i];
            break;
        default:
            if ((int)options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS)
                return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static void fill(char *buffer, size_t size, void **value, const char *text)
{
    size_t n = 0;
    if (buffer && size) {
        n = strlen(text);
        n = n < size ? n : size - 1;
        memcpy(buffer, text, n);
        buffer[n] = 0;
    }
    if (value)
        *value = (void *)(uintptr_t)n;
}

void sg_jit_report(const struct sg_jit_log *log, const char *text)
{
    fill(log->info, log->info_size, log->info_value, "");
    fill(log->error, log->error_size, log->error_value, text);
}

/* ---- loading ---- */
static void function_gone(CUfunction function)
{
    sg_handle_remove(function);
    free(function->settings);
}

static void module_free(CUmodule module)
{
    for (size_t i = 0; i < module->function_count; i++)
        function_gone(&module->functions[i]);
    for (size_t i = 0; module->code && i < sg_module_global_count(module->code); i++) {
        uint64_t address = sg_module_global_at(module->code, i)->address;
        if (address && sg_module_global_at(module->code, i)->managed)
            sg_address_remove(address, NULL);
        else if (address)
            sg_memory_give(address);
    }
    if (module->managed)
        sg_managed_give(module->managed, module->managed_bytes);
    sg_handle_remove(module);
    sg_module_free(module->code);
    free(module->functions);
    free(module);
}

/* Managed variables lie behind each other, as a driver's do: several on a page, each by itself. */
#define MANAGED_ALIGN 512u

/* Where the next one lies behind so many bytes, which it is added to. */
static CUresult managed_next(const struct sg_global *global, uint64_t *bytes, uint64_t *at)
{
    uint64_t align = global->align > MANAGED_ALIGN ? global->align : MANAGED_ALIGN;
    *at = (*bytes + align - 1) / align * align;
    if (global->size > SG_DEVICE_ADDRESS_LIMIT)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *bytes = *at + (global->size ? global->size : 1);
    return *bytes > SG_DEVICE_ADDRESS_LIMIT ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult place_managed(CUmodule module)
{
    uint64_t bytes = 0, at;
    size_t count = sg_module_global_count(module->code);
    for (size_t i = 0; i < count; i++)
        if (sg_module_global_at(module->code, i)->managed)
            SG_TRY(managed_next(sg_module_global_at(module->code, i), &bytes, &at));
    if (bytes == 0)
        return CUDA_SUCCESS;
    SG_TRY(sg_managed_take(bytes, &module->managed));
    module->managed_bytes = bytes;
    bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct sg_global *global = sg_module_global_at(module->code, i);
        if (!global->managed)
            continue;
        SG_TRY(managed_next(global, &bytes, &at));
        at += module->managed;
        SG_TRY(sg_managed_variable(module->context, at, global->size ? global->size : 1));
        global->address = at;
    }
    return CUDA_SUCCESS;
}

static CUresult place_globals(CUmodule module)
{
    struct sg_extent like = {.space = SG_SPACE_DEVICE,
                             .device = module->context->device,
                             .context = module->context,
                             .internal = true};
    size_t count = sg_module_global_count(module->code);
    for (size_t i = 0; i < count; i++) {
        struct sg_global *global = sg_module_global_at(module->code, i);
        uint64_t address;
        if (global->managed)
            continue;
        SG_TRY(sg_memory_take(&like, global->size ? global->size : 1, &address));
        global->address = address;
    }
    SG_TRY(place_managed(module));
    SG_TRY(sg_module_place(module->code));
    for (size_t i = 0; i < count; i++) {
        struct sg_global *global = sg_module_global_at(module->code, i);
        if (global->size)
            sg_module_initial_image(module->code, i, (void *)(uintptr_t)global->address);
    }
    return CUDA_SUCCESS;
}

static CUresult make_functions(CUmodule module)
{
    size_t count = sg_module_function_count(module->code);
    module->functions = calloc(count ? count : 1, sizeof(*module->functions));
    if (!module->functions)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->function_count = count;
    for (size_t i = 0; i < count; i++) {
        CUfunction function = &module->functions[i];
        function->module = module;
        function->code = sg_module_function_at(module->code, i);
        sg_function_attributes_init(function->attributes);
        if (!sg_handle_add(function, SG_FUNCTION))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult sg_module_load(CUcontext context, const char *ptx, size_t length, CUlibrary library,
                        CUmodule *out, char *log, size_t log_size)
{
    CUmodule module = calloc(1, sizeof(*module));
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->context = context;
    module->library = library;
    module->refs = 1;
    CUresult result = sg_module_parse(ptx, length, &module->code, log, log_size);
    if (result == CUDA_SUCCESS && sg_module_unresolved(module->code)) {
        snprintf(log, log_size, "unresolved extern '%s'", sg_module_unresolved(module->code));
        result = CUDA_ERROR_INVALID_PTX;
    }
    if (result == CUDA_SUCCESS)
        result = place_globals(module);
    if (result == CUDA_SUCCESS)
        result = make_functions(module);
    if (result == CUDA_SUCCESS && !sg_handle_add(module, SG_MODULE))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        module_free(module);
        return result;
    }
    module->next = context->modules;
    context->modules = module;
    *out = module;
    return CUDA_SUCCESS;
}

void sg_module_unref(CUmodule module)
{
    if (--module->refs == 0)
        module_free(module);
}

void sg_module_unload(CUmodule module)
{
    CUmodule *link = &module->context->modules;
    while (*link && *link != module)
        link = &(*link)->next;
    if (*link)
        *link = module->next;
    sg_handle_remove(module);
    for (size_t i = 0; i < module->function_count; i++)
        sg_handle_remove(&module->functions[i]);
    sg_references_release(module);
    sg_module_unref(module);
}

static CUresult load(CUmodule *out, const void *image, size_t size, unsigned count,
                     CUjit_option *options, void **values)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_jit_log report;
    char log[LOG_SIZE] = "", *ptx = NULL;
    size_t length = 0;
    SG_TRY(sg_context_current(&context));
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_jit_options(count, options, values, &report));
    SG_TRY(sg_capture_unsafe());
    CUresult result = sg_image_ptx(image, size, false, &ptx, &length, log, sizeof(log));
    if (result == CUDA_SUCCESS)
        result = sg_module_load(context, ptx, length, NULL, out, log, sizeof(log));
    free(ptx);
    sg_jit_report(&report, result == CUDA_SUCCESS ? "" : log);
    if (result != CUDA_SUCCESS && log[0])
        sg_complain("cannot load a module: %s", log);
    return result;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                            CUjit_option *options, void **optionValues)
{
    return load(module, image, SIZE_MAX, numOptions, options, optionValues);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load(module, image, SIZE_MAX, 0, NULL, NULL);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return load(module, fatCubin, SIZE_MAX, 0, NULL, NULL);
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    char *bytes;
    size_t size;
    SG_READY();
    if (!module || !fname)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_image_read(fname, &bytes, &size));
    /* A file holds no wrapper: its pointer would be another process's. */
    uint32_t magic = 0;
    memcpy(&magic, bytes, size < 4 ? size : 4);
    CUresult result = magic == 0x466243B1u ? CUDA_ERROR_INVALID_IMAGE
                                           : load(module, bytes, size, 0, NULL, NULL);
    free(bytes);
    return result;
}

CUresult cuModuleUnload(CUmodule hmod)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!sg_handle_is(hmod, SG_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (hmod->library)
        return CUDA_ERROR_NOT_PERMITTED;
    sg_context_wait(hmod->context);
    if (!sg_handle_is(hmod, SG_MODULE)) /* unloaded by another thread meanwhile */
        return CUDA_ERROR_INVALID_HANDLE;
    sg_module_unload(hmod);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SG_READY();
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

/* ---- looking up ---- */
#define MODULE_CHECK(module)                                                                       \
    SG_LOCKED;                                                                                     \
    CUcontext context;                                                                             \
    SG_TRY(sg_context_current(&context));                                                          \
    if (!sg_handle_is(module, SG_MODULE))                                                          \
    return CUDA_ERROR_INVALID_HANDLE

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    MODULE_CHECK(hmod);
    if (!hfunc || !name)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_function *code = sg_module_function(hmod->code, name);
    for (size_t i = 0; code && i < hmod->function_count; i++)
        if (hmod->functions[i].code == code) {
            *hfunc = &hmod->functions[i];
            (*hfunc)->found = true;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    MODULE_CHECK(mod);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned)mod->function_count;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    MODULE_CHECK(mod);
    if (!functions || !numFunctions)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numFunctions && i < mod->function_count; i++)
        functions[i] = &mod->functions[i];
    return CUDA_SUCCESS;
}

CUresult sg_module_global(CUmodule module, const char *name, bool only_managed,
                          CUdeviceptr *address, size_t *bytes)
{
    for (size_t i = 0; i < sg_module_global_count(module->code); i++) {
        const struct sg_global *global = sg_module_global_at(module->code, i);
        if (global->kind == SG_G_PLAIN && (global->managed || !only_managed) &&
            strcmp(global->name, name) == 0) {
            if (address)
                *address = global->address;
            if (bytes)
                *bytes = global->size;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    MODULE_CHECK(hmod);
    if (!name || (!dptr && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return sg_module_global(hmod, name, false, dptr, bytes);
}
