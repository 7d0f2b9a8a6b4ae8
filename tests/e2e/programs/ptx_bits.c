/*
 * Runs many small kernels, each a module of its own, and writes down what they
 * gave: ptx_bits INPUT OUTPUT. ptx_file.py makes the one and reads the other.
 *
 * All numbers are little-endian. INPUT: "PTXBITS1", u32 cases, then each case:
 * u32 bytes of PTX, u32 threads, u32 block, u32 words in, u32 words out (each
 * word 8 bytes, so many per thread), the PTX, threads * words in * 8 bytes.
 * OUTPUT: "PTXBOUT1", u32 cases, then each: u32 CUresult and, where that is 0,
 * threads * words out * 8 bytes. A case that fails does not stop the others; a
 * kernel that faults takes its process's context along, so it is the last one.
 */
#include "driver.h"

#include <stdint.h>

#define MOST_PTX (1u << 20)
#define MOST_THREADS (1u << 16)
#define MOST_WORDS 128u

struct input {
    const unsigned char *at, *end;
};

struct task {
    uint32_t threads, block, words_in, words_out;
    char *ptx; /* ends in zero */
    const unsigned char *data;
};

static unsigned char *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    REQUIRE(file != NULL, "cannot open %s", path);
    REQUIRE(fseek(file, 0, SEEK_END) == 0, "cannot seek in %s", path);
    long length = ftell(file);
    REQUIRE(length > 0, "%s is empty", path);
    rewind(file);
    unsigned char *bytes = malloc((size_t)length);
    REQUIRE(bytes != NULL, "no memory for %ld bytes", length);
    REQUIRE(fread(bytes, 1, (size_t)length, file) == (size_t)length, "cannot read %s", path);
    fclose(file);
    *size = (size_t)length;
    return bytes;
}

static const unsigned char *take(struct input *in, size_t size)
{
    REQUIRE(size <= (size_t)(in->end - in->at), "the input ends too early");
    const unsigned char *bytes = in->at;
    in->at += size;
    return bytes;
}

static uint32_t take_number(struct input *in, uint32_t least, uint32_t most, const char *what)
{
    const unsigned char *b = take(in, 4);
    uint32_t n = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    REQUIRE(n >= least && n <= most, "%s: %u is not within %u and %u", what, n, least, most);
    return n;
}

static struct task take_task(struct input *in)
{
    struct task t;
    uint32_t size = take_number(in, 1, MOST_PTX, "bytes of PTX");
    t.threads = take_number(in, 1, MOST_THREADS, "threads");
    t.block = take_number(in, 1, 1024, "threads of a block");
    REQUIRE(t.threads % t.block == 0, "%u threads are no whole blocks of %u", t.threads, t.block);
    t.words_in = take_number(in, 1, MOST_WORDS, "words in");
    t.words_out = take_number(in, 1, MOST_WORDS, "words out");
    t.ptx = malloc(size + 1);
    REQUIRE(t.ptx != NULL, "no memory");
    memcpy(t.ptx, take(in, size), size);
    t.ptx[size] = 0;
    t.data = take(in, (size_t)t.threads * t.words_in * 8);
    return t;
}

static CUresult launch(const struct task *t, CUfunction function, unsigned char *out)
{
    size_t bytes_in = (size_t)t->threads * t->words_in * 8;
    size_t bytes_out = (size_t)t->threads * t->words_out * 8;
    CUdeviceptr from = 0, to = 0;
    void *parameters[] = {&from, &to};
    CUresult result = cuMemAlloc(&from, bytes_in);
    if (result == CUDA_SUCCESS)
        result = cuMemAlloc(&to, bytes_out);
    if (result == CUDA_SUCCESS)
        result = cuMemcpyHtoD(from, t->data, bytes_in);
    if (result == CUDA_SUCCESS)
        result = cuMemsetD8(to, 0, bytes_out);
    if (result == CUDA_SUCCESS)
        result = cuLaunchKernel(function, t->threads / t->block, 1, 1, t->block, 1, 1, 0, NULL,
                                parameters, NULL);
    if (result == CUDA_SUCCESS)
        result = cuMemcpyDtoH(out, to, bytes_out);
    /* After a fault these fail too, and the context goes anyway. */
    if (to != 0)
        (void)cuMemFree(to);
    if (from != 0)
        (void)cuMemFree(from);
    return result;
}

static CUresult run(const struct task *t, unsigned char *out)
{
    CUmodule module = NULL;
    CUfunction function = NULL;
    CUresult result = cuModuleLoadData(&module, t->ptx);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuModuleGetFunction(&function, module, "k");
    if (result == CUDA_SUCCESS)
        result = launch(t, function, out);
    (void)cuModuleUnload(module);
    return result;
}

static void put(FILE *file, const void *bytes, size_t size)
{
    REQUIRE(fwrite(bytes, 1, size, file) == size, "cannot write the output");
}

static void put_number(FILE *file, uint32_t n)
{
    const unsigned char bytes[] = {n & 0xff, n >> 8 & 0xff, n >> 16 & 0xff, n >> 24};
    put(file, bytes, sizeof bytes);
}

/* Whether a next one may follow. */
static bool run_task(struct input *in, FILE *output)
{
    struct task t = take_task(in);
    size_t size = (size_t)t.threads * t.words_out * 8;
    unsigned char *out = malloc(size);
    REQUIRE(out != NULL, "no memory");
    CUresult result = run(&t, out);
    put_number(output, (uint32_t)result);
    if (result == CUDA_SUCCESS)
        put(output, out, size);
    free(out);
    free(t.ptx);
    return result == CUDA_SUCCESS || cuCtxSynchronize() == CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3, "usage: %s INPUT OUTPUT", argv[0]);
    size_t size = 0;
    unsigned char *bytes = read_all(argv[1], &size);
    struct input in = {bytes, bytes + size};
    REQUIRE(memcmp(take(&in, 8), "PTXBITS1", 8) == 0, "%s is no file of cases", argv[1]);
    uint32_t cases = take_number(&in, 1, 1u << 20, "cases");
    FILE *output = fopen(argv[2], "wb");
    REQUIRE(output != NULL, "cannot write %s", argv[2]);
    driver_start();
    put(output, "PTXBOUT1", 8);
    put_number(output, 0); /* comes when it is known */
    uint32_t done = 0;
    bool whole = true;
    while (whole && done < cases) {
        whole = run_task(&in, output);
        done++;
    }
    REQUIRE(done < cases || in.at == in.end, "more in the input than %u cases", cases);
    REQUIRE(fseek(output, 8, SEEK_SET) == 0, "cannot seek in %s", argv[2]);
    put_number(output, done);
    REQUIRE(fclose(output) == 0, "cannot finish %s", argv[2]);
    if (whole)
        driver_stop();
    return finish("ptx_bits");
}
