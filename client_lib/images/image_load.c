/*
 * Images on their way to the worker: named by their hash, sent when the worker
 * does not hold them.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "cancel.h"
#include "gpc_wire.h"
#include "handle.h"
#include "image.h"
#include "jit_options.h"
#include "module.h"
#include "trace.h"

/* Two images may have the same. */
static pthread_mutex_t locks[] = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
};

static pthread_mutex_t *lock_of(const unsigned char hash[32])
{
    return &locks[hash[0] % (sizeof locks / sizeof locks[0])];
}

void gpc_image_lock(const unsigned char hash[32])
{
    pthread_mutex_lock(lock_of(hash));
}

void gpc_image_unlock(const unsigned char hash[32])
{
    pthread_mutex_unlock(lock_of(hash));
}

CUresult gpc_image_put(const struct gpc_route *on, const struct gpc_image *image,
                       const unsigned char hash[32])
{
    CUresult r = CUDA_SUCCESS;
    uint64_t sent = 0;
    for (uint32_t i = 0; i < image->count; i++) {
        const struct gp_image_part *piece = &image->pieces[i];
        for (uint64_t at = 0; r == CUDA_SUCCESS && at < piece->size;) {
            uint64_t left = piece->size - at;
            uint32_t n = left < GP_CHUNK_MAX - 4096 ? (uint32_t)left : GP_CHUNK_MAX - 4096;
            r = gpc_wire_gp_image_put_on(on, hash, image->total, sent, n,
                                         (const char *)piece->data + at);
            at += n;
            sent += n;
        }
    }
    return r;
}

static CUresult ask(const struct gpc_route *on, const struct gpc_load *load, bool as_library,
                    const unsigned char hash[32], const struct gpc_jit_options *o, uint64_t *id,
                    uint32_t *state)
{
    uint64_t library[2 * 4];
    char none;
    float wall_time = 0;
    int32_t result = 0;
    uint32_t info = 0, error = 0;
    CUresult r;
    char *info_to = o->info_room ? o->info : &none, *error_to = o->error_room ? o->error : &none;
    if (as_library) {
        if (load->library_option_count > 4)
            return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < load->library_option_count; i++) {
            if (load->library_options[i] != CU_LIBRARY_BINARY_IS_PRESERVED)
                return gpc_refuse_because(GP_OP_cuLibraryLoadData, "a table of host functions");
            library[2 * i] = load->library_options[i];
            library[2 * i + 1] = 0;
        }
        r = gpc_wire_gp_library_load_on(on, (CUlibrary *)id, hash, o->count, o->pairs,
                                        load->library_option_count, library, o->info_room,
                                        o->error_room, state, &result, &wall_time, info_to,
                                        error_to, &info, &error);
    } else {
        r = gpc_wire_gp_module_load_on(on, (CUmodule *)id, hash, o->count, o->pairs, o->info_room,
                                       o->error_room, state, &result, &wall_time, info_to, error_to,
                                       &info, &error);
    }
    if (r != CUDA_SUCCESS)
        return r;
    if (result != CUDA_SUCCESS || *state == GP_IMAGE_MISSING)
        gpc_handle_drop(*id); /* nothing was loaded */
    gpc_jit_answer(o, wall_time, info, error);
    return gpc_result_from(result);
}

static CUresult load_pieces(const struct gpc_route *on, const struct gpc_load *load,
                            bool as_library, const struct gpc_image *image,
                            const struct gpc_jit_options *options, uint64_t *id)
{
    unsigned char hash[32];
    gpc_image_name(on, image, hash);
    bool eager = image->total <= GP_IMAGE_EAGER;
    uint32_t state = GP_IMAGE_MISSING;
    gpc_image_lock(hash);
    CUresult r = eager ? gpc_image_put(on, image, hash) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        r = ask(on, load, as_library, hash, options, id, &state);
    if (r == CUDA_SUCCESS && state == GP_IMAGE_MISSING && !eager) {
        r = gpc_image_put(on, image, hash);
        if (r == CUDA_SUCCESS)
            r = ask(on, load, as_library, hash, options, id, &state);
    }
    gpc_image_unlock(hash);
    if (r == CUDA_SUCCESS && state == GP_IMAGE_MISSING)
        r = CUDA_ERROR_OUT_OF_MEMORY; /* the worker refused it, with a line in its log */
    return r;
}

/* Of each kind the first: a program may try many. */
static bool first_of(CUresult r)
{
    static uint32_t told;
    uint32_t kind = r == CUDA_ERROR_NO_BINARY_FOR_GPU ? 1 : r == CUDA_ERROR_INVALID_PTX ? 2 : 0;
    return kind && !(__atomic_fetch_or(&told, kind, __ATOMIC_RELAXED) & kind);
}

/* Programs that launch its kernels without looking at errors go on with wrong results, and none but
 * the driver knows what is missing. Where the program has no log for its words, they are asked for
 * by sending the image again, if that costs little, and said here. */
static void tell_refused(const struct gpc_route *on, uint16_t op, const struct gpc_load *load,
                         bool as_library, const struct gpc_image *image, CUresult refused)
{
    char words[512] = "";
    void *size = (void *)(uintptr_t)sizeof words;
    struct gpc_jit_options logged = {.error = words, .error_size = &size};
    uint64_t id = 0;
    logged.error_room = sizeof words;
    if (image->total <= GP_IMAGE_EAGER &&
        load_pieces(on, load, as_library, image, &logged, &id) != refused)
        words[0] = '\0';
    words[strcspn(words, "\r\n")] = '\0';
    gpc_log(GPC_LOG_WARN,
            "%s: %s: %s; its kernels do not run, and what a program that ignores errors computes"
            " with them is wrong",
            gp_op_table[op].name, gpc_result_name(refused),
            words[0] ? words : "the image has neither machine code nor PTX that this GPU takes");
}

CUresult gpc_image_load(const struct gpc_route *on, uint16_t op, const struct gpc_load *load,
                        bool as_library, uint64_t *id)
{
    struct gpc_jit_options options;
    CUresult r = gpc_jit_split(op, load->option_count, load->options, load->values, &options);
    if (r != CUDA_SUCCESS)
        return r;
    if (!load->image)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_image image;
    if ((r = gpc_image_describe(load->image, &image)) != CUDA_SUCCESS)
        return r;
    /* prelinked pieces are many times as large, and matter where nothing linked fits the GPU */
    struct gpc_image first = {.count = 1, .pieces = image.pieces, .total = image.pieces[0].size};
    r = image.count > 1 && first.total == GP_FATBIN_HEADER
            ? CUDA_ERROR_NO_BINARY_FOR_GPU
            : load_pieces(on, load, as_library, &first, &options, id);
    if (r == CUDA_ERROR_NO_BINARY_FOR_GPU && image.count > 1)
        r = load_pieces(on, load, as_library, &image, &options, id);
    if (!options.error_room && first_of(r))
        tell_refused(on, op, load, as_library, &first, r);
    gpc_image_release(&image);
    return r;
}

static CUresult file_read(const char *path, void **bytes, size_t *length)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *data = size >= 0 ? malloc((size_t)size + 1) : NULL;
    rewind(file);
    bool whole = data && fread(data, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (!whole) {
        free(data);
        return size < 0 ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_OUT_OF_MEMORY;
    }
    data[size] = '\0';
    *bytes = data;
    *length = (size_t)size;
    return CUDA_SUCCESS;
}

CUresult gpc_image_read(const char *path, void **bytes, size_t *size)
{
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    int cancel = gpc_cancel_off();
    CUresult r = file_read(path, bytes, size);
    gpc_cancel_back(cancel);
    return r;
}
