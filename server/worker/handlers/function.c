#include "function.h"

#include <stdlib.h>
#include <string.h>

#include "gpw_handlers.h"
#include "module.h"

#define KNOWN_MIN 1024u

struct known {
    CUfunction function;
    struct gp_parameter *parameters;
    uint32_t count, bytes, local;
    bool prints;
};

/* Open addressing by the function's address. */
struct gpw_functions {
    struct known *table;
    uint32_t room, count;
};

int gpw_functions_open(struct gpw_session *s)
{
    s->functions = calloc(1, sizeof *s->functions);
    return s->functions ? 0 : -1;
}

void gpw_functions_forget(struct gpw_session *s)
{
    struct gpw_functions *f = s->functions;
    for (uint32_t i = 0; f && i < f->room; i++)
        free(f->table[i].parameters);
    if (!f)
        return;
    free(f->table);
    *f = (struct gpw_functions){NULL, 0, 0};
}

static struct known *known_at(struct known *table, uint32_t room, CUfunction function)
{
    uint64_t hash = ((uint64_t)function >> 4) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t i = (uint32_t)(hash >> 32) & (room - 1);
    while (table[i].function && table[i].function != function)
        i = (i + 1) & (room - 1);
    return &table[i];
}

/* Room for one more; false when there is no memory. */
static bool known_grow(struct gpw_functions *f)
{
    if (f->room && f->count < f->room / 2)
        return true;
    uint32_t room = f->room ? 2 * f->room : KNOWN_MIN;
    struct known *more = calloc(room, sizeof *more);
    if (!more)
        return false;
    for (uint32_t i = 0; i < f->room; i++)
        if (f->table[i].function)
            *known_at(more, room, f->table[i].function) = f->table[i];
    free(f->table);
    f->table = more;
    f->room = room;
    return true;
}

/* The ordinal of the current context's device, -1 without a context. */
static bool current_device(struct gpw_session *s, CUdevice *device)
{
    CUcontext context = NULL;
    return s->driver->cuCtxGetCurrent(&context) == CUDA_SUCCESS && context &&
           s->driver->cuCtxGetDevice(device) == CUDA_SUCCESS;
}

/* A CUfunction may be a CUkernel, which answers in forms of its own. Those need no
 * context, and a program's first launch looks its kernel up before there is one. */
static bool ask_as_kernel(CUresult r)
{
    return r == CUDA_ERROR_INVALID_HANDLE || r == CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult parameter(struct gpw_session *s, CUfunction f, size_t i, size_t *offset,
                          size_t *size)
{
    CUresult r = s->driver->cuFuncGetParamInfo(f, i, offset, size);
    if (ask_as_kernel(r))
        r = s->driver->cuKernelGetParamInfo((CUkernel)f, i, offset, size);
    return r;
}

static uint32_t local_bytes_of(struct gpw_session *s, CUfunction f)
{
    const CUfunction_attribute local = CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    int bytes = 0;
    CUdevice device;
    CUresult r = s->driver->cuFuncGetAttribute(&bytes, local, f);
    if (ask_as_kernel(r) && current_device(s, &device))
        r = s->driver->cuKernelGetAttribute(&bytes, local, (CUkernel)f, device);
    return r == CUDA_SUCCESS && bytes > 0 ? (uint32_t)bytes : 0;
}

/* Every parameter, into a list with room for GP_PARAMETERS_MAX. */
static CUresult list_parameters(struct gpw_session *s, CUfunction f, struct gp_parameter *list,
                                uint32_t *count)
{
    for (*count = 0; *count < GP_PARAMETERS_MAX; ++*count) {
        size_t offset, size;
        CUresult r = parameter(s, f, *count, &offset, &size);
        if (r == CUDA_ERROR_INVALID_VALUE)
            break; /* there are no more */
        if (r != CUDA_SUCCESS)
            return r;
        if (offset > GP_PARAMETER_BYTES_MAX || size > GP_PARAMETER_BYTES_MAX - offset)
            return CUDA_ERROR_INVALID_IMAGE;
        list[*count] = (struct gp_parameter){(uint32_t)offset, (uint32_t)size};
    }
    return CUDA_SUCCESS;
}

static CUresult learn(struct gpw_session *s, CUfunction f, struct known *k)
{
    struct gp_parameter list[GP_PARAMETERS_MAX];
    uint32_t count, bytes = 0;
    CUresult r = list_parameters(s, f, list, &count);
    if (r != CUDA_SUCCESS)
        return r;
    for (uint32_t i = 0; i < count; i++)
        if (list[i].offset + list[i].size > bytes)
            bytes = list[i].offset + list[i].size;
    k->parameters = malloc((count ? count : 1) * sizeof *list);
    if (!k->parameters)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(k->parameters, list, count * sizeof *list);
    k->function = f;
    k->count = count;
    k->bytes = bytes;
    k->local = local_bytes_of(s, f);
    k->prints = gpw_function_prints(s, f);
    s->functions->count++;
    return CUDA_SUCCESS;
}

CUresult gpw_parameters_of(struct gpw_session *s, CUfunction function, struct gpw_parameters *out)
{
    struct gpw_functions *f = s->functions;
    if (!known_grow(f))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct known *k = known_at(f->table, f->room, function);
    CUresult r = k->function ? CUDA_SUCCESS : learn(s, function, k);
    if (r == CUDA_SUCCESS)
        *out = (struct gpw_parameters){k->count, k->bytes, k->local, k->prints, k->parameters};
    return r;
}

/* --- what the client is told ------------------------------------------------------- */

static void add_value(struct gp_function_attributes *to, unsigned attribute, CUresult r, int value)
{
    if (r != CUDA_SUCCESS)
        return; /* of a later CUDA than the driver's */
    to->values[attribute] = value;
    to->known |= 1u << attribute;
}

static void attributes_of_function(struct gpw_session *s, CUfunction f,
                                   struct gp_function_attributes *to)
{
    for (unsigned i = 0; i < GP_FUNCTION_ATTRIBUTES; i++) {
        int value = 0;
        CUresult r = s->driver->cuFuncGetAttribute(&value, (CUfunction_attribute)i, f);
        add_value(to, i, r, value);
    }
}

static void attributes_of_kernel(struct gpw_session *s, CUkernel kernel, CUdevice device,
                                 struct gp_function_attributes *to)
{
    for (unsigned i = 0; i < GP_FUNCTION_ATTRIBUTES; i++) {
        int value = 0;
        CUresult r = s->driver->cuKernelGetAttribute(&value, (CUfunction_attribute)i, kernel,
                                                     device);
        add_value(to, i, r, value);
    }
}

/* Load now what the driver would load at the first launch: a launch must not block. */
static CUresult load(struct gpw_session *s, CUfunction f, struct gp_function_attributes *to)
{
    CUresult r = s->driver->cuFuncLoad(f);
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return r;
    to->flags |= GP_DESCRIBED_LOADED; /* as far as this driver does so by itself */
    return CUDA_SUCCESS;
}

static CUresult give_parameters(struct gpw_session *s, CUfunction f,
                                struct gp_function_attributes *to, struct gp_parameter *list,
                                uint32_t *bytes)
{
    struct gpw_parameters p;
    CUdevice device;
    uint32_t count = 0;
    CUresult r;
    if (!current_device(s, &device)) /* its local memory is not to be had, so none is noted */
        r = list_parameters(s, f, list, &count);
    else if ((r = gpw_parameters_of(s, f, &p)) == CUDA_SUCCESS)
        memcpy(list, p.at, (count = p.count) * sizeof *list);
    if (r != CUDA_SUCCESS)
        return r;
    *bytes = (uint32_t)(count * sizeof *list);
    to->flags |= GP_DESCRIBED_PARAMETERS;
    return CUDA_SUCCESS;
}

static CUresult describe_function(struct gpw_session *s, CUfunction f,
                                  struct gp_function_attributes *to, struct gp_parameter *list,
                                  uint32_t *bytes)
{
    CUresult r = load(s, f, to);
    if (r != CUDA_SUCCESS)
        return r;
    attributes_of_function(s, f, to);
    return give_parameters(s, f, to, list, bytes);
}

/* Of a kernel, on the current context's device, and there it is loaded. */
static CUresult describe_here(struct gpw_session *s, CUkernel kernel, CUdevice device,
                              struct gp_function_attributes *to)
{
    CUfunction f;
    CUresult r = s->driver->cuKernelGetFunction(&f, kernel);
    if (r == CUDA_SUCCESS)
        r = load(s, f, to);
    if (r == CUDA_SUCCESS)
        attributes_of_kernel(s, kernel, device, to);
    return r;
}

CUresult gpw_gp_kernel_describe(struct gpw_session *s, CUkernel kernel, CUdevice dev,
                                struct gp_function_attributes *attributes,
                                struct gp_parameter *parameters, uint32_t *n_parameters)
{
    CUdevice here;
    *attributes = (struct gp_function_attributes){0};
    *n_parameters = 0;
    if (dev < 0 || (uint32_t)dev >= s->device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult r = CUDA_SUCCESS;
    if (current_device(s, &here) && here == s->devices[dev])
        r = describe_here(s, kernel, here, attributes);
    else
        attributes_of_kernel(s, kernel, s->devices[dev], attributes);
    if (r == CUDA_SUCCESS)
        r = give_parameters(s, (CUfunction)kernel, attributes, parameters, n_parameters);
    /* a kernel has attributes without a context, but no parameters */
    return r == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : r;
}

static bool is_unloaded(struct gpw_session *s, CUfunction f)
{
    CUfunctionLoadingState state;
    return s->driver->cuFuncIsLoaded(&state, f) == CUDA_SUCCESS &&
           state == CU_FUNCTION_LOADING_STATE_UNLOADED;
}

CUresult gpw_gp_function_describe(struct gpw_session *s, CUfunction function, uint32_t load_it,
                                  struct gp_function_attributes *attributes,
                                  struct gp_parameter *parameters, uint32_t *n_parameters)
{
    *attributes = (struct gp_function_attributes){0};
    *n_parameters = 0;
    if (!load_it && is_unloaded(s, function))
        return CUDA_ERROR_FUNCTION_NOT_LOADED;
    return describe_function(s, function, attributes, parameters, n_parameters);
}

CUresult gpw_noted_gp_module_get_function(struct gpw_session *s, CUfunction function,
                                          CUmodule module, const char *name, uint32_t describe,
                                          struct gp_function_attributes *attributes,
                                          struct gp_parameter *parameters, uint32_t *n_parameters)
{
    (void)module, (void)name;
    *n_parameters = 0;
    return describe ? describe_function(s, function, attributes, parameters, n_parameters)
                    : CUDA_SUCCESS;
}

CUresult gpw_noted_gp_library_get_kernel(struct gpw_session *s, CUkernel kernel, CUlibrary library,
                                         const char *name, uint32_t describe,
                                         struct gp_function_attributes *attributes,
                                         struct gp_parameter *parameters, uint32_t *n_parameters)
{
    CUdevice here;
    CUresult r = CUDA_SUCCESS;
    (void)library, (void)name;
    *n_parameters = 0;
    if (!describe)
        return r;
    if (current_device(s, &here))
        r = describe_here(s, kernel, here, attributes);
    if (r == CUDA_SUCCESS)
        give_parameters(s, (CUfunction)kernel, attributes, parameters, n_parameters);
    else /* the look-up is right all the same: the launch has the error */
        *attributes = (struct gp_function_attributes){0};
    return CUDA_SUCCESS;
}

/* --- names ------------------------------------------------------------------------- */

/* Append a name and its NUL; false when there is no room for it. */
static bool name_add(char *names, uint32_t room, uint32_t *used, const char *name)
{
    size_t n = strlen(name) + 1;
    if (n > room - *used)
        return false;
    memcpy(names + *used, name, n);
    *used += (uint32_t)n;
    return true;
}

/* Functions of a module, or kernels of a library: NULL with the error. */
static void **list_names(struct gpw_session *s, CUmodule module, CUlibrary library, unsigned *count,
                         CUresult *r)
{
    const struct gpw_driver *d = s->driver;
    *r = module ? d->cuModuleGetFunctionCount(count, module)
                : d->cuLibraryGetKernelCount(count, library);
    void **list = *r == CUDA_SUCCESS ? calloc(*count ? *count : 1, sizeof *list) : NULL;
    if (*r == CUDA_SUCCESS && !list)
        *r = CUDA_ERROR_OUT_OF_MEMORY;
    if (*r == CUDA_SUCCESS)
        *r = module ? d->cuModuleEnumerateFunctions((CUfunction *)list, *count, module)
                    : d->cuLibraryEnumerateKernels((CUkernel *)list, *count, library);
    return list;
}

CUresult gpw_kernel_names(struct gpw_session *s, CUmodule module, CUlibrary library, uint32_t skip,
                          char *names, uint32_t *n_names)
{
    unsigned count = 0;
    CUresult r;
    uint32_t room = *n_names;
    void **list = list_names(s, module, library, &count, &r);
    *n_names = 0;
    for (unsigned i = skip; r == CUDA_SUCCESS && i < count; i++) {
        const char *name;
        r = module ? s->driver->cuFuncGetName(&name, list[i])
                   : s->driver->cuKernelGetName(&name, list[i]);
        if (r == CUDA_SUCCESS && !name_add(names, room, n_names, name))
            break;
    }
    free(list);
    return r;
}
