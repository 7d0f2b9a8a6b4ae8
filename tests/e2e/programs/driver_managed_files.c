/*
 * Managed memory, and pinned memory that kernels reach, that the GPU has used, given to system calls:
 * files, pipes and sockets are read into it and written from it. The pinned one is so while a kernel
 * runs, too.
 */
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "driver.h"

#define BYTES 200000

static CUfunction increment;
static CUstream stream;
static unsigned char *p;

/* All of it is the GPU's. */
static void closed(void)
{
    int n = 1;
    void *parameters[] = {&p, &n};
    CU(cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    CU(cuStreamSynchronize(stream));
}

static unsigned char pattern(size_t i, unsigned step)
{
    return (unsigned char)(i * 31 + i / 256 + step);
}

static void expect(size_t n, unsigned step, const char *what)
{
    size_t wrong = 0;
    for (size_t i = 4; i < n; i++)
        wrong += p[i] != pattern(i, step);
    EXPECT(wrong == 0, "%s: %zu of %zu bytes are wrong", what, wrong, n);
}

static void fill(unsigned step)
{
    for (size_t i = 0; i < BYTES; i++)
        p[i] = pattern(i, step);
    closed();
}

static void files(void)
{
    FILE *file = tmpfile();
    REQUIRE(file, "no file");
    int fd = fileno(file);
    fill(1);
    EXPECT(fwrite(p, 1, BYTES, file) == BYTES, "fwrite");
    fflush(file);
    rewind(file);
    fill(2);
    EXPECT(fread(p, 1, BYTES, file) == BYTES, "fread");
    expect(BYTES, 1, "fread");
    fill(3);
    EXPECT(pwrite(fd, p, BYTES, 0) == BYTES, "pwrite");
    fill(4);
    EXPECT(pread(fd, p, BYTES, 0) == BYTES, "pread");
    expect(BYTES, 3, "pread");
    fill(5);
    lseek(fd, 0, SEEK_SET);
    EXPECT(write(fd, p, BYTES) == BYTES, "write");
    fill(6);
    lseek(fd, 0, SEEK_SET);
    EXPECT(read(fd, p, BYTES) == BYTES, "read");
    expect(BYTES, 5, "read");
    struct iovec parts[2] = {{p, 1000}, {p + 1000, BYTES - 1000}};
    fill(7);
    lseek(fd, 0, SEEK_SET);
    EXPECT(writev(fd, parts, 2) == BYTES, "writev");
    fill(8);
    lseek(fd, 0, SEEK_SET);
    EXPECT(readv(fd, parts, 2) == BYTES, "readv");
    expect(BYTES, 7, "readv");
    fclose(file);
}

static void sockets(void)
{
    enum { PART = 50000 };
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    struct iovec part = {p, PART};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    fill(9);
    EXPECT(send(pair[0], p, PART, 0) == PART, "send");
    fill(10);
    EXPECT(recv(pair[1], p, PART, MSG_WAITALL) == PART, "recv");
    expect(PART, 9, "recv");
    fill(11);
    EXPECT(sendmsg(pair[0], &message, 0) == PART, "sendmsg");
    fill(12);
    EXPECT(recvmsg(pair[1], &message, MSG_WAITALL) == PART, "recvmsg");
    expect(PART, 11, "recvmsg");
    fill(13);
    EXPECT(sendto(pair[0], p, PART, 0, NULL, 0) == PART, "sendto");
    fill(14);
    EXPECT(recvfrom(pair[1], p, PART, MSG_WAITALL, NULL, NULL) == PART, "recvfrom");
    expect(PART, 13, "recvfrom");
    close(pair[0]);
    close(pair[1]);
}

static void both(void)
{
    files();
    sockets();
}

/* While another stream has work that may change it; and what was read into it is the kernel's. */
static void meanwhile(void)
{
    CUstream other;
    CUdeviceptr word;
    unsigned char seen[64];
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&word, 8));
    CU(cuMemsetD32(word, 0, 2)); /* which is not waited for, and no stream here is behind it */
    CU(cuStreamSynchronize(NULL));
    CU(cuStreamWaitValue32(other, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CUdeviceptr behind = word + 4;
    int n = 1;
    void *parameters[] = {&behind, &n};
    CU(cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, other, parameters, NULL));
    both();
    CU(cuMemcpyDtoHAsync(seen, (CUdeviceptr)(uintptr_t)p + 128, sizeof seen, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(memcmp(seen, p + 128, sizeof seen) == 0, "the GPU has other bytes");
    CU(cuMemsetD32Async(word, 1, 1, stream));
    CU(cuStreamSynchronize(other));
    CU(cuMemFree(word));
    CU(cuStreamDestroy(other));
}

int main(void)
{
    CUmodule module;
    CUdeviceptr at;
    void *pinned;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAllocManaged(&at, BYTES, CU_MEM_ATTACH_GLOBAL));
    p = (unsigned char *)(uintptr_t)at;
    both();
    CU(cuMemFree(at));
    CU(cuMemHostAlloc(&pinned, BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(&at, pinned, 0));
    p = pinned;
    both();
    meanwhile();
    CU(cuMemFreeHost(pinned));
    CU(cuStreamDestroy(stream));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_managed_files");
}
