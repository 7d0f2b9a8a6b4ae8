/* What the graphs of graph_launch.cu do. */
__global__ void added(int *values, int count, int more)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        values[i] += more;
}
