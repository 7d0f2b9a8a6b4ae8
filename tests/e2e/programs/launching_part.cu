/* The child of launching.cu that is of another file. */
__global__ void doubled(int *values, int count)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        values[i] *= 2;
}
