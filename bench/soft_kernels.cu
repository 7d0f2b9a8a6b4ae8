// What the soft GPU is measured with (bench/soft.py): kernels of ordinary sample programs.
// Each has the same parameters: three arrays, of which it uses what it needs, and a size.

#define TILE 16

#define KERNEL(name) extern "C" __global__ void name(float *a, float *b, float *c, int n)

KERNEL(saxpy)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = 2.5f * a[i] + b[i];
}

KERNEL(product_naive)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k++)
        sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

KERNEL(product_tiled)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int at = 0; at < n; at += TILE) {
        left[y][x] = a[row * n + at + x];
        right[y][x] = b[(at + y) * n + column];
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += left[y][k] * right[k][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

KERNEL(reduce_shared)
{
    __shared__ float part[256];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += a[i];
    part[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        c[blockIdx.x] = part[0];
}

KERNEL(reduce_shuffle)
{
    const unsigned *in = reinterpret_cast<const unsigned *>(a);
    for (int round = 0; round < 16; round++) {
        unsigned sum = in[(blockIdx.x * blockDim.x + threadIdx.x + round) % n];
        for (int distance = 16; distance; distance /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        if (threadIdx.x % 32 == 0)
            atomicAdd(reinterpret_cast<unsigned *>(c) + round, sum);
    }
}

KERNEL(bodies)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float4 *at = reinterpret_cast<const float4 *>(a);
    float4 own = at[i];
    float x = 0, y = 0, z = 0;
    for (int k = 0; k < n; k++) {
        float4 other = at[k];
        float dx = other.x - own.x, dy = other.y - own.y, dz = other.z - own.z;
        float inverse = rsqrtf(fmaf(dx, dx, fmaf(dy, dy, fmaf(dz, dz, 0.01f))));
        float pull = other.w * inverse * inverse * inverse;
        x = fmaf(dx, pull, x);
        y = fmaf(dy, pull, y);
        z = fmaf(dz, pull, z);
    }
    reinterpret_cast<float4 *>(c)[i] = make_float4(x, y, z, 0);
}

KERNEL(histogram)
{
    __shared__ unsigned bins[256];
    bins[threadIdx.x] = 0;
    __syncthreads();
    const unsigned *in = reinterpret_cast<const unsigned *>(a);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[in[i] * 2654435761u >> 24], 1u);
    __syncthreads();
    atomicAdd(reinterpret_cast<unsigned *>(c) + threadIdx.x, bins[threadIdx.x]);
}

KERNEL(mandelbrot)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float cx = -2.0f + 3.0f * column / n, cy = -1.5f + 3.0f * row / n, x = 0, y = 0;
    int steps = 0;
    while (steps < 256 && x * x + y * y < 4.0f) {
        float next = x * x - y * y + cx;
        y = 2 * x * y + cy;
        x = next;
        steps++;
    }
    reinterpret_cast<int *>(c)[row * n + column] = steps;
}
