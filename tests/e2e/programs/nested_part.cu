/* The child that most of nested.cu's kernels launch. */
__global__ void leaf(int *count)
{
    atomicAdd(count, 1);
}
