/* What linked.cu needs of another file. */
__device__ int factor = 7;

__device__ __noinline__ int shifted(int value)
{
    return value + 3;
}
