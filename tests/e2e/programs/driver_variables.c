/* Variables of modules and libraries that come and go: drivers give the same addresses to variables
 * of other sizes. */
#include "driver.h"

#define MOST 8192

/* A module with one variable of so many bytes. */
static const char *image_of(size_t bytes)
{
    static char text[512];
    snprintf(text, sizeof text,
             ".version 7.0\n"
             ".target sm_75\n"
             ".address_size 64\n"
             ".visible .global .align 16 .b8 data[%zu];\n"
             ".visible .entry nothing()\n"
             "{\n"
             "    ret;\n"
             "}\n",
             bytes);
    return text;
}

/* All of it can be written and read. */
static void use(CUdeviceptr at, size_t has, size_t bytes)
{
    static unsigned char sent[MOST], got[MOST];
    EXPECT(has == bytes, "the variable has %zu bytes, expected %zu", has, bytes);
    for (size_t i = 0; i < bytes; i++)
        sent[i] = (unsigned char)(i * 7 + bytes);
    memset(got, 0, sizeof got);
    CU(cuMemcpyHtoDAsync(at, sent, bytes, NULL));
    CU(cuMemcpyDtoH(got, at, bytes));
    EXPECT(memcmp(sent, got, bytes) == 0, "%zu bytes came back otherwise", bytes);
}

static void of_a_module(size_t bytes)
{
    CUmodule module;
    CUdeviceptr at;
    size_t has = 0;
    CU(cuModuleLoadData(&module, image_of(bytes)));
    CU(cuModuleGetGlobal(&at, &has, module, "data"));
    use(at, has, bytes);
    CU(cuModuleUnload(module));
}

static void of_a_library(size_t bytes)
{
    CUlibrary library;
    CUmodule module;
    CUdeviceptr at, again;
    size_t has = 0;
    CU(cuLibraryLoadData(&library, image_of(bytes), NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetGlobal(&at, &has, library, "data"));
    use(at, has, bytes);
    CU(cuLibraryGetModule(&module, library));
    CU(cuModuleGetGlobal(&again, &has, module, "data"));
    EXPECT(again == at, "the library's module has it at %#llx, the library at %#llx", again, at);
    use(again, has, bytes);
    CU(cuLibraryUnload(library));
}

/* What is no variable any more is known to nobody. */
static void it_goes_with_its_module(void)
{
    CUmodule module;
    CUdeviceptr at, base;
    size_t has = 0;
    CUcontext context;
    CU(cuModuleLoadData(&module, image_of(64)));
    CU(cuModuleGetGlobal(&at, &has, module, "data"));
    CU(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at));
    CU(cuMemGetAddressRange(&base, &has, at));
    CU(cuModuleUnload(module));
    CUresult r = cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at);
    EXPECT(r == CUDA_ERROR_INVALID_VALUE, "its pointer is one still: %d", r);
}

int main(void)
{
    static const size_t sizes[] = {4, 64, 16, 1024, 8, 256, MOST, 4, 512, 32, 2048, 128};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    CUmodule kept;

    driver_start();
    CU(cuModuleLoadData(&kept, image_of(48)));
    for (size_t i = 0; i < 3 * COUNT; i++) {
        of_a_module(sizes[i % COUNT]);
        of_a_library(sizes[(i + 5) % COUNT]);
    }
    it_goes_with_its_module();
    CU(cuModuleUnload(kept));
    driver_stop();
    return finish("driver_variables");
}
