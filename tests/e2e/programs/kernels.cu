// The kernels of the driver-API programs, compiled to PTX and embedded there.
extern "C" {

__device__ int counter = 7;
__constant__ int table[16] = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597};
__device__ float scale_of_all[4] = {1.0f, 2.0f, 3.0f, 4.0f};

__global__ void add(float *out, const float *a, const float *b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = a[i] + b[i];
}

__global__ void increment(int *values, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] += 1;
}

__global__ void multiply_add(int *values, int n, int factor, int term)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * factor + term;
}

__global__ void use_globals(int *out)
{
    int i = threadIdx.x;
    out[i] = table[i & 15] + (int)scale_of_all[i & 3] + atomicAdd(&counter, 1) * 0;
}

// Parameters of mixed sizes, so that an offset gone wrong shows.
struct mixed {
    char tag;
    double weight;
    short pair[3];
};

__global__ void mixed_parameters(double *out, char a, short b, struct mixed m, long long c, float d)
{
    out[0] = a;
    out[1] = b;
    out[2] = m.tag;
    out[3] = m.weight;
    out[4] = m.pair[2];
    out[5] = (double)c;
    out[6] = d;
}

__global__ void shared_sum(int *out, const int *in)
{
    extern __shared__ int part[];
    part[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = part[0];
}

__global__ void __launch_bounds__(128) bounded(int *out)
{
    out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
}

__global__ void spin(int *out, int rounds)
{
    int value = threadIdx.x;
    for (int i = 0; i < rounds; i++)
        value = value * 1103515245 + 12345;
    out[threadIdx.x] = value;
}

__global__ void write_to(int *where)
{
    *where = 42;
}

__global__ void wait_until(volatile int *word, int value)
{
    while (*word != value)
        ;
}
}
