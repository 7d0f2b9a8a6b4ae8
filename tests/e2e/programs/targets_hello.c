/* A kernel of PTX by the driver API alone, for machines on which nvcc compiles nothing. */
#include <cuda.h>
#include <stdio.h>

#define COUNT 64u
#define DO(call)                                                                                   \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        if (result_ != CUDA_SUCCESS) {                                                             \
            printf("FAIL %s: %d\n", #call, (int)result_);                                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static const char ptx[] = ".version 7.0\n"
                          ".target sm_75\n"
                          ".address_size 64\n"
                          ".visible .entry twice(.param .u64 values) {\n"
                          "  .reg .b64 %a<4>; .reg .b32 %r<4>;\n"
                          "  ld.param.u64 %a1, [values];\n"
                          "  mov.u32 %r1, %tid.x;\n"
                          "  mul.wide.u32 %a2, %r1, 4;\n"
                          "  add.s64 %a3, %a1, %a2;\n"
                          "  ld.global.u32 %r2, [%a3];\n"
                          "  add.u32 %r3, %r2, %r2;\n"
                          "  st.global.u32 [%a3], %r3;\n"
                          "  ret;\n"
                          "}\n";

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction twice;
    CUdeviceptr memory;
    char name[64];
    unsigned values[COUNT];
    void *arguments[] = {&memory};
    DO(cuInit(0));
    DO(cuDeviceGet(&device, 0));
    DO(cuDeviceGetName(name, sizeof name, device));
    DO(cuDevicePrimaryCtxRetain(&context, device));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, ptx));
    DO(cuModuleGetFunction(&twice, module, "twice"));
    DO(cuMemAlloc(&memory, sizeof values));
    for (unsigned i = 0; i < COUNT; i++)
        values[i] = i;
    DO(cuMemcpyHtoD(memory, values, sizeof values));
    DO(cuLaunchKernel(twice, 1, 1, 1, COUNT, 1, 1, 0, NULL, arguments, NULL));
    DO(cuMemcpyDtoH(values, memory, sizeof values));
    for (unsigned i = 0; i < COUNT; i++)
        if (values[i] != 2 * i) {
            printf("FAIL %u is %u\n", i, values[i]);
            return 1;
        }
    DO(cuMemFree(memory));
    printf("PASS on %s\n", name);
    return 0;
}
