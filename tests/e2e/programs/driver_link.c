/* Linking: PTX of several inputs becomes one image; what one lacks another has; logs and errors. */
#include "driver.h"

#include <unistd.h>

#define HEAD ".version 7.0\n.target sm_75\n.address_size 64\n"

/* Calls what the other text defines, and adds what it has in a variable. */
static const char caller[] = HEAD
    ".extern .func (.param .b32 out) twice (.param .b32 in);\n"
    ".extern .global .u32 base;\n"
    ".visible .entry run(.param .u64 to, .param .u32 value)\n{\n"
    "    .reg .b32 %r<4>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [to];\n    cvta.to.global.u64 %rd2, %rd1;\n"
    "    ld.param.u32 %r1, [value];\n"
    "    {\n    .param .b32 given;\n    .param .b32 got;\n    st.param.b32 [given], %r1;\n"
    "    call.uni (got), twice, (given);\n    ld.param.b32 %r2, [got];\n    }\n"
    "    ld.global.u32 %r3, [base];\n    add.u32 %r2, %r2, %r3;\n"
    "    st.global.u32 [%rd2], %r2;\n    ret;\n}\n";

static const char callee[] = HEAD
    ".visible .global .u32 base = 1000;\n"
    ".visible .func (.param .b32 out) twice (.param .b32 in)\n{\n"
    "    .reg .b32 %r<3>;\n    ld.param.u32 %r1, [in];\n    add.u32 %r2, %r1, %r1;\n"
    "    st.param.b32 [out], %r2;\n    ret;\n}\n";

static const char broken[] = HEAD ".visible .entry f()\n{\n    frobnicate.u32 %r1, %r2;\n}\n";

struct logs {
    char info[4096], error[4096];
    CUjit_option options[6];
    void *values[6];
};

static CUlinkState link_new(struct logs *logs)
{
    static const CUjit_option options[6] = {
        CU_JIT_INFO_LOG_BUFFER,  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_LOG_VERBOSE,      CU_JIT_WALL_TIME};
    CUlinkState state = NULL;
    memset(logs, 0, sizeof *logs);
    memcpy(logs->options, options, sizeof options);
    logs->values[0] = logs->info;
    logs->values[1] = (void *)sizeof logs->info;
    logs->values[2] = logs->error;
    logs->values[3] = (void *)sizeof logs->error;
    logs->values[4] = (void *)1;
    CU(cuLinkCreate(6, logs->options, logs->values, &state));
    return state;
}

static CUresult add_text(CUlinkState state, const char *text, const char *name)
{
    return cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)text, strlen(text) + 1, name, 0, NULL,
                         NULL);
}

static void run_it(const void *cubin)
{
    CUmodule module;
    CUdeviceptr to;
    unsigned value = 21, got = 0;
    void *parameters[] = {&to, &value};
    CU(cuMemAlloc(&to, sizeof got));
    CU(cuModuleLoadData(&module, cubin));
    CU(cuLaunchKernel(driver_function(module, "run"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(&got, to, sizeof got));
    EXPECT(got == 1042, "twice 21 and 1000 is %u", got);
    CU(cuModuleUnload(module));
    CU(cuMemFree(to));
}

static void link_texts(const char *first, const char *second)
{
    struct logs logs;
    CUlinkState state = link_new(&logs);
    void *cubin = NULL, *again = NULL;
    size_t bytes = 0;
    float milliseconds = -1;
    CU(add_text(state, first, "first.ptx"));
    CU(add_text(state, second, NULL));
    CU(cuLinkComplete(state, &cubin, &bytes));
    EXPECT(cubin && bytes > 64, "the cubin has %zu bytes", bytes);
    memcpy(&milliseconds, &logs.values[5], sizeof milliseconds);
    EXPECT(milliseconds >= 0, "the wall time is %g", milliseconds);
    EXPECT(logs.error[0] == 0, "the error log of a good linking says '%s'", logs.error);
    EXPECT((size_t)logs.values[1] <= sizeof logs.info, "the info log has %zu bytes",
           (size_t)logs.values[1]);
    run_it(cubin);
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuLinkComplete(state, &again, &bytes));
    CU(cuLinkDestroy(state));
}

static void link_files(const char *directory)
{
    char path[256];
    struct logs logs;
    CUlinkState state = link_new(&logs);
    void *cubin;
    size_t bytes;
    snprintf(path, sizeof path, "%s/driver_link.%d.ptx", directory, (int)getpid());
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(callee, file) >= 0 && fclose(file) == 0, "cannot write %s", path);
    CU(add_text(state, caller, "caller"));
    CU(cuLinkAddFile(state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
    remove(path);
    CU_GIVES(CUDA_ERROR_FILE_NOT_FOUND,
             cuLinkAddFile(state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
    CU(cuLinkComplete(state, &cubin, &bytes));
    run_it(cubin);
    CU(cuLinkDestroy(state));
}

/* Options of one input, and those that are only a whole linking's. */
static void options_of_an_input(void)
{
    struct logs logs;
    char log[64];
    CUlinkState state = link_new(&logs);
    CUjit_option own[] = {CU_JIT_MAX_REGISTERS, CU_JIT_OPTIMIZATION_LEVEL};
    void *values[] = {(void *)32, (void *)2};
    CUjit_option wrong[] = {CU_JIT_ERROR_LOG_BUFFER};
    void *buffer[] = {log};
    CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)callee, sizeof callee, "callee", 2, own,
                     values));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)callee,
                                                     sizeof callee, "callee", 1, wrong, buffer));
    CU(cuLinkDestroy(state));
}

static void refused(void)
{
    struct logs logs;
    CUlinkState state = link_new(&logs);
    void *cubin = NULL;
    size_t bytes = 0;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkCreate(0, NULL, NULL, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLinkAddData(state, CU_JIT_INPUT_PTX, NULL, 0, "nothing", 0, NULL, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_PTX, add_text(state, broken, "broken.ptx"));
    EXPECT(strstr(logs.error, "frobnicate") || strstr(logs.error, "6"),
           "the log names neither line 6 nor what is wrong there: '%s'", logs.error);
    CU(cuLinkDestroy(state));
    state = link_new(&logs);
    CU(add_text(state, caller, "caller"));
    CUresult r = cuLinkComplete(state, &cubin, &bytes);
    EXPECT(r != CUDA_SUCCESS, "a linking with nothing for 'twice' and 'base' succeeds");
    EXPECT(strstr(logs.error, "base") || strstr(logs.error, "twice"),
           "the log names nothing that is missing: '%s'", logs.error);
    CU(cuLinkDestroy(state));
}

int main(void)
{
    const char *directory = getenv("TMPDIR");
    driver_start();
    link_texts(caller, callee);
    link_texts(callee, caller);
    link_files(directory && *directory ? directory : "/tmp");
    options_of_an_input();
    refused();
    driver_stop();
    return finish("driver_link");
}
