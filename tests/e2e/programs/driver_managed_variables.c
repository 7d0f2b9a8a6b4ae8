/*
 * Managed variables of modules and of libraries: one address on both sides, the module's initial
 * values for each that is loaded, and nothing left of one that is gone.
 */
#include "driver.h"

#include <stdint.h>
#include <string.h>

#define COUNT 5000

static const char variables_ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .global .attribute(.managed) .align 4 .u32 counter = 5;\n"
    ".visible .global .align 4 .u32 plain = 7;\n"
    ".visible .global .attribute(.managed) .align 4 .b8 values[20000];\n"
    ".visible .entry bump()\n{\n"
    "  .reg .u64 %a<4>;\n  .reg .u32 %r<8>;\n  .reg .pred %p<2>;\n"
    "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.u32 %r4, %r1, %r2, %r3;\n"
    "  mov.u64 %a1, values;\n  mul.wide.u32 %a2, %r4, 4;\n  add.u64 %a3, %a1, %a2;\n"
    "  ld.global.u32 %r5, [plain];\n  ld.global.u32 %r6, [%a3];\n"
    "  add.u32 %r6, %r6, %r5;\n  st.global.u32 [%a3], %r6;\n"
    "  setp.ne.u32 %p1, %r4, 0;\n  @%p1 bra END;\n"
    "  ld.global.u32 %r7, [counter];\n  add.u32 %r7, %r7, 1;\n  st.global.u32 [counter], %r7;\n"
    "END:\n  ret;\n}\n";

static void bump(CUfunction f)
{
    CU(cuLaunchKernel(f, COUNT / 100, 1, 1, 100, 1, 1, 0, NULL, NULL, NULL));
    CU(cuCtxSynchronize());
}

/* Host and kernel write by turns. */
static void use(CUdeviceptr at_counter, CUdeviceptr at_values, CUfunction f)
{
    volatile int *counter = (volatile int *)(uintptr_t)at_counter;
    volatile int *values = (volatile int *)(uintptr_t)at_values;
    EXPECT(*counter == 5 && values[COUNT - 1] == 0, "it begins as %d, %d", *counter,
           values[COUNT - 1]);
    *counter = 100;
    values[COUNT - 1] = 1000;
    for (int round = 1; round <= 3; round++) {
        bump(f);
        EXPECT(*counter == 100 + 2 * round - 1, "round %d: the counter is %d", round, *counter);
        EXPECT(values[COUNT - 1] == 1000 + 7 * round && values[0] == 7 * round,
               "round %d: the values are %d and %d", round, values[COUNT - 1], values[0]);
        *counter += 1;
    }
}

static void attributes(CUdeviceptr counter, CUdeviceptr plain)
{
    unsigned managed = 7;
    void *host = NULL;
    CU(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, counter));
    EXPECT(managed == 1, "IS_MANAGED is %u", managed);
    CU(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, counter));
    EXPECT(host == (void *)(uintptr_t)counter, "HOST_POINTER is %p", host);
    CU(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, plain));
    EXPECT(managed == 0, "IS_MANAGED of another is %u", managed);
}

static void of_a_module(void)
{
    CUmodule module;
    CUdeviceptr counter, values, plain;
    size_t bytes = 0;
    CU(cuModuleLoadData(&module, variables_ptx));
    CU(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
    EXPECT(bytes == 4, "the counter has %zu bytes", bytes);
    CU(cuModuleGetGlobal(&values, &bytes, module, "values"));
    EXPECT(bytes == 4 * COUNT, "the values have %zu bytes", bytes);
    CU(cuModuleGetGlobal(&plain, NULL, module, "plain"));
    attributes(counter, plain);
    use(counter, values, driver_function(module, "bump"));
    CU(cuModuleUnload(module));
}

static void of_a_library(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction f;
    CUdeviceptr counter, values, same;
    size_t bytes = 0;
    CU(cuLibraryLoadData(&library, variables_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, library, "bump"));
    CU(cuKernelGetFunction(&f, kernel));
    CU(cuLibraryGetManaged(&counter, &bytes, library, "counter"));
    EXPECT(bytes == 4, "the counter has %zu bytes", bytes);
    CU(cuLibraryGetManaged(&values, NULL, library, "values"));
    CU(cuLibraryGetGlobal(&same, NULL, library, "counter"));
    EXPECT(same == counter, "as a global it is at %#llx, not %#llx", same, counter);
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&same, NULL, library, "plain"));
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&same, NULL, library, "nothing"));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryGetManaged(NULL, NULL, library, "counter"));
    use(counter, values, f);
    CU(cuLibraryUnload(library));
}

int main(void)
{
    driver_start();
    for (int round = 0; round < 3; round++) {
        of_a_module();
        of_a_library();
    }
    driver_stop();
    return finish("driver_managed_variables");
}
