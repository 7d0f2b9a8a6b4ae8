// Allocates until it fails, frees, and allocates again.
//   exhaust [CHUNK_MIB [LEAVE_MIB]]: pieces of CHUNK_MIB, stopping when LEAVE_MIB are left
// (0: really until it fails). Counts only, so that runs with the same arguments agree.
#include "check.h"

enum { MOST = 4096 };

static int fill(void **pieces, size_t chunk, size_t leave, cudaError_t *error)
{
    int n = 0;
    size_t available, total;
    *error = cudaSuccess;
    while (n < MOST) {
        CUDA(cudaMemGetInfo(&available, &total));
        if (leave && available < leave + chunk)
            return n;
        *error = cudaMalloc(&pieces[n], chunk);
        if (*error != cudaSuccess)
            return n;
        n++;
    }
    return n;
}

int main(int argc, char **argv)
{
    static void *pieces[MOST];
    size_t chunk = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 20;
    size_t leave = (size_t)(argc > 2 ? atoi(argv[2]) : 0) << 20;
    size_t available, total, before;
    cudaError_t error;

    CUDA(cudaMemGetInfo(&before, &total));
    int first = fill(pieces, chunk, leave, &error);
    EXPECT(first > 0, "not one piece of %zu bytes of %zu", chunk, total);
    if (!leave)
        EXPECT(error == cudaErrorMemoryAllocation, "the end was %s", cudaGetErrorName(error));
    // Not sticky: the runtime's last error is read once and gone.
    CUDA_GIVES(error, cudaGetLastError());
    CUDA_GIVES(cudaSuccess, cudaGetLastError());
    // More than the whole card, and more than any card.
    CUDA_GIVES(cudaErrorMemoryAllocation, cudaMalloc(&pieces[first], 2 * total));
    CUDA_GIVES(cudaErrorMemoryAllocation, cudaMalloc(&pieces[first], (size_t)1 << 46));
    cudaGetLastError();
    // What was granted is usable memory, up to its last byte.
    unsigned char byte = 0;
    CUDA(cudaMemset((char *)pieces[first - 1] + chunk - 1, 0x5a, 1));
    CUDA(cudaMemcpy(&byte, (char *)pieces[first - 1] + chunk - 1, 1, cudaMemcpyDeviceToHost));
    EXPECT(byte == 0x5a, "the last byte is %#x", byte);
    for (int i = 0; i < first; i++)
        CUDA(cudaFree(pieces[i]));
    CUDA(cudaMemGetInfo(&available, &total));
    EXPECT(available + (2u << 20) >= before, "%zu bytes free afterwards, %zu before", available, before);
    int second = fill(pieces, chunk, leave, &error);
    EXPECT(second == first, "%d pieces the second time, %d the first", second, first);
    for (int i = 0; i < second; i++)
        CUDA(cudaFree(pieces[i]));
    return finish("exhaust");
}
