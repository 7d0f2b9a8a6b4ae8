/*
 * Kernels that launch kernels: what CUDA's runtime on the device is asked for. A kernel fills a
 * buffer with a child's parameters and hands it over. Children run when the grid that launched them
 * is through, one after the other as they were launched, each with all that it launches; behind
 * them what was to come last. CUDA promises no earlier beginning, so streams and events of kernels,
 * which only say what waits for what, are numbers here.
 */
#include "exec_grid.h"

#include <stdlib.h>
#include <string.h>

/* What a launch and all below it may have waiting. */
#define WAITING_MAX 65536u
#define WAITING_BYTES_MAX ((uint64_t)64 << 20)
/* cudaError_t, as the runtime's headers have it */
#define ERROR_INVALID_VALUE 1
#define ERROR_MEMORY 2
#define ERROR_CONFIGURATION 9
#define ERROR_PENDING 69
#define ERROR_FUNCTION 98
#define ERROR_HANDLE 400
/* cudaStream_t */
#define STREAM_PER_THREAD 2u
#define STREAM_TAIL 3u
#define STREAM_FIRE_AND_FORGET 4u
/* What streams and events of kernels are called from on. */
#define OBJECTS_FROM 0x100u

struct sg_child {
    struct sg_child *next;
    uint64_t buffer; /* while its parameters are written */
    unsigned char *parameters;
    struct sg_launch launch;
};

static void child_free(struct sg_child *child)
{
    if (child->buffer)
        sg_heap_give(child->buffer);
    free(child->parameters);
    free(child);
}

static uint64_t bytes_of(const struct sg_child *child)
{
    return sizeof(*child) + child->launch.function->info.parameter_bytes;
}

static void list_free(struct sg_child *list)
{
    for (struct sg_child *next; list; list = next) {
        next = list->next;
        child_free(list);
    }
}

static void append(struct sg_child **at, struct sg_child *child)
{
    while (*at)
        at = &(*at)->next;
    *at = child;
}

void sg_children_queue(struct sg_grid *grid, struct sg_child **waiting)
{
    append(&grid->children, grid->last_children);
    append(&grid->children, *waiting);
    *waiting = grid->children;
    list_free(grid->prepared);
}

const struct sg_launch *sg_child_launch(const struct sg_child *child)
{
    return &child->launch;
}

struct sg_child *sg_child_take(struct sg_child **waiting)
{
    struct sg_child *child = *waiting;
    if (child)
        *waiting = child->next;
    return child;
}

void sg_child_done(struct sg_grid *grid, struct sg_child *child)
{
    grid->family->count--;
    grid->family->bytes -= bytes_of(child);
    child_free(child);
}

void sg_children_drop(struct sg_child *waiting)
{
    list_free(waiting);
}

/* --- what a kernel calls -------------------------------------------------------------------- */

static bool shape(struct sg_warp *w, const struct sg_call *call, uint32_t i, unsigned lane,
                  uint32_t out[3])
{
    return sg_builtin_argument(w, call, i, lane, out, 3 * sizeof(*out));
}

/* (function, grid, block, dynamic shared memory): the buffer, or 0. */
static uint64_t prepare(struct sg_warp *w, const struct sg_call *call, unsigned lane, int *error)
{
    struct sg_grid *grid = w->block->run->grid;
    uint64_t pointer = 0;
    sg_builtin_argument(w, call, 0, lane, &pointer, sizeof(pointer));
    const struct sg_function *f = sg_function_pointed(w->block->run->module, pointer);
    struct sg_child *child = calloc(1, sizeof(*child));
    *error = !child ? ERROR_MEMORY : !f || !f->entry || !f->defined ? ERROR_FUNCTION : 0;
    if (!*error) {
        child->launch = *grid->launch;
        child->launch.function = f;
        child->launch.cooperative = false;
        memset(child->launch.cluster, 0, sizeof(child->launch.cluster));
        uint32_t bytes = f->info.parameter_bytes;
        bool told = shape(w, call, 1, lane, child->launch.grid) &&
                    shape(w, call, 2, lane, child->launch.block) &&
                    sg_builtin_argument(w, call, 3, lane, &child->launch.dynamic_shared_bytes,
                                        sizeof(child->launch.dynamic_shared_bytes));
        child->buffer = told ? sg_heap_take(bytes ? bytes : 1) : 0;
        *error = !told ? ERROR_INVALID_VALUE : !child->buffer ? ERROR_MEMORY : 0;
    }
    if (*error) {
        free(child);
        return 0;
    }
    uint64_t buffer = child->buffer;
    pthread_mutex_lock(&grid->lock);
    child->next = grid->prepared;
    grid->prepared = child;
    pthread_mutex_unlock(&grid->lock);
    return buffer;
}

static struct sg_child *prepared_take(struct sg_grid *grid, uint64_t buffer)
{
    pthread_mutex_lock(&grid->lock);
    struct sg_child **at = &grid->prepared;
    while (*at && (*at)->buffer != buffer)
        at = &(*at)->next;
    struct sg_child *child = *at;
    if (child)
        *at = child->next;
    pthread_mutex_unlock(&grid->lock);
    return child;
}

/* The child has its parameters for itself; a kernel may have freed the buffer meanwhile. */
static int complete(struct sg_child *child)
{
    uint32_t bytes = child->launch.function->info.parameter_bytes;
    const void *from = sg_heap_look(child->buffer, bytes ? bytes : 1);
    child->parameters = from ? malloc((size_t)bytes + 1) : NULL;
    if (!child->parameters)
        return from ? ERROR_MEMORY : ERROR_INVALID_VALUE;
    memcpy(child->parameters, from, bytes);
    child->launch.parameters = child->parameters;
    sg_heap_give(child->buffer);
    child->buffer = 0;
    return sg_launch_check(&child->launch) == CUDA_SUCCESS ? 0 : ERROR_CONFIGURATION;
}

static bool object_known(const struct sg_grid *grid, uint64_t object)
{
    return object >= OBJECTS_FROM &&
           object - OBJECTS_FROM < __atomic_load_n(&grid->objects, __ATOMIC_RELAXED);
}

/* At the end of one of the two lists. */
static int enqueue(struct sg_grid *grid, struct sg_child *child, bool last)
{
    struct sg_family *family = grid->family;
    int error = 0;
    pthread_mutex_lock(&grid->lock);
    if (family->count == WAITING_MAX || family->bytes > WAITING_BYTES_MAX) {
        error = ERROR_PENDING;
    } else {
        struct sg_child **end = last ? &grid->last_end : &grid->children_end;
        struct sg_child **first = last ? &grid->last_children : &grid->children;
        child->next = NULL;
        *(*end ? &(*end)->next : first) = child;
        *end = child;
        family->count++;
        family->bytes += bytes_of(child);
    }
    pthread_mutex_unlock(&grid->lock);
    return error;
}

/* (buffer, stream) */
static int launch(struct sg_warp *w, const struct sg_call *call, unsigned lane)
{
    struct sg_grid *grid = w->block->run->grid;
    uint64_t buffer = 0, stream = 0;
    sg_builtin_argument(w, call, 0, lane, &buffer, sizeof(buffer));
    sg_builtin_argument(w, call, 1, lane, &stream, sizeof(stream));
    struct sg_child *child = prepared_take(grid, buffer);
    if (!child)
        return ERROR_INVALID_VALUE;
    int error = stream > STREAM_FIRE_AND_FORGET && !object_known(grid, stream) ? ERROR_HANDLE
                                                                               : complete(child);
    if (!error)
        error = enqueue(grid, child, stream == STREAM_TAIL);
    if (error)
        child_free(child);
    return error;
}

/* The 8 bytes at the pointer that is argument 0. */
static enum sg_step store(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                          uint64_t value)
{
    uint64_t address = 0;
    sg_builtin_argument(w, in->call, 0, lane, &address, sizeof(address));
    void *to = sg_reach(w, in, lane, SG_S_GENERIC, address, sizeof(value), sizeof(value));
    if (!to)
        return SG_FAULT;
    memcpy(to, &value, sizeof(value));
    return SG_NEXT;
}

static enum sg_step object_new(struct sg_warp *w, const struct sg_insn *in, unsigned lane)
{
    uint64_t number = __atomic_fetch_add(&w->block->run->grid->objects, 1, __ATOMIC_RELAXED);
    return store(w, in, lane, OBJECTS_FROM + number);
}

/* (pointer to the address, size) */
static enum sg_step allocate(struct sg_warp *w, const struct sg_insn *in, unsigned lane, int *error)
{
    uint64_t size = 0;
    sg_builtin_argument(w, in->call, 1, lane, &size, sizeof(size));
    uint64_t address = sg_heap_take(size);
    *error = size && !address ? ERROR_MEMORY : 0;
    return store(w, in, lane, address);
}

/* A stream or an event among the arguments, from argument i on; 0 to 2 are the streams of all. */
static int objects_check(struct sg_warp *w, const struct sg_call *call, uint32_t count,
                         unsigned lane)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t object = 0;
        sg_builtin_argument(w, call, i, lane, &object, sizeof(object));
        if (object > STREAM_PER_THREAD && !object_known(w->block->run->grid, object))
            return ERROR_HANDLE;
    }
    return 0;
}

static int release(struct sg_warp *w, const struct sg_call *call, unsigned lane)
{
    uint64_t address = 0;
    sg_builtin_argument(w, call, 0, lane, &address, sizeof(address));
    return address && !sg_heap_give(address) ? ERROR_INVALID_VALUE : 0;
}

/* It tells the error that the thread had last, and with `take` that is none any more. */
static void tell_error(struct sg_warp *w, const struct sg_call *call, unsigned lane, bool take)
{
    sg_builtin_give(w, call, lane, w->last_error[lane]);
    if (take)
        w->last_error[lane] = 0;
}

enum sg_step sg_runtime_call(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                             uint8_t builtin)
{
    const struct sg_call *call = in->call;
    enum sg_step step = SG_NEXT;
    uint64_t given;
    int error = 0;
    switch (builtin) {
    case SG_B_CHILD_BUFFER:
        given = prepare(w, call, lane, &error);
        sg_builtin_give(w, call, lane, given);
        break;
    case SG_B_CHILD_LAUNCH:
        error = launch(w, call, lane);
        break;
    case SG_B_OBJECT_NEW:
        step = object_new(w, in, lane);
        break;
    case SG_B_OBJECT_USE:
        error = objects_check(w, call, 1, lane);
        break;
    case SG_B_OBJECT_PAIR:
        error = objects_check(w, call, 2, lane);
        break;
    case SG_B_RUNTIME_MALLOC:
        step = allocate(w, in, lane, &error);
        break;
    case SG_B_RUNTIME_FREE:
        error = release(w, call, lane);
        break;
    default:
        tell_error(w, call, lane, builtin == SG_B_TAKE_ERROR);
        return SG_NEXT;
    }
    if (error)
        w->last_error[lane] = (uint16_t)error;
    if (builtin != SG_B_CHILD_BUFFER)
        sg_builtin_give(w, call, lane, (uint64_t)error);
    return step;
}
