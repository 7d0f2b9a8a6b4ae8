/*
 * Loads PTX of many bytes and runs its kernel.
 *
 *   large_image MIB NAME [wait]
 *
 * NAME is in the image, so that another name makes another image. With `wait` it says that it has
 * started, and goes on with the next line that it reads.
 */
#include "driver.h"

static const char ptx[] = ".version 7.5\n.target sm_75\n.address_size 64\n"
                          ".visible .entry answer(.param .u64 to)\n{\n"
                          "    .reg .u64 %rd<3>;\n    .reg .u32 %r<2>;\n"
                          "    ld.param.u64 %rd1, [to];\n    cvta.to.global.u64 %rd2, %rd1;\n"
                          "    mov.u32 %r1, 42;\n    st.global.u32 [%rd2], %r1;\n    ret;\n}\n";

static char *large(size_t size, const char *name)
{
    char *text = check_alloc(size + 1);
    size_t used = (size_t)snprintf(text, size, "%s// %s ", ptx, name);
    unsigned state = 1;
    for (; used < size; used++) /* lines of comment that are no repetition */
        switch (used % 64) {
        case 0:
            text[used] = '\n';
            break;
        case 1:
        case 2:
            text[used] = '/';
            break;
        default:
            state = state * 1103515245u + 12345u;
            text[used] = (char)('a' + state / 65536u % 26);
        }
    text[size] = '\0';
    return text;
}

static void run(const char *image)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr to;
    unsigned answer = 0;
    void *parameters[] = {&to};
    CU(cuModuleLoadData(&module, image));
    CU(cuModuleGetFunction(&function, module, "answer"));
    CU(cuMemAlloc(&to, sizeof answer));
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(&answer, to, sizeof answer));
    EXPECT(answer == 42, "the kernel wrote %u", answer);
    CU(cuMemFree(to));
    CU(cuModuleUnload(module));
}

static void wait_for_a_word(void)
{
    char line[64];
    puts("started");
    fflush(stdout);
    REQUIRE(fgets(line, sizeof line, stdin), "no line");
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3 || argc == 4, "large_image MIB NAME [wait]");
    char *image = large((size_t)atoi(argv[1]) << 20, argv[2]);
    driver_start();
    if (argc == 4)
        wait_for_a_word();
    run(image);
    driver_stop();
    free(image);
    return finish("large_image");
}
