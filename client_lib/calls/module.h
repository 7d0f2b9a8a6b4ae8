/*
 * Modules and libraries as the client knows them: their kernels, each asked for
 * once, with what a launch needs.
 */
#ifndef GPC_MODULE_H
#define GPC_MODULE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "attributes.h"
#include "call.h"
#include "private_tables.h"
#include "snapshot.h"

struct gpc_source;

/* A kernel of a library, or a function of a module or made from a kernel. */
struct gpc_kernel {
    struct gpc_kernel *next; /* of the same image */
    struct gpc_image_shadow *image;
    struct gpc_kernel *kernel;        /* a function made from a kernel: that kernel */
    CUcontext context;                /* in which such a function was made */
    CUfunction handle;                /* a CUkernel's, too */
    struct gpc_kernel *functions;     /* of a kernel: made of it, each in its context */
    struct gpc_kernel *next_function; /* of the same kernel */
    bool listed;                      /* by an enumeration alone: nobody has looked it up by name */
    char *name;
    const struct gp_parameter *parameters; /* NULL while they are not known */
    uint32_t count;
    uint32_t bytes;                    /* of the packed parameter buffer */
    struct gpc_attributes *attributes; /* by device */
    uint64_t *replicas; /* of a library's kernel, by session (replica.h); NULL until there is one */
    struct gpc_settings *settings; /* of launches as before CUDA 4 (superseded.c); freed with it */
};

/* What a library is in one context: cuLibraryGetModule's answer. */
struct gpc_library_module {
    struct gpc_library_module *next;
    CUcontext context;
    CUmodule handle;
};

/* A module or a library. */
struct gpc_image_shadow {
    uint64_t id; /* CUmodule or CUlibrary */
    bool is_library;
    CUcontext context;                  /* of a module */
    struct gpc_library_module *modules; /* of a library, once asked for */
    struct gpc_source *source;          /* of a library that other sessions may need */
    uint64_t replicas[GP_SESSIONS_MAX]; /* the library in other sessions, once needed */
    struct gpc_kernel *kernels;
    bool has_variables; /* that are known by their addresses */
};

/* The shadow of a function or kernel handle, NULL if it is none. No lock. */
struct gpc_kernel *gpc_kernel_of(CUfunction function);
/* Look a kernel up by name: its handle, asked for at most once. With `describe` all that
 * is known of it comes with the answer, and the driver loads it. */
CUresult gpc_kernel_find(struct gpc_image_shadow *image, const char *name, bool describe,
                         struct gpc_kernel **out);
/* The function that a kernel is in the current context; its handle is made once. */
CUresult gpc_kernel_function(struct gpc_kernel *kernel, CUfunction *out);
/* The function that a kernel is in a context already; itself, if it is none yet or no kernel.
 * No lock. */
const struct gpc_kernel *gpc_kernel_here(const struct gpc_kernel *k, CUcontext context);
/* The first function made of a kernel. */
struct gpc_kernel *gpc_kernel_functions(const struct gpc_kernel *kernel);
/* Whether it is a kernel of a library, which belongs to no context. */
bool gpc_kernel_is_contextless(const struct gpc_kernel *k);
/* The device of a function; of a kernel, the current context's. */
CUdevice gpc_kernel_device(const struct gpc_kernel *k);
/* Note the parameters; UNKNOWN if they cannot be a kernel's. */
CUresult gpc_kernel_parameters(struct gpc_kernel *k, const struct gp_parameter *parameters,
                               uint32_t count);
/* Forget an image and its kernels. */
void gpc_image_shadow_free(struct gpc_image_shadow *image);
struct gpc_image_shadow *gpc_image_shadow_new(uint64_t id, bool is_library);

/* Send an image and load it there (NULL: where the thread is). Options as cuModuleLoadDataEx and cuLibraryLoadData
 * take them (the library's are NULL for a module). */
struct gpc_load {
    const void *image;
    unsigned option_count;
    CUjit_option *options;
    void **values;
    unsigned library_option_count;
    CUlibraryOption *library_options;
    void **library_values;
};
CUresult gpc_image_load(const struct gpc_route *on, uint16_t op, const struct gpc_load *load,
                        bool as_library, uint64_t *id);
/* The bytes of a file and a NUL behind them, which `size` does not count (the application's path;
 * freed by the caller). */
CUresult gpc_image_read(const char *path, void **bytes, size_t *size);

void gpc_module_context_ended(CUcontext context);
/* The same for what libraries and their kernels have been in it. */
void gpc_library_context_ended(CUcontext context);
void gpc_kernel_context_ended(CUcontext context);
/* For the private tables: every kernel of a module, with handle and name. */
CUresult gpc_module_each_function(CUmodule module, gpc_private_visit visit, void *user);

#endif
