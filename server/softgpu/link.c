/*
 * cuLink: inputs of PTX, each parsed as it comes, become one text. The first keeps its directives
 * of version, target and address size; later ones lose theirs. What .extern declares in one is
 * found in another, and of weak definitions (templates) the first stays. Nothing is renamed: two
 * inputs that both define a function that is not weak are for the PTX parser to refuse. Nothing is
 * taken from libraries: of libcudadevrt we have what there is (exec_children.c, link_grid.c), and
 * what else is missing is told at the end.
 */
#include "link.h"

#include <stdio.h>

#define LINK_MAX ((size_t)256 << 20)
#define ARCHIVE 8 /* bytes that an archive begins with */

struct CUlinkState_st {
    char *text;
    size_t size;
    bool complete;
    struct sg_jit_log log;
};

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
                         CUlinkState *stateOut)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_jit_log log;
    SG_TRY(sg_context_current(&context));
    if (!stateOut)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_jit_options(numOptions, options, optionValues, &log));
    CUlinkState state = calloc(1, sizeof(*state));
    if (!state || !sg_handle_add(state, SG_LINK)) {
        free(state);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    state->log = log;
    *stateOut = state;
    return CUDA_SUCCESS;
}

static bool is_header(const char *line)
{
    while (*line == ' ' || *line == '\t')
        line++;
    return strncmp(line, ".version", 8) == 0 || strncmp(line, ".target", 7) == 0 ||
           strncmp(line, ".address_size", 13) == 0;
}

/* Turns the lines that only the first input may have into blanks. */
static void blank_headers(char *text)
{
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        if (is_header(line))
            memset(line, ' ', end ? (size_t)(end - line) : strlen(line));
        line = end ? end + 1 : NULL;
    }
}

/* Parses what stands for itself, so that a mistake shows where CUDA shows it. */
static CUresult check(const char *ptx, size_t length, bool whole, char *log, size_t log_size)
{
    struct sg_module *module;
    SG_TRY(sg_module_parse(ptx, length, &module, log, log_size));
    const char *missing = whole ? sg_module_unresolved(module) : NULL;
    if (missing)
        snprintf(log, log_size, "error   : Undefined reference to '%s'", missing);
    sg_module_free(module);
    return missing ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUresult add(CUlinkState state, const char *ptx, size_t length)
{
    if (length > LINK_MAX - state->size - 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *text = realloc(state->text, state->size + length + 2);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(text + state->size, ptx, length);
    text[state->size + length] = '\n';
    text[state->size + length + 1] = 0;
    if (state->size)
        blank_headers(text + state->size);
    state->size += length + 1;
    state->text = text;
    return CUDA_SUCCESS;
}

/* Adds what the inputs want of a library of ours, and looks at the whole. */
static CUresult link_all(CUlinkState state, char *log, size_t log_size)
{
    const char *library = sg_link_library(state->text);
    if (library)
        SG_TRY(add(state, library, strlen(library)));
    return check(state->text, state->size, true, log, log_size);
}

CUresult sg_link_fatbins(const void *const *fatbins, char **ptx, size_t *length, char *log,
                         size_t log_size)
{
    struct CUlinkState_st state = {0};
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; result == CUDA_SUCCESS && fatbins[i]; i++) {
        char *text = NULL;
        size_t size;
        result = sg_image_ptx(fatbins[i], SIZE_MAX, true, &text, &size, log, log_size);
        if (result == CUDA_ERROR_NO_BINARY_FOR_GPU)
            result = CUDA_SUCCESS;
        else if (result == CUDA_SUCCESS)
            result = add(&state, text, size);
        free(text);
    }
    if (result == CUDA_SUCCESS && !state.text)
        return CUDA_ERROR_NO_BINARY_FOR_GPU; /* the log has why */
    log[0] = 0;
    if (result == CUDA_SUCCESS)
        result = link_all(&state, log, log_size);
    if (result != CUDA_SUCCESS) {
        free(state.text);
        return result;
    }
    *ptx = state.text;
    *length = state.size;
    return CUDA_SUCCESS;
}

/* Options that only a whole linking can have. */
static bool is_whole(unsigned count, const CUjit_option *options)
{
    for (unsigned i = 0; i < count; i++)
        if (options[i] == CU_JIT_TARGET || options[i] == CU_JIT_TARGET_FROM_CUCONTEXT ||
            (options[i] >= CU_JIT_WALL_TIME && options[i] <= CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES))
            return true;
    return false;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                          const char *name, unsigned int numOptions, CUjit_option *options,
                          void **optionValues)
{
    (void)optionValues;
    SG_LOCKED;
    SG_READY();
    static const char archive[] = "!<arch>\n";
    char *ptx = NULL, log[1024] = "";
    size_t length;
    if (!sg_handle_is(state, SG_LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    if (state->complete || !data || !size || (numOptions && !options) ||
        is_whole(numOptions, options))
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_JIT_INPUT_LIBRARY && size >= ARCHIVE && memcmp(data, archive, ARCHIVE) == 0)
        return CUDA_SUCCESS;
    if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_FATBINARY) {
        snprintf(log, sizeof(log), "cuLink takes PTX only, and %s is not",
                 name ? name : "an input");
        sg_jit_report(&state->log, log);
        sg_complain("%s", log);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = sg_image_ptx(data, size, true, &ptx, &length, log, sizeof(log));
    if (result == CUDA_SUCCESS)
        result = check(ptx, length, false, log, sizeof(log));
    if (result == CUDA_SUCCESS)
        result = add(state, ptx, length);
    free(ptx);
    if (log[0]) {
        sg_jit_report(&state->log, log);
        sg_complain("cannot link: %s", log);
    }
    return result;
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                          unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    char *bytes;
    size_t size;
    SG_READY();
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_image_read(path, &bytes, &size));
    CUresult result = cuLinkAddData_v2(state, type, bytes, size, path, numOptions, options,
                                       optionValues);
    free(bytes);
    return result;
}

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
    SG_LOCKED;
    SG_READY();
    char log[1024] = "";
    if (!sg_handle_is(state, SG_LINK) || state->complete)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!cubinOut || !state->text)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = link_all(state, log, sizeof(log));
    sg_jit_report(&state->log, log);
    if (result != CUDA_SUCCESS) {
        sg_complain("cannot link: %s", log);
        return result;
    }
    state->complete = true;
    *cubinOut = state->text; /* PTX, which every loading function takes */
    if (sizeOut)
        *sizeOut = state->size + 1;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(state, SG_LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    sg_handle_remove(state);
    free(state->text);
    free(state);
    return CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues,
                      CUlinkState *stateOut)
{
    return cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size,
                       const char *name, unsigned int numOptions, CUjit_option *options,
                       void **optionValues)
{
    return cuLinkAddData_v2(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path,
                       unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    return cuLinkAddFile_v2(state, type, path, numOptions, options, optionValues);
}
