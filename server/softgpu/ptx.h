/*
 * The PTX engine of the soft GPU: text in, kernels run on the calling thread.
 *
 *   sg_module_parse   PTX text -> module (functions, globals), decoded once
 *   sg_global.address the driver places every global in device memory
 *   sg_module_place   symbols in code and in initialisers become addresses
 *   sg_launch_run     one grid, start to end, on the thread that calls
 *
 * A module never changes after sg_module_place and may then be run by any
 * number of threads at once. The engine owns no device memory: every access to
 * a global address is checked through sg_memory.resolve, so an address outside
 * all live allocations ends the launch with CUDA_ERROR_ILLEGAL_ADDRESS.
 *
 * Generic addresses with a nonzero top byte belong to the engine (shared,
 * local, parameter and heap windows): device memory must lie below
 * SG_DEVICE_ADDRESS_LIMIT.
 */
#ifndef SG_PTX_H
#define SG_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#define SG_SHARED_RESERVED 1024u /* of shared memory, CUDA's own part of each block */

#define SG_DEVICE_ADDRESS_LIMIT ((uint64_t)1 << 56)

struct sg_image;    /* ptx_image.h */
struct sg_module;   /* parsed PTX */
struct sg_function; /* a .entry of it */

/* One kernel parameter inside the packed parameter buffer; bytes. */
struct sg_parameter {
    uint32_t offset, size, align;
};

struct sg_function_info {
    const char *name;
    uint32_t parameter_count;
    const struct sg_parameter *parameters;
    uint32_t parameter_bytes; /* of the packed buffer */
    uint32_t static_shared_bytes;
    uint32_t constant_bytes; /* of the module: a card keeps them together, for all its kernels */
    uint32_t local_bytes;    /* per thread, the entry's own frame */
    uint32_t register_count; /* an estimate, 1..255: virtual registers have no hardware count */
    uint32_t ptx_target;     /* of the module: 75 for sm_75 */
    uint32_t max_threads;    /* 1024, or what .maxntid or .reqntid allow */
    uint32_t reqntid[3];     /* all 0: the kernel names none */
    uint32_t cluster[3];     /* .reqnctapercluster; all 0: none */
    bool uses_dynamic_shared;
};

/* What a variable is: of its own bytes, or the name of something that the host binds to it. */
enum sg_global_kind { SG_G_PLAIN, SG_G_TEXREF, SG_G_SURFREF };

/* A .global or .const variable. */
struct sg_global {
    const char *name;
    uint8_t kind;  /* enum sg_global_kind */
    uint64_t size; /* bytes; 0 for an unsized extern array */
    uint32_t align;
    bool constant;
    bool managed;     /* .attribute(.managed): the host reaches it, too */
    const void *init; /* size bytes without addresses of symbols, or NULL: zero */
    uint64_t address; /* the driver sets it before sg_module_place */
};

/*
 * Parses `size` bytes of PTX (a final NUL may be included in the count).
 * CUDA_SUCCESS; CUDA_ERROR_INVALID_PTX (log: one line, "line N: ..."),
 * CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE (null argument).
 * *out is set only on success. log may be NULL.
 */
CUresult sg_module_parse(const char *ptx, size_t size, struct sg_module **out, char *log,
                         size_t log_size);
void sg_module_free(struct sg_module *module); /* NULL is fine */
/* The name of something that the module uses and only declares; NULL: there is nothing. */
const char *sg_module_unresolved(const struct sg_module *module);

size_t sg_module_function_count(const struct sg_module *module);
/* NULL when there is no such function. */
const struct sg_function *sg_module_function_at(const struct sg_module *module, size_t index);
const struct sg_function *sg_module_function(const struct sg_module *module, const char *name);
const struct sg_function_info *sg_function_info(const struct sg_function *function);

size_t sg_module_global_count(const struct sg_module *module);
struct sg_global *sg_module_global_at(struct sg_module *module, size_t index);

/*
 * Call once, after every global has its address: puts addresses into code and
 * initialisers. CUDA_ERROR_INVALID_IMAGE when a global has no address, or one
 * at or above SG_DEVICE_ADDRESS_LIMIT.
 */
CUresult sg_module_place(struct sg_module *module);

/* Writes the first content of global `index` into `bytes` (its whole size),
 * addresses of symbols included; valid after sg_module_place. */
void sg_module_initial_image(const struct sg_module *module, size_t index, void *bytes);

/* The driver's view of device memory; called from threads that run kernels. */
struct sg_memory {
    /* The host pointer for [address, address + size) if all of it lies inside
     * one live allocation, else NULL. On success [*extent_begin, *extent_end)
     * is the whole allocation; the engine may go on using it, at the same
     * distance from the returned pointer, until the launch ends. */
    void *(*resolve)(void *context, uint64_t address, uint64_t size, uint64_t *extent_begin,
                     uint64_t *extent_end);
    void *context;
};

/* What a kernel changes of a kernel node; the numbers are CUDA's. */
enum { SG_UPDATE_GRID = 1, SG_UPDATE_PARAMETERS, SG_UPDATE_ENABLED };
struct sg_update {
    uint32_t field;
    uint32_t grid[3];
    const void *bytes;
    uint64_t offset, size;
    bool enabled;
};

struct sg_launch {
    const struct sg_function *function;
    uint32_t grid[3], block[3];
    uint32_t cluster[3]; /* all 0: no cluster */
    bool cooperative;    /* all blocks run side by side, and may wait for each other */
    uint32_t dynamic_shared_bytes;
    const void *parameters; /* packed, parameter_bytes; may be NULL when that is 0 */
    const struct sg_memory *memory;
    /* Receives what kernels print, in block order; may be NULL. */
    void (*print)(void *context, const char *text, size_t n);
    void *print_context;
    /* Tells of a texture or surface object, to any thread of the grid; false: there is none. May be NULL. */
    bool (*image)(void *context, uint64_t object, bool surface, struct sg_image *out);
    void *image_context;
    volatile int *cancel; /* may be NULL; nonzero ends the launch soon */
    /* Called very often while the grid runs, on the thread that launched, and may wait: then all
     * threads of the grid do. May be NULL. */
    void (*breathe)(void *context);
    /* Whether `breathe` has anything to do: other threads are stopped only then. May be NULL. */
    bool (*due)(void *context);
    void *breathe_context;
    /* cudaGraphSetConditional, of any thread; may be NULL. */
    void (*set_condition)(void *context, uint64_t handle, uint32_t value);
    void *condition_context;
    /* Of the node of that name; false: there is none, or it cannot be so. May be NULL. */
    bool (*update_node)(uint64_t name, const struct sg_update *update);
    uint64_t clock_hz;      /* rate of %clock64 against real time; 0: 1 GHz */
    uint64_t *instructions; /* how many, of all lanes, are added to it; may be NULL */
};

/*
 * Runs the grid to its end. CUDA_SUCCESS or
 *   CUDA_ERROR_INVALID_VALUE          impossible dimensions
 *   CUDA_ERROR_OUT_OF_MEMORY          no memory for the block's registers
 *   CUDA_ERROR_ILLEGAL_ADDRESS        access outside every allocation
 *   CUDA_ERROR_MISALIGNED_ADDRESS     address not a multiple of the access
 *   CUDA_ERROR_ILLEGAL_INSTRUCTION    brkpt, a call through a bad pointer
 *   CUDA_ERROR_LAUNCH_FAILED          trap, threads that wait for each other for ever
 *   CUDA_ERROR_ASSERT                 device assert
 *   CUDA_ERROR_HARDWARE_STACK_ERROR   calls too deep
 *   CUDA_ERROR_LAUNCH_TIMEOUT         cancelled
 * and, unless it succeeded, one line in `fault` (kernel, block, thread, PTX
 * line, address). fault may be NULL.
 */
CUresult sg_launch_run(const struct sg_launch *launch, char *fault, size_t fault_size);

#endif
