/* Modules, libraries, launches, graphs: needs the PTX engine. */
#include <stdbool.h>

#include "softgpu_check.h"

#include <stdint.h>

#define N 1000

static void vector_add(CUfunction add)
{
    CUdeviceptr a, b, c;
    float in[N], out[N];
    unsigned n = N;
    for (int i = 0; i < N; i++)
        in[i] = (float)i;
    OK(cuMemAlloc(&a, sizeof(in)));
    OK(cuMemAlloc(&b, sizeof(in)));
    OK(cuMemAlloc(&c, sizeof(in)));
    OK(cuMemcpyHtoD(a, in, sizeof(in)));
    OK(cuMemcpyHtoD(b, in, sizeof(in)));
    void *parameters[] = {&a, &b, &c, &n};
    OK(cuLaunchKernel(add, (N + 127) / 128, 1, 1, 128, 1, 1, 0, NULL, parameters, NULL));
    OK(cuMemcpyDtoH(out, c, sizeof(out)));
    for (int i = 0; i < N; i++)
        CHECK(out[i] == 2.0f * (float)i);
    OK(cuMemsetD8(c, 0, sizeof(out)));
    struct {
        CUdeviceptr a, b, c;
        unsigned n;
    } packed = {a, b, c, N};
    size_t size = sizeof(packed);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, NULL, NULL, extra));
    OK(cuMemcpyDtoH(out, c, sizeof(out)));
    CHECK(out[999] == 1998.0f);
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, NULL, parameters, extra));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    OK(cuMemFree(c));
}

static void refused(CUfunction inc)
{
    CUdeviceptr p;
    int blocks, minimum, block, value;
    OK(cuMemAlloc(&p, 4));
    void *parameters[] = {&p};
#define LAUNCH(gx, gy, bx, bz, shared, list)                                                       \
    cuLaunchKernel(inc, gx, gy, 1, bx, 1, bz, shared, NULL, list, NULL)
    EXPECT(CUDA_ERROR_INVALID_VALUE, LAUNCH(0, 1, 1, 1, 0, parameters));
    EXPECT(CUDA_ERROR_INVALID_VALUE, LAUNCH(1, 65536, 1, 1, 0, parameters));
    EXPECT(CUDA_ERROR_INVALID_VALUE, LAUNCH(1, 1, 1025, 1, 0, parameters));
    EXPECT(CUDA_ERROR_INVALID_VALUE, LAUNCH(1, 1, 1, 65, 0, parameters));
    EXPECT(CUDA_ERROR_INVALID_VALUE, LAUNCH(1, 1, 1, 1, 49153, parameters));
    EXPECT(CUDA_ERROR_INVALID_VALUE, LAUNCH(1, 1, 1, 1, 0, NULL));
    OK(cuFuncSetAttribute(inc, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536));
    OK(LAUNCH(1, 1, 1, 1, 65536, parameters));
    EXPECT(
        CUDA_ERROR_INVALID_VALUE,
        cuFuncSetAttribute(inc, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024 + 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           cuLaunchKernel((CUfunction)parameters, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, inc));
    CHECK(value == 1024);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, inc, 256, 0));
    CHECK(blocks >= 1 && blocks <= 8);
    OK(cuOccupancyMaxPotentialBlockSize(&minimum, &block, inc, NULL, 0, 0));
    CHECK(block > 0 && block <= 1024 && minimum > 0);
    OK(cuMemFree(p));
}

static void libraries(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUdeviceptr p;
    size_t bytes;
    unsigned count;
    int value = 1;
    const char *name;
    OK(cuLibraryLoadData(&library, softgpu_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernelCount(&count, library));
    CHECK(count >= 3);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "nothing"));
    OK(cuLibraryGetKernel(&kernel, library, "inc"));
    OK(cuKernelGetName(&name, kernel));
    CHECK(strcmp(name, "inc") == 0);
    OK(cuKernelGetFunction(&function, kernel));
    OK(cuLibraryGetGlobal(&p, &bytes, library, "counter"));
    CHECK(bytes == 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(p)); /* belongs to the library */
    void *parameters[] = {&p};
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuMemcpyDtoH(&value, p, 4));
    CHECK(value == 44);
    OK(cuLibraryUnload(library));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuKernelGetFunction(&function, kernel));
}

/* A fat binary with one plain PTX file of sm_75. */
static void fat_binaries(void)
{
    static unsigned char image[16 + 64 + sizeof(softgpu_ptx) + 8];
    uint64_t padded = (sizeof(softgpu_ptx) + 7) / 8 * 8, follows = 64 + padded;
    uint32_t magic = 0xBA55ED50u, header = 64, sm = 75;
    uint16_t version = 1, size = 16, kind = 1, ptx_version = 0x101;
    memcpy(image, &magic, 4);
    memcpy(image + 4, &version, 2);
    memcpy(image + 6, &size, 2);
    memcpy(image + 8, &follows, 8);
    memcpy(image + 16, &kind, 2);
    memcpy(image + 18, &ptx_version, 2);
    memcpy(image + 20, &header, 4);
    memcpy(image + 24, &padded, 8);
    memcpy(image + 44, &sm, 4);
    memcpy(image + 80, softgpu_ptx, sizeof(softgpu_ptx));
    struct {
        uint32_t magic, version;
        const void *header;
        const void *none;
    } wrapper = {0x466243B1u, 1, image, NULL};
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleUnload(module));
    OK(cuModuleLoadFatBinary(&module, &wrapper));
    OK(cuModuleGetFunction(&function, module, "vadd"));
    OK(cuModuleUnload(module));
    sm = 120; /* of a later GPU, and there is nothing else */
    memcpy(image + 44, &sm, 4);
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleUnload(module));
    kind = 2;
    memcpy(image + 16, &kind, 2);
    EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, &wrapper));
    kind = 1;
    memcpy(image + 16, &kind, 2);
    padded = (uint64_t)1 << 60; /* absurd sizes are seen before they are used */
    memcpy(image + 24, &padded, 8);
    EXPECT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, image));
    char log[256] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof(log)};
    EXPECT(CUDA_ERROR_INVALID_PTX,
           cuModuleLoadDataEx(&module, "not PTX at all", 2, options, values));
    CHECK(log[0] && strlen(log) == (size_t)values[1]);
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "no such file"));
}

/* What .align says behind .ptr is of what is pointed to. */
static void aligned_pointers(void)
{
    static const char ptx[] =
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry aligned(.param .u8 byte, .param .u64 .ptr .global .align 1 out,\n"
        "  .param .align 2 .b8 two[2], .param .u64 .ptr .align 4 last)\n{\n"
        "  .reg .b32 %r;\n  .reg .b64 %d<3>;\n  ld.param.u64 %d1, [out];\n"
        "  ld.param.u8 %r, [byte];\n  st.global.u32 [%d1], %r;\n  ret;\n}\n";
    const size_t expected[][2] = {{0, 1}, {8, 8}, {16, 2}, {24, 8}};
    size_t offset, size;
    uint8_t byte = 77, two[2] = {0};
    uint32_t said = 0;
    CUmodule module;
    CUfunction function;
    CUdeviceptr out;
    OK(cuMemAlloc(&out, sizeof(said)));
    void *parameters[] = {&byte, &out, &two, &out};
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, "aligned"));
    for (size_t i = 0; i < 4; i++) {
        OK(cuFuncGetParamInfo(function, i, &offset, &size));
        CHECK(offset == expected[i][0] && size == expected[i][1]);
    }
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuMemcpyDtoH(&said, out, sizeof(said)));
    CHECK(said == 77);
    OK(cuModuleUnload(module));
    OK(cuMemFree(out));
}

static void attributes(void)
{
    static const char ptx[] =
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".const .align 2 .b8 word[2];\n.const .align 16 .b8 many[20];\n"
        ".global .align 4 .u32 elsewhere;\n"
        ".visible .entry plain()\n{\n  ret;\n}\n"
        ".visible .entry told()\n.maxntid 96, 1, 1\n{\n"
        "  .local .align 8 .b8 frame[24];\n  .shared .align 4 .b8 shared[40];\n"
        "  .reg .b32 %r;\n  mov.u32 %r, shared;\n  st.shared.u32 [%r], 1;\n  ret;\n}\n";
    const struct {
        const char *function;
        CUfunction_attribute attribute;
        int value;
    } expected[] = {
        {"plain", CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, 36},
        {"plain", CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 0},
        {"plain", CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {"told", CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, 36},
        {"told", CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 24},
        {"told", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 40},
        {"told", CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 96},
        {"told", CU_FUNC_ATTRIBUTE_PTX_VERSION, 80},
    };
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, ptx));
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        int value = -1;
        OK(cuModuleGetFunction(&function, module, expected[i].function));
        OK(cuFuncGetAttribute(&value, expected[i].attribute, function));
        CHECK(value == expected[i].value);
    }
    OK(cuModuleUnload(module));
}

/* What cooperative groups of several warps keep beside the program's own shared memory. */
static void reserved_shared(void)
{
    static const char ptx[] =
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".extern .shared .align 16 .b8 own[];\n"
        ".visible .entry reserved(.param .u64 out)\n{\n"
        "  .reg .b32 %r<4>;\n  .reg .b64 %d<2>;\n  ld.param.u64 %d1, [out];\n"
        "  mov.u32 %r1, %reserved_smem_offset_1;\n  mov.u32 %r2, %total_smem_size;\n"
        "  st.shared.u32 [own], 1;\n  st.shared.u32 [%r1+284], 7;\n"
        "  ld.shared.u32 %r3, [%r1+284];\n"
        "  st.global.v4.u32 [%d1], {%r1, %r2, %r3, 0};\n  ret;\n}\n";
    CUmodule module;
    CUfunction function;
    CUdeviceptr out;
    unsigned said[4] = {0};
    void *parameters[] = {&out};
    OK(cuMemAlloc(&out, sizeof(said)));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, "reserved"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 64, NULL, parameters, NULL));
    OK(cuMemcpyDtoH(said, out, sizeof(said)));
    CHECK(said[0] >= 64 && said[1] == 64 && said[2] == 7);
    OK(cuModuleUnload(module));
    OK(cuMemFree(out));
}

static void linking(void)
{
    static char more[] = ".version 7.5\n.target sm_75\n.address_size 64\n"
                         ".visible .entry nothing()\n{\n  ret;\n}\n";
    CUlinkState state;
    CUmodule module;
    CUfunction function;
    void *image;
    size_t size;
    OK(cuLinkCreate(0, NULL, NULL, &state));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(state, &image, &size)); /* nothing in it */
    OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)softgpu_ptx, sizeof(softgpu_ptx),
                     "first", 0, NULL, NULL));
    OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, more, sizeof(more), "second", 0, NULL, NULL));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           cuLinkAddData(state, CU_JIT_INPUT_OBJECT, more, sizeof(more), "third", 0, NULL, NULL));
    OK(cuLinkComplete(state, &image, &size));
    CHECK(strlen(image) + 1 == size);
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(state));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(state));
    OK(cuModuleGetFunction(&function, module, "inc"));
    OK(cuModuleUnload(module));
}

static int host_calls;
static void count_call(void *data)
{
    (void)data;
    host_calls++;
}

/* Two streams joined by events, and a word that the kernels count up. */
struct forked {
    CUstream a, b;
    CUevent fork, join;
    CUdeviceptr p;
};

static struct forked forked_make(void)
{
    struct forked f;
    OK(cuMemAlloc(&f.p, 4));
    OK(cuStreamCreate(&f.a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&f.b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&f.fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&f.join, CU_EVENT_DISABLE_TIMING));
    return f;
}

static void forked_end(struct forked *f)
{
    OK(cuStreamDestroy(f->a));
    OK(cuStreamDestroy(f->b));
    OK(cuEventDestroy(f->fork));
    OK(cuEventDestroy(f->join));
    OK(cuMemFree(f->p));
}

static void graph_captured(struct forked *f, CUfunction inc)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    int value = 0;
    size_t count = 0;
    void *parameters[] = {&f->p};
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(f->a, &graph));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
           cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemsetD32(f->p, 100, 1));
    OK(cuCtxSynchronize());
    OK(cuStreamBeginCapture(f->a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD32Async(f->p, 5, 1, f->a));
    OK(cuLaunchKernel(inc, 1, 1, 1, 1, 1, 1, 0, f->a, parameters, NULL));
    OK(cuEventRecord(f->fork, f->a));
    OK(cuStreamWaitEvent(f->b, f->fork, 0));
    OK(cuLaunchKernel(inc, 1, 1, 1, 1, 1, 1, 0, f->b, parameters, NULL));
    OK(cuLaunchHostFunc(f->b, count_call, NULL));
    OK(cuStreamIsCapturing(f->b, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuEventRecord(f->join, f->b));
    OK(cuStreamWaitEvent(f->a, f->join, 0));
    OK(cuStreamEndCapture(f->a, &graph));
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 4);
    OK(cuMemcpyDtoH(&value, f->p, 4));
    CHECK(value == 100); /* capturing ran nothing */
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch(exec, f->a));
    OK(cuStreamSynchronize(f->a));
    OK(cuMemcpyDtoH(&value, f->p, 4));
    CHECK(value == 7 && host_calls == 3);
    OK(cuGraphExecDestroy(exec));
}

static void captures_refused(struct forked *f, CUfunction inc)
{
    CUgraph graph;
    CUstreamCaptureStatus status;
    CUdeviceptr q;
    void *parameters[] = {&f->p};
    OK(cuStreamBeginCapture(f->a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&q, 4));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(f->a, &graph));
    CHECK(!graph);
    OK(cuStreamBeginCapture(f->a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(f->fork, f->a));
    OK(cuStreamWaitEvent(f->b, f->fork, 0));
    OK(cuLaunchKernel(inc, 1, 1, 1, 1, 1, 1, 0, f->b, parameters, NULL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(f->a, &graph));

    CUstream blocking;
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    OK(cuStreamIsCapturing(blocking, &status)); /* asking did not end it */
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(f->p, 1, 1, NULL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
    OK(cuStreamDestroy(blocking));
}

static void graph_of_nodes(struct forked *f, CUfunction inc)
{
    CUgraph graph;
    CUgraphExec exec;
    int value = 0;
    void *parameters[] = {&f->p};
    CUgraphNode first, second;
    CUDA_KERNEL_NODE_PARAMS node = {.func = inc,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 1,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams = parameters};
    CUDA_MEMSET_NODE_PARAMS zero = {.dst = f->p, .elementSize = 4, .width = 1, .height = 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&second, graph, NULL, 0, &node));
    OK(cuGraphAddMemsetNode(&first, graph, NULL, 0, &zero, NULL));
    OK(cuGraphAddDependencies(graph, &first, &second, NULL, 1));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, f->a));
    OK(cuStreamSynchronize(f->a));
    OK(cuMemcpyDtoH(&value, f->p, 4));
    CHECK(value == 1);
    zero.value = 40;
    OK(cuGraphExecMemsetNodeSetParams(exec, first, &zero, NULL));
    OK(cuGraphLaunch(exec, f->a));
    OK(cuGraphNodeSetEnabled(exec, first, 0)); /* does not reach launches already made */
    OK(cuGraphLaunch(exec, f->a));
    OK(cuMemcpyDtoHAsync(&value, f->p, 4, f->a));
    CHECK(value == 42);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, second, &zero, NULL));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphAddDependencies(graph, &second, &first, NULL, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0)); /* a cycle */
    OK(cuGraphDestroy(graph));
}

static void graphs(CUfunction inc)
{
    struct forked f = forked_make();
    graph_captured(&f, inc);
    captures_refused(&f, inc);
    graph_of_nodes(&f, inc);
    forked_end(&f);
}

int main(void)
{
    CUmodule module;
    CUfunction add, inc;
    softgpu_begin();
    OK(cuModuleLoadData(&module, softgpu_ptx));
    OK(cuModuleGetFunction(&add, module, "vadd"));
    OK(cuModuleGetFunction(&inc, module, "inc"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&add, module, "nothing"));
    vector_add(add);
    refused(inc);
    libraries();
    fat_binaries();
    linking();
    aligned_pointers();
    attributes();
    reserved_shared();
    graphs(inc);
    return 0;
}
