/*
 * A product of matrices as kernels for compute capability 9.0 make it: one warpgroup brings tiles
 * by tensor maps, two buffers ahead, and another multiplies them (wgmma) and lets the buffers go by
 * one thread of its own. All numbers are whole and small, so that every sum is exact.
 */
#include "check.h"

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <vector>

#define M 128
#define N 128
#define K 320
#define TILE 64 /* rows and depth; 128 bytes, as they are swizzled */
#define STAGES 2
#define GROUP 128 /* threads */

#define RUN(call)                                                                                  \
    do {                                                                                           \
        cudaError_t cuda_result = (call);                                                          \
        REQUIRE(cuda_result == cudaSuccess, "%s: %s", #call, cudaGetErrorName(cuda_result));       \
    } while (0)

struct buffers {
    __half a[STAGES][TILE * TILE];
    __half b[STAGES][TILE * TILE];
    uint64_t full[STAGES], empty[STAGES];
};

__device__ static uint32_t address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static void wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{ .reg .pred done;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra AGAIN;\n}" ::"r"(address(barrier)),
                 "r"(parity)
                 : "memory");
}

__device__ static void bring(void *to, const CUtensorMap *map, int depth, int row,
                             uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(address(to)),
                 "l"(map), "r"(depth), "r"(row), "r"(address(barrier))
                 : "memory");
}

__device__ static void produce(buffers &s, const CUtensorMap *a, const CUtensorMap *b, int tiles)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 0)
        return;
    for (int i = 0; i < tiles; i++) {
        int stage = i % STAGES;
        wait(&s.empty[stage], i / STAGES % 2 ^ 1);
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&s.full[stage])),
            "r"(2 * TILE * TILE * 2)
            : "memory");
        bring(s.a[stage], a, i * TILE, (int)blockIdx.y * TILE, &s.full[stage]);
        bring(s.b[stage], b, i * TILE, (int)blockIdx.x * TILE, &s.full[stage]);
    }
}

/* Rows of 128 bytes, eight of them in 1024, swizzled. */
__device__ static uint64_t descriptor(const __half *tile)
{
    uint64_t at = (address(tile) & 0x3ffff) >> 4;
    return at | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

__device__ static void multiply(float *d, uint64_t a, uint64_t b)
{
    asm volatile(
        "{ wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16\n"
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n"
        "%32, %33, 1, 1, 1, 0, 0; }"
        : FOUR(0), FOUR(4), FOUR(8), FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28)
        : "l"(a), "l"(b));
}

__device__ static void consume(buffers &s, float *c, int tiles)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    float d[32] = {};
    for (int i = 0; i < tiles; i++) {
        int stage = i % STAGES;
        wait(&s.full[stage], i / STAGES % 2);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < TILE; k += 16)
            multiply(d, descriptor(s.a[stage]) + k * 2 / 16, descriptor(s.b[stage]) + k * 2 / 16);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::
                         : "memory");
        if (threadIdx.x % GROUP == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&s.empty[stage]))
                         : "memory");
    }
    int thread = (int)threadIdx.x % GROUP, row = thread / 32 * 16 + thread % 32 / 4;
    for (int i = 0; i < 32; i++) {
        int y = (int)blockIdx.y * TILE + row + (i >> 1 & 1) * 8;
        int x = (int)blockIdx.x * TILE + (i >> 2) * 8 + thread % 4 * 2 + (i & 1);
        c[y * N + x] = d[i];
    }
}

__global__ void __launch_bounds__(2 * GROUP, 1)
    matmul(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float *c)
{
    extern __shared__ __align__(1024) unsigned char room[];
    buffers &s = *(buffers *)room;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&s.full[i])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&s.empty[i])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < GROUP)
        produce(s, &a, &b, K / TILE);
    else
        consume(s, c, K / TILE);
}

typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encoder find_encoder()
{
    void *found = NULL;
    cudaDriverEntryPointQueryResult how;
    RUN(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &how));
    REQUIRE(found != NULL, "the driver has no cuTensorMapEncodeTiled");
    return (encoder)found;
}

static CUtensorMap map_of(void *memory, int rows)
{
    CUtensorMap map;
    const cuuint64_t size[] = {K, (cuuint64_t)rows}, stride[] = {K * sizeof(__half)};
    const cuuint32_t box[] = {TILE, TILE}, step[] = {1, 1};
    CUresult r = find_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, memory, size, stride, box,
                                step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    REQUIRE(r == CUDA_SUCCESS, "cuTensorMapEncodeTiled gave %d", (int)r);
    return map;
}

static void compare(const std::vector<__half> &a, const std::vector<__half> &b,
                    const std::vector<float> &c)
{
    for (int y = 0; y < M; y++)
        for (int x = 0; x < N; x++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum += __half2float(a[y * K + k]) * __half2float(b[x * K + k]);
            EXPECT(c[y * N + x] == sum, "at %d, %d is %g, expected %g", y, x, c[y * N + x], sum);
        }
}

int main()
{
    std::vector<__half> a(M * K), b(N * K);
    std::vector<float> c(M * N);
    void *on_a, *on_b, *on_c;
    for (int i = 0; i < M * K; i++)
        a[i] = __float2half((float)(i * 7 % 13 - 6));
    for (int i = 0; i < N * K; i++)
        b[i] = __float2half((float)(i * 5 % 11 - 5));
    RUN(cudaMalloc(&on_a, a.size() * sizeof(__half)));
    RUN(cudaMalloc(&on_b, b.size() * sizeof(__half)));
    RUN(cudaMalloc(&on_c, c.size() * sizeof(float)));
    RUN(cudaMemcpy(on_a, a.data(), a.size() * sizeof(__half), cudaMemcpyHostToDevice));
    RUN(cudaMemcpy(on_b, b.data(), b.size() * sizeof(__half), cudaMemcpyHostToDevice));
    matmul<<<dim3(N / TILE, M / TILE), 2 * GROUP, sizeof(buffers)>>>(
        map_of(on_a, M), map_of(on_b, N), (float *)on_c);
    RUN(cudaGetLastError());
    RUN(cudaMemcpy(c.data(), on_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
    compare(a, b, c);
    RUN(cudaFree(on_a));
    RUN(cudaFree(on_b));
    RUN(cudaFree(on_c));
    return finish("warp_specialized");
}
