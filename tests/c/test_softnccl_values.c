/* Every collective, with every data type and reduction, by ranks that are threads. It says nothing of
 * the soft NCCL alone: tests/gpu/nccl_values.py holds NVIDIA's against it. */
#include "softnccl_check.h"

#ifndef RANKS
#define RANKS 3
#endif
#define SPREAD (RANKS == 2 ? 2 : 1) /* so that means are whole numbers */
#define COUNT 1001

static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static bool has_sign(int type)
{
    return type != ncclUint8 && type != ncclUint32 && type != ncclUint64;
}

/* Small numbers, so that all results are exact in each type; a mean is too, of these. */
static int value(int type, int rank, int i)
{
    int v = i % 4 == 0 ? 1 : i % 2 ? 1 + SPREAD * ((i + rank) % RANKS) : 2;
    return has_sign(type) && i % 8 >= 5 ? -v : v;
}

static uint64_t small_float(int v, int fraction_bits, int bias, int width)
{
    uint64_t sign = v < 0, magnitude = (uint64_t)(v < 0 ? -v : v);
    int exponent = 0;
    if (!magnitude)
        return 0;
    while (magnitude >> (exponent + 1))
        exponent++;
    uint64_t fraction = magnitude << fraction_bits >> exponent;
    return sign << (width - 1) | (uint64_t)(exponent + bias) << fraction_bits |
           (fraction & ((UINT64_C(1) << fraction_bits) - 1));
}

static void put(void *data, int type, size_t at, int v)
{
    uint64_t bits = (uint64_t)(int64_t)v;
    switch (type) {
    case ncclFloat16:
        bits = small_float(v, 10, 15, 16);
        break;
    case ncclBfloat16:
        bits = small_float(v, 7, 127, 16);
        break;
    case ncclFloat32:
        bits = small_float(v, 23, 127, 32);
        break;
    case ncclFloat64:
        bits = small_float(v, 52, 1023, 64);
        break;
    case ncclFloat8e4m3:
        bits = small_float(v, 3, 7, 8);
        break;
    case ncclFloat8e5m2:
        bits = small_float(v, 2, 15, 8);
        break;
    default:
        break;
    }
    memcpy((char *)data + at * sizes[type], &bits, sizes[type]);
}

static int reduced(int type, int op, int i)
{
    int result = value(type, 0, i);
    for (int r = 1; r < RANKS; r++) {
        int v = value(type, r, i);
        result = op == ncclProd  ? result * v
                 : op == ncclMax ? (v > result ? v : result)
                 : op == ncclMin ? (v < result ? v : result)
                                 : result + v;
    }
    return op == ncclAvg ? result / RANKS : result;
}

/* Block b of what a rank has. */
static int block_value(int type, int rank, int b, int i)
{
    return value(type, rank, b * 5 + i);
}

/* A buffer of `blocks` blocks of one rank. */
static void *buffer(int type, int rank, int blocks)
{
    char *data = malloc((size_t)blocks * COUNT * sizes[type]);
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < COUNT; i++)
            put(data, type, (size_t)(b * COUNT + i), block_value(type, rank, b, i));
    void *at = memory_with(data, (size_t)blocks * COUNT * sizes[type]);
    free(data);
    return at;
}

/* What `blocks` blocks at `at` must be. */
typedef int expected(int type, int op, int rank, int block, int i);
static void compare(struct rank *rank, const char *what, const void *at, int blocks, int type,
                    int op, expected *wanted)
{
    size_t bytes = (size_t)blocks * COUNT * sizes[type];
    char *got = malloc(bytes), *right = malloc(bytes);
    read_back(rank, got, at, bytes);
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < COUNT; i++)
            put(right, type, (size_t)(b * COUNT + i), wanted(type, op, rank->rank, b, i));
    if (memcmp(got, right, bytes) != 0) {
        fprintf(stderr, "%s: rank %d, type %d, reduction %d: wrong\n", what, rank->rank, type, op);
        exit(1);
    }
    free(got);
    free(right);
}

/* ---- reductions ---- */
static int all_reduced(int type, int op, int rank, int block, int i)
{
    (void)rank;
    return reduced(type, op, block * 5 + i);
}

static int own_block_reduced(int type, int op, int rank, int block, int i)
{
    (void)block;
    return reduced(type, op, rank * 5 + i);
}

static void reductions(struct rank *r, int type, int op)
{
    const int root = op % RANKS;
    void *one = buffer(type, r->rank, 1), *all = buffer(type, r->rank, RANKS);
    void *out = memory(COUNT * sizes[type]);
    NOK(ncclAllReduce(one, out, COUNT, type, op, r->comm, r->stream));
    compare(r, "AllReduce", out, 1, type, op, all_reduced);
    NOK(ncclReduce(one, r->rank == root ? out : NULL, COUNT, type, op, root, r->comm, r->stream));
    if (r->rank == root)
        compare(r, "Reduce", out, 1, type, op, all_reduced);
    NOK(ncclReduceScatter(all, out, COUNT, type, op, r->comm, r->stream));
    compare(r, "ReduceScatter", out, 1, type, op, own_block_reduced);
    /* in place */
    char *mine = (char *)all + (size_t)r->rank * COUNT * sizes[type];
    NOK(ncclReduceScatter(all, mine, COUNT, type, op, r->comm, r->stream));
    compare(r, "ReduceScatter in place", mine, 1, type, op, own_block_reduced);
    NOK(ncclAllReduce(one, one, COUNT, type, op, r->comm, r->stream));
    compare(r, "AllReduce in place", one, 1, type, op, all_reduced);
    memory_free(one);
    memory_free(all);
    memory_free(out);
}

static void every_reduction(struct rank *r)
{
    for (int type = 0; type < ncclNumTypes; type++)
        for (int op = 0; op < ncclNumOps; op++)
            reductions(r, type, op);
}

/* ---- what moves ---- */
static int of_root(int type, int op, int rank, int block, int i)
{
    (void)rank;
    return block_value(type, op, block, i);
}

static int of_each(int type, int op, int rank, int block, int i)
{
    (void)op;
    (void)rank;
    return block_value(type, block, 0, i);
}

static int mine_of_each(int type, int op, int rank, int block, int i)
{
    (void)op;
    return block_value(type, block, rank, i);
}

static int mine_of_root(int type, int op, int rank, int block, int i)
{
    (void)block;
    return block_value(type, op, rank, i);
}

/* `op` is the root here. */
static void moves(struct rank *r, int type, int root)
{
    const size_t block = COUNT * sizes[type];
    void *one = buffer(type, r->rank, 1), *all = buffer(type, r->rank, RANKS);
    char *out = memory(RANKS * block);
    NOK(ncclBroadcast(r->rank == root ? one : NULL, out, COUNT, type, root, r->comm, r->stream));
    compare(r, "Broadcast", out, 1, type, root, of_root);
    NOK(ncclAllGather(one, out, COUNT, type, r->comm, r->stream));
    compare(r, "AllGather", out, RANKS, type, root, of_each);
    NOK(ncclAlltoAll(all, out, COUNT, type, r->comm, r->stream));
    compare(r, "AlltoAll", out, RANKS, type, root, mine_of_each);
    OK(cuMemsetD8((CUdeviceptr)(uintptr_t)out, 0, RANKS * block));
    OK(cuCtxSynchronize());
    NOK(ncclGather(one, r->rank == root ? out : NULL, COUNT, type, root, r->comm, r->stream));
    if (r->rank == root)
        compare(r, "Gather", out, RANKS, type, root, of_each);
    NOK(ncclScatter(r->rank == root ? all : NULL, out, COUNT, type, root, r->comm, r->stream));
    compare(r, "Scatter", out, 1, type, root, mine_of_root);
    /* in place */
    OK(cuStreamSynchronize(r->stream));
    OK(cuMemcpyDtoD((CUdeviceptr)(uintptr_t)(out + (size_t)r->rank * block),
                    (CUdeviceptr)(uintptr_t)one, block));
    OK(cuCtxSynchronize());
    NOK(ncclAllGather(out + (size_t)r->rank * block, out, COUNT, type, r->comm, r->stream));
    compare(r, "AllGather in place", out, RANKS, type, root, of_each);
    NOK(ncclBcast(one, COUNT, type, root, r->comm, r->stream));
    compare(r, "Bcast", one, 1, type, root, of_root);
    memory_free(one);
    memory_free(all);
    memory_free(out);
}

static void every_move(struct rank *r)
{
    for (int type = 0; type < ncclNumTypes; type++)
        moves(r, type, type % RANKS);
}

/* Several chunks of a reduction, and more than the sockets' own buffers hold. */
static void large(struct rank *r)
{
    const size_t count = ((size_t)1 << 19) + 13;
    float *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(i % 1000 + (size_t)r->rank);
    void *in = memory_with(data, count * sizeof *data), *out = memory(count * sizeof *data);
    NOK(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, r->comm, r->stream));
    read_back(r, data, out, count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        CHECK((size_t)data[i] == RANKS * (i % 1000) + RANKS * (RANKS - 1) / 2);
    NOK(ncclReduce(in, out, count, ncclFloat32, ncclMax, 1, r->comm, r->stream));
    read_back(r, data, out, count * sizeof *data);
    for (size_t i = 0; r->rank == 1 && i < count; i++)
        CHECK((size_t)data[i] == i % 1000 + RANKS - 1);
    NOK(ncclBroadcast(in, out, count, ncclFloat32, RANKS - 1, r->comm, r->stream));
    read_back(r, data, out, count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        CHECK((size_t)data[i] == i % 1000 + RANKS - 1);
    memory_free(in);
    memory_free(out);
    free(data);
}

/* Nothing is moved, and nobody is waited for. */
static void nothing(struct rank *r)
{
    NOK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, r->comm, r->stream));
    NOK(ncclAllGather(NULL, NULL, 0, ncclInt8, r->comm, r->stream));
    OK(cuStreamSynchronize(r->stream));
}

static void whole(struct rank *r)
{
    int number;
    NOK(ncclCommCount(r->comm, &number));
    CHECK(number == RANKS);
    NOK(ncclCommUserRank(r->comm, &number));
    CHECK(number == r->rank);
    NOK(ncclCommCuDevice(r->comm, &number));
    CHECK(number == r->device);
    every_reduction(r);
    every_move(r);
    large(r);
    nothing(r);
}

int main(void)
{
    int version;
    setenv("GPUPOOL_SOFT_GPUS", "3", 1);
    NOK(ncclGetVersion(&version));
    CHECK(version >= 22800);
    ranks_run(RANKS, whole);
    return 0;
}
