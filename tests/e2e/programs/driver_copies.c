/*
 * Batches of copies: lines and boxes between every kind of memory, arrays among them, when the
 * source is read, and what is refused, by its index.
 */
#include "driver.h"

#include <stdbool.h>

#define BYTES ((size_t)3000)

enum kind { PAGEABLE, PINNED, DEVICE, KINDS };
static const char *const names[] = {"pageable", "pinned", "device"};

static CUstream stream;
static CUdeviceptr from[KINDS], to[KINDS];
static unsigned char pageable[2][BYTES];

static CUmemcpyAttributes attribute(CUmemcpySrcAccessOrder order)
{
    return (CUmemcpyAttributes){.srcAccessOrder = order,
                                .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
}

static void take(CUdeviceptr *two, void *page)
{
    void *pinned;
    two[PAGEABLE] = (CUdeviceptr)(size_t)page;
    CU(cuMemAllocHost(&pinned, BYTES));
    two[PINNED] = (CUdeviceptr)(size_t)pinned;
    CU(cuMemAlloc(&two[DEVICE], BYTES));
}

static void give(CUdeviceptr *two)
{
    CU(cuMemFreeHost((void *)(size_t)two[PINNED]));
    CU(cuMemFree(two[DEVICE]));
}

static void fill(CUdeviceptr at, unsigned char seed)
{
    unsigned char bytes[BYTES];
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(seed + i * 7);
    CU(cuMemcpy(at, (CUdeviceptr)(size_t)bytes, BYTES));
    CU(cuCtxSynchronize()); /* the batches' stream does not wait for the default one */
}

/* How many of the bytes at `at` are those of fill(seed), from byte `first` on. */
static size_t agree(CUdeviceptr at, size_t first, size_t count, unsigned char seed)
{
    unsigned char bytes[BYTES];
    size_t i = 0;
    CU(cuMemcpy((CUdeviceptr)(size_t)bytes, at, count));
    while (i < count && bytes[i] == (unsigned char)(seed + (first + i) * 7))
        i++;
    return i;
}

/* --- lines -------------------------------------------------------------------------------- */

/* Each kind to each kind in one batch: 9 copies of a slice of their own. */
static void all_kinds(CUmemcpySrcAccessOrder order)
{
    enum { COPIES = KINDS * KINDS };
    const size_t slice = BYTES / COPIES;
    CUdeviceptr dst[COPIES], src[COPIES];
    size_t bytes[COPIES], first[2] = {0, 4};
    CUmemcpyAttributes said[2] = {attribute(order), attribute(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};

    for (unsigned k = 0; k < KINDS; k++) {
        fill(from[k], (unsigned char)(11 * k + order));
        fill(to[k], 200);
    }
    for (size_t i = 0; i < COPIES; i++) {
        src[i] = from[i / KINDS] + i * slice;
        dst[i] = to[i % KINDS] + i * slice;
        bytes[i] = slice;
    }
    CU(cuMemcpyBatchAsync(dst, src, bytes, COPIES, said, first, 2, stream));
    CU(cuStreamSynchronize(stream));
    for (size_t i = 0; i < COPIES; i++) {
        size_t same = agree(dst[i], i * slice, slice, (unsigned char)(11 * (i / KINDS) + order));
        EXPECT(same == slice, "%s to %s, order %d: %zu bytes of %zu are right", names[i / KINDS],
               names[i % KINDS], (int)order, same, slice);
    }
}

static void store(void *value)
{
    *(volatile unsigned *)value = 77;
}

/* Read in stream order: behind a host function. During the call: the source may go at once. */
static void order_of_reads(void)
{
    unsigned value = 1, got = 0;
    unsigned *pinned = (unsigned *)(size_t)from[PINNED];
    CUdeviceptr dst = to[DEVICE], src = (CUdeviceptr)(size_t)&value;
    size_t bytes = sizeof value, first = 0;
    CUmemcpyAttributes said = attribute(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);

    CU(cuLaunchHostFunc(stream, store, &value));
    CU(cuMemcpyBatchAsync(&dst, &src, &bytes, 1, &said, &first, 1, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(&got, dst, sizeof got));
    EXPECT(got == 77, "the host function's value came as %u", got);

    said = attribute(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
    *pinned = 5;
    src = from[PINNED];
    CU(cuMemcpyBatchAsync(&dst, &src, &bytes, 1, &said, &first, 1, stream));
    *pinned = 6; /* it is read no more */
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(&got, dst, sizeof got));
    EXPECT(got == 5, "what is read during the call came as %u", got);
}

static void lines_refused(void)
{
    CUdeviceptr dst[2] = {to[DEVICE], to[DEVICE] + 64}, src[2] = {from[DEVICE], from[DEVICE] + 64};
    size_t bytes[2] = {64, 64}, first[2] = {0, 1};
    CUmemcpyAttributes said[2] = {attribute(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                  attribute(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)};
#define BATCH(n, attrs, on) cuMemcpyBatchAsync(dst, src, bytes, n, said, first, attrs, on)
    CU(BATCH(2, 2, stream));
    CU(BATCH(2, 2, CU_STREAM_PER_THREAD));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, CU_STREAM_LEGACY));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(0, 0, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 0, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(1, 2, stream));
    first[0] = 1;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 1, stream)); /* the first has none */
    first[0] = 0, first[1] = 0;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, stream));
    first[1] = 2;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, stream));
    first[1] = 1;
    said[1] = attribute(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, stream));
    said[1] = attribute(CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
    said[1].flags = 0x80;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, stream));
    said[1].flags = 0;
    bytes[1] = 0;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, stream));
    bytes[1] = BYTES + 1; /* beyond the allocation, which the driver need not see */
    dst[1] = 0;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemcpyBatchAsync(NULL, src, bytes, 1, said, first, 1, stream));
#undef BATCH
    CU(cuStreamSynchronize(stream));
}

/* A batch goes into no graph, and the capture goes on without it. */
static void not_captured(void)
{
    CUdeviceptr dst = to[DEVICE], src = from[DEVICE];
    size_t bytes = 64, first = 0, nodes = 9;
    CUmemcpyAttributes said = attribute(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    CUgraph graph;

    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
             cuMemcpyBatchAsync(&dst, &src, &bytes, 1, &said, &first, 1, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphGetNodes(graph, NULL, &nodes));
    EXPECT(nodes == 0, "the graph has %zu nodes", nodes);
    CU(cuGraphDestroy(graph));
}

/* --- boxes -------------------------------------------------------------------------------- */

static CUmemcpy3DOperand memory(CUdeviceptr at, size_t row, size_t layer)
{
    CUmemcpy3DOperand operand = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER};
    operand.op.ptr.ptr = at;
    operand.op.ptr.rowLength = row;
    operand.op.ptr.layerHeight = layer;
    return operand;
}

static CUmemcpy3DOperand in_array(CUarray array, size_t x, size_t y)
{
    CUmemcpy3DOperand operand = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY};
    operand.op.array.array = array;
    operand.op.array.offset.x = x;
    operand.op.array.offset.y = y;
    return operand;
}

static CUDA_MEMCPY3D_BATCH_OP box(CUmemcpy3DOperand dst, CUmemcpy3DOperand src, size_t width,
                                  size_t height, size_t depth)
{
    return (CUDA_MEMCPY3D_BATCH_OP){.src = src,
                                    .dst = dst,
                                    .extent = {width, height, depth},
                                    .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
}

/* A box of 40 x 3 x 2 bytes out of rows of 100 and layers of 5 into packed memory. */
static void box_of_memory(enum kind source, enum kind target)
{
    const size_t row = 100, layer = 500;
    CUDA_MEMCPY3D_BATCH_OP op = box(memory(to[target], 0, 0), memory(from[source] + 7, 100, 5), 40,
                                    3, 2);
    fill(from[source], 3);
    fill(to[target], 90);
    CU(cuMemcpy3DBatchAsync(1, &op, 0, stream));
    CU(cuStreamSynchronize(stream));
    for (size_t z = 0; z < 2; z++)
        for (size_t y = 0; y < 3; y++) {
            size_t same = agree(to[target] + (z * 3 + y) * 40, 7 + z * layer + y * row, 40, 3);
            EXPECT(same == 40, "row %zu of layer %zu, %s to %s: %zu bytes are right", y, z,
                   names[source], names[target], same);
        }
}

/* 16 x 4 elements of 8 bytes go into an array, from there into another, and out again. */
static void box_of_arrays(enum kind source, enum kind target)
{
    const CUDA_ARRAY_DESCRIPTOR shape = {32, 8, CU_AD_FORMAT_FLOAT, 2};
    CUarray one, two;

    CU(cuArrayCreate(&one, &shape));
    CU(cuArrayCreate(&two, &shape));
    fill(from[source], 21);
    fill(to[target], 90);
    CUDA_MEMCPY3D_BATCH_OP in = box(in_array(one, 4, 2), memory(from[source], 0, 0), 16, 4, 1);
    CUDA_MEMCPY3D_BATCH_OP over = box(in_array(two, 0, 1), in_array(one, 4, 2), 16, 4, 1);
    CUDA_MEMCPY3D_BATCH_OP out = box(memory(to[target], 0, 0), in_array(two, 0, 1), 16, 4, 1);
    CU(cuMemcpy3DBatchAsync(1, &in, 0, stream)); /* in one batch they would have no order */
    CU(cuMemcpy3DBatchAsync(1, &over, 0, stream));
    CU(cuMemcpy3DBatchAsync(1, &out, 0, stream));
    CU(cuStreamSynchronize(stream));
    size_t same = agree(to[target], 0, 512, 21);
    EXPECT(same == 512, "through arrays, %s to %s: %zu bytes are right", names[source],
           names[target], same);
    CU(cuArrayDestroy(one));
    CU(cuArrayDestroy(two));
}

static void boxes_refused(void)
{
    const CUDA_MEMCPY3D_BATCH_OP good = box(memory(to[DEVICE], 0, 0), memory(from[DEVICE], 0, 0), 8,
                                            2, 1);
    CUDA_MEMCPY3D_BATCH_OP two[2] = {good, good};

#define REFUSED(change)                                                                            \
    do {                                                                                           \
        two[1] = good;                                                                             \
        change;                                                                                    \
        CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, two, 0, stream));               \
    } while (0)
    CU(cuMemcpy3DBatchAsync(2, two, 0, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, two, 1, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(0, two, 0, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, NULL, 0, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, two, 0, CU_STREAM_LEGACY));
    REFUSED(two[1].extent.width = 0);
    REFUSED(two[1].extent.depth = 0);
    REFUSED(two[1].src.op.ptr.rowLength = 7);
    REFUSED(two[1].dst.op.ptr.layerHeight = 1);
    REFUSED(two[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID);
    REFUSED(two[1].src.type = (CUmemcpy3DOperandType)3);
    REFUSED(two[1].dst.op.ptr.ptr = 0);
    REFUSED(two[1].extent.width = SIZE_MAX);
#undef REFUSED
    CU(cuStreamSynchronize(stream));
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    take(from, pageable[0]);
    take(to, pageable[1]);
    all_kinds(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    all_kinds(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
    all_kinds(CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
    order_of_reads();
    lines_refused();
    not_captured();
    for (unsigned i = 0; i < KINDS * KINDS; i++) {
        box_of_memory(i / KINDS, i % KINDS);
        box_of_arrays(i / KINDS, i % KINDS);
    }
    boxes_refused();
    give(from);
    give(to);
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_copies");
}
