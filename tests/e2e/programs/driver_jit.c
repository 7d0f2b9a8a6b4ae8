/* JIT from PTX: with log options, with broken text, and parameters of mixed sizes. */
#include "driver.h"

#include <stddef.h>

struct mixed {
    char tag;
    double weight;
    short pair[3];
};

static void load_with_log(CUmodule *module)
{
    char info[4096] = "", error[4096] = "";
    float milliseconds = -1;
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER,  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_LOG_VERBOSE,      CU_JIT_WALL_TIME};
    void *values[] = {info, (void *)sizeof info, error, (void *)sizeof error, (void *)1, NULL};

    CU(cuModuleLoadDataEx(module, kernels_ptx, 6, options, values));
    memcpy(&milliseconds, &values[5], sizeof milliseconds);
    EXPECT(milliseconds >= 0, "the wall time is %g", milliseconds);
    EXPECT((size_t)values[1] <= sizeof info && (size_t)values[3] <= sizeof error,
           "the logs hold %zu and %zu bytes", (size_t)values[1], (size_t)values[3]);
    EXPECT(error[0] == 0, "the error log of a good module says '%s'", error);
}

static void load_broken(void)
{
    static const char broken[] =
        ".version 7.0\n.target sm_75\n.address_size 64\n"
        ".visible .entry f()\n{\n    frobnicate.u32 %r1, %r2;\n    ret;\n}\n";
    char error[2048] = "";
    CUmodule module = (CUmodule)1;
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {error, (void *)sizeof error};

    CU_GIVES(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, broken, 2, options, values));
    EXPECT(strstr(error, "6") != NULL && error[0] != 0, "the log does not name line 6: '%s'",
           error);
    CU_GIVES(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, broken));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, NULL));
    CU_GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "there-is-no-such-file.ptx"));
}

static void mixed_parameters(CUmodule module)
{
    CUfunction function = driver_function(module, "mixed_parameters");
    char a = -3;
    short b = 1234;
    struct mixed m = {'x', 2.5, {1, 2, 3}};
    long long c = -5000000000LL;
    float d = 0.125f;
    double out[7], expected[7] = {-3, 1234, 'x', 2.5, 3, -5000000000.0, 0.125};
    CUdeviceptr device;
    void *parameters[] = {&device, &a, &b, &m, &c, &d};

    CU(cuMemAlloc(&device, sizeof out));
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(out, device, sizeof out));
    for (int i = 0; i < 7; i++)
        EXPECT(out[i] == expected[i], "parameter %d arrived as %g, expected %g", i, out[i],
               expected[i]);

    /* The other calling form: one packed buffer. Offsets are C's. */
    struct packed {
        CUdeviceptr out;
        char a;
        short b;
        struct mixed m;
        long long c;
        float d;
    } packed = {device, 7, 8, {'y', 9.5, {10, 11, 12}}, 13, 14.5f};
    size_t size = offsetof(struct packed, d) + sizeof packed.d;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    CU(cuMemcpyDtoH(out, device, sizeof out));
    EXPECT(out[0] == 7 && out[1] == 8 && out[2] == 'y' && out[3] == 9.5 && out[4] == 12 &&
               out[5] == 13 && out[6] == 14.5,
           "the packed parameters arrived as %g %g %g %g %g %g %g", out[0], out[1], out[2], out[3],
           out[4], out[5], out[6]);
    CU(cuMemFree(device));
}

int main(void)
{
    CUmodule module, second;
    CUfunction function = NULL;

    driver_start();
    load_with_log(&module);
    load_broken();
    mixed_parameters(module);
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "no_such_kernel"));
    /* Two modules of the same text are two modules. */
    CU(cuModuleLoadData(&second, kernels_ptx));
    EXPECT(second != module, "the second module is the first");
    CU(cuModuleUnload(module));
    driver_function(second, "add");
    CU(cuModuleUnload(second));
    driver_stop();
    return finish("driver_jit");
}
