/*
 * The forms of CUDA 3, by their bare names, as ctypes finds them: prints what each answers in a
 * context that is newer than they are, and what it leaves where it would write a number. With an
 * argument it looks at nothing else than that: what cuCtxCreate answers in a process that has no
 * context yet, and what the others say in that one.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>

/* Every argument of these forms is a pointer or an integer. */
typedef CUresult form(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* o: where a number goes; b: memory of ours; d: an address; n: a size; 0: a null handle;
 * h: one of an object that is asked, at which a driver looks before the context. */
static const struct {
    const char *name, *arguments;
} forms[] = {
    {"cuArrayCreate", "bb"},
    {"cuArrayGetDescriptor", "bh"},
    {"cuArray3DCreate", "bb"},
    {"cuArray3DGetDescriptor", "bh"},
    {"cuMemcpyHtoD", "dbn"},
    {"cuMemcpyDtoH", "bdn"},
    {"cuMemcpyDtoD", "ddn"},
    {"cuMemcpyDtoA", "0ndn"},
    {"cuMemcpyAtoD", "d0nn"},
    {"cuMemcpyHtoA", "0nbn"},
    {"cuMemcpyAtoH", "b0nn"},
    {"cuMemcpyAtoA", "0n0nn"},
    {"cuMemcpyHtoAAsync", "0nbn0"},
    {"cuMemcpyAtoHAsync", "b0nn0"},
    {"cuMemcpy2D", "b"},
    {"cuMemcpy2DUnaligned", "b"},
    {"cuMemcpy3D", "b"},
    {"cuMemcpyHtoDAsync", "dbn0"},
    {"cuMemcpyDtoHAsync", "bdn0"},
    {"cuMemcpyDtoDAsync", "ddn0"},
    {"cuMemcpy2DAsync", "b0"},
    {"cuMemcpy3DAsync", "b0"},
    {"cuMemGetInfo", "oo"},
    {"cuMemAlloc", "on"},
    {"cuMemAllocPitch", "oonnn"},
    {"cuMemFree", "d"},
    {"cuMemGetAddressRange", "ood"},
    {"cuMemAllocHost", "bn"},
    {"cuMemHostGetDevicePointer", "obn"},
    {"cuMemsetD8", "dnn"},
    {"cuMemsetD16", "dnn"},
    {"cuMemsetD32", "dnn"},
    {"cuMemsetD2D8", "dnnnn"},
    {"cuMemsetD2D16", "dnnnn"},
    {"cuMemsetD2D32", "dnnnn"},
    {"cuModuleGetGlobal", "oohb"},
    {"cuTexRefSetAddress", "ohdn"},
    {"cuTexRefSetAddress2D", "hbdn"},
    {"cuTexRefGetAddress", "oh"},
};

static form *find(const char *name)
{
    form *found;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    REQUIRE(symbol != NULL, "the library lacks %s", name);
    memcpy(&found, &symbol, sizeof found);
    return found;
}

static uint32_t number[6];
static unsigned char memory[4096];

static uintptr_t argument(char kind, uint32_t *to)
{
    *to = 0xa5a5a5a5;
    switch (kind) {
    case 'o':
        return (uintptr_t)to;
    case 'b':
        return (uintptr_t)memory;
    case 'd':
        return 4096;
    case 'n':
        return 4;
    default:
        return 0;
    }
}

static CUresult call(const char *name, const char *arguments)
{
    uintptr_t a[6] = {0};
    memset(memory, 0, sizeof memory);
    for (unsigned i = 0; arguments[i]; i++)
        a[i] = argument(arguments[i], &number[i]);
    CUresult r = find(name)(a[0], a[1], a[2], a[3], a[4], a[5]);
    return r;
}

static void print_all(const char *name, CUresult r, const char *arguments)
{
    printf("%s: %s", name, driver_name(r));
    for (unsigned i = 0; arguments[i]; i++)
        if (arguments[i] == 'o')
            printf(" 0x%x", number[i]);
    printf("\n");
}

/* In a context that is `known` to be of today every driver says the same. */
static void every_form(bool known)
{
    for (unsigned i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const char *arguments = forms[i].arguments;
        CUresult r = call(forms[i].name, arguments);
        if (known)
            print_all(forms[i].name, r, arguments);
        bool of_object = strchr(arguments, 'h') != NULL;
        CUresult expected = of_object ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
        EXPECT(!known || r == expected, "%s gave %s", forms[i].name, driver_name(r));
        for (unsigned k = 0; known && arguments[k]; k++)
            EXPECT(arguments[k] != 'o' || number[k] == 0, "%s left 0x%x", forms[i].name, number[k]);
    }
}

/* With an object that is there the context is what is wrong. */
static void of_an_array(void)
{
    const CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array;
    CU(cuArrayCreate(&array, &shape));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT,
             find("cuArrayGetDescriptor")((uintptr_t)memory, (uintptr_t)array, 0, 0, 0, 0));
    CU(cuArrayDestroy(array));
}

/* The same form under an older name. */
static void same_forms(void)
{
    form *total = find("cuDeviceTotalMem"), *on = find("cuMemHostRegister");
    size_t bytes = 0;
    CU(cuDeviceTotalMem(&bytes, driver_device));
    CU(total((uintptr_t)&number[0], (uintptr_t)driver_device, 0, 0, 0, 0));
    uint32_t expected = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
    EXPECT(number[0] == expected, "cuDeviceTotalMem says 0x%x of 0x%zx", number[0], bytes);
    CU(on((uintptr_t)memory, sizeof memory, 0, 0, 0, 0));
    CU(cuMemHostUnregister(memory));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, find("cuLinkCreate")(0, 0, 0, 0, 0, 0));
    CUlinkState state = NULL;
    CU(find("cuLinkCreate")(0, 0, 0, (uintptr_t)&state, 0, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             find("cuLinkAddData")((uintptr_t)state, CU_JIT_INPUT_PTX, 0, 0, 0, 0));
    CU(cuLinkDestroy(state));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, find("cuCtxCreate_v3")(0, 0, 0, 0, 0, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, find("cuStreamGetCaptureInfo_v2")(0, 0, 0, 0, 0, 0));
    EXPECT(find("cuTexRefSetAddress2D_v2")(0, (uintptr_t)memory, 0, 0, 0, 0) != CUDA_SUCCESS,
           "a texture reference that is none is set");
}

/* What it makes, if it makes one, is a driver's affair: older than others, or none at all. */
static void context_of_its_own(void)
{
    CUcontext context = NULL;
    unsigned version = 0;
    CU(cuInit(0));
    CU(cuDeviceGet(&driver_device, 0));
    CUresult r = find("cuCtxCreate")((uintptr_t)&context, 0, (uintptr_t)driver_device, 0, 0, 0);
    if (r != CUDA_SUCCESS)
        return;
    CU(cuCtxGetApiVersion(context, &version));
    EXPECT(version >= 3010, "its version is %u", version);
    every_form(false);
    CU(find("cuCtxDestroy")((uintptr_t)context, 0, 0, 0, 0, 0));
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        context_of_its_own();
        return finish("driver_forms32");
    }
    driver_start();
    every_form(true);
    of_an_array();
    same_forms();
    driver_stop();
    return finish("driver_forms32");
}
