/*
 * CUDA arrays of every shape: what they say of themselves, copies between them and every kind of
 * memory, by boxes and by lines, in streams and in graphs, and what is refused.
 */
#include "driver.h"

#include <stdbool.h>

/* --- shapes -------------------------------------------------------------------------------- */

static CUarray made(size_t width, size_t height, size_t depth, CUarray_format format,
                    unsigned channels, unsigned flags)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, format, channels, flags};
    CUDA_ARRAY3D_DESCRIPTOR told = {0};
    CUarray array = NULL;

    CU(cuArray3DCreate(&array, &d));
    CU(cuArray3DGetDescriptor(&told, array));
    EXPECT(told.Width == width && told.Height == height && told.Depth == depth &&
               told.Format == format && told.NumChannels == channels && told.Flags == flags,
           "an array of %zu x %zu x %zu says %zu x %zu x %zu, format %d x %u, flags %u", width,
           height, depth, told.Width, told.Height, told.Depth, (int)told.Format, told.NumChannels,
           told.Flags);
    return array;
}

static void shapes(void)
{
    const struct {
        size_t width, height, depth;
        unsigned flags;
    } all[] = {
        {1000, 0, 0, 0},
        {64, 32, 0, 0},
        {64, 32, 0, CUDA_ARRAY3D_SURFACE_LDST},
        {64, 32, 0, CUDA_ARRAY3D_TEXTURE_GATHER},
        {16, 8, 4, 0},
        {16, 0, 5, CUDA_ARRAY3D_LAYERED},
        {16, 8, 5, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST},
        {16, 16, 6, CUDA_ARRAY3D_CUBEMAP},
        {16, 16, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CU(cuArrayDestroy(made(all[i].width, all[i].height, all[i].depth, CU_AD_FORMAT_FLOAT,
                               i % 2 ? 4 : 1, all[i].flags)));

    const CUDA_ARRAY_DESCRIPTOR flat = {48, 16, CU_AD_FORMAT_UNSIGNED_INT16, 2};
    CUDA_ARRAY_DESCRIPTOR told = {0};
    CUarray array;
    CU(cuArrayCreate(&array, &flat));
    CU(cuArrayGetDescriptor(&told, array));
    EXPECT(memcmp(&told, &flat, sizeof flat) == 0, "a flat array says something else");
    CU(cuArrayDestroy(array));
}

static void shapes_refused(void)
{
    const CUDA_ARRAY3D_DESCRIPTOR all[] = {
        {0, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0},
        {16, 16, 0, CU_AD_FORMAT_FLOAT, 3, 0},
        {16, 16, 0, CU_AD_FORMAT_FLOAT, 0, 0},
        {16, 8, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP},
        {16, 16, 5, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP},
        {(size_t)1 << 40, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0},
        {SIZE_MAX, SIZE_MAX, 0, CU_AD_FORMAT_FLOAT, 4, 0},
    };
    CUarray array = (CUarray)1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CUresult r = cuArray3DCreate(&array, &all[i]);
        EXPECT(r == CUDA_ERROR_INVALID_VALUE || (i > 4 && r == CUDA_ERROR_OUT_OF_MEMORY),
               "array %zu that cannot be gave %s", i, driver_name(r));
    }
    EXPECT(array == (CUarray)1, "a failed creation left an array");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(NULL, &all[1]));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, NULL));
}

/* --- copies ----------------------------------------------------------------------------- */

enum kind { PAGEABLE, PINNED, DEVICE, ARRAY, KINDS };
static const char *const names[] = {"pageable", "pinned", "device", "array"};

#define WIDTH 24 /* elements of 8 bytes */
#define HEIGHT 10
#define DEPTH 3
#define ELEMENT ((size_t)8)
#define ROW (WIDTH * ELEMENT)
#define BYTES (ROW * HEIGHT * DEPTH)

static unsigned char *pageable, *pinned, *check, *fill;
static CUdeviceptr memory;
static CUarray array, other;
static CUstream stream;

static void from(CUDA_MEMCPY3D *c, enum kind kind, CUarray a)
{
    c->srcMemoryType = kind == ARRAY    ? CU_MEMORYTYPE_ARRAY
                       : kind == DEVICE ? CU_MEMORYTYPE_DEVICE
                                        : CU_MEMORYTYPE_HOST;
    c->srcArray = a;
    c->srcDevice = memory;
    c->srcHost = kind == PINNED ? pinned : pageable;
    c->srcPitch = ROW;
    c->srcHeight = HEIGHT;
}

static void to(CUDA_MEMCPY3D *c, enum kind kind, CUarray a)
{
    c->dstMemoryType = kind == ARRAY    ? CU_MEMORYTYPE_ARRAY
                       : kind == DEVICE ? CU_MEMORYTYPE_DEVICE
                                        : CU_MEMORYTYPE_HOST;
    c->dstArray = a;
    c->dstDevice = memory;
    c->dstHost = kind == PINNED ? pinned : pageable;
    c->dstPitch = ROW;
    c->dstHeight = HEIGHT;
}

/* All of it, with host memory of its own, by pieces of the driver that other tests hold. */
static void all_of(enum kind kind, unsigned char *host, CUarray a, bool put)
{
    CUDA_MEMCPY3D c = {.WidthInBytes = ROW, .Height = HEIGHT, .Depth = DEPTH};
    if (kind == PAGEABLE || kind == PINNED) {
        unsigned char *own = kind == PINNED ? pinned : pageable;
        memcpy(put ? own : host, put ? host : own, BYTES);
    } else if (kind == DEVICE) {
        CU(put ? cuMemcpyHtoD(memory, host, BYTES) : cuMemcpyDtoH(host, memory, BYTES));
    } else {
        unsigned char *before = pageable;
        pageable = host;
        from(&c, put ? PAGEABLE : ARRAY, a);
        to(&c, put ? ARRAY : PAGEABLE, a);
        CU(cuMemcpy3D(&c));
        pageable = before;
    }
}

/* The box, in host memory that stands for each end. */
static void expect_box(const CUDA_MEMCPY3D *c, const unsigned char *src, unsigned char *dst)
{
    for (size_t z = 0; z < c->Depth; z++)
        for (size_t y = 0; y < c->Height; y++)
            memcpy(dst + ((c->dstZ + z) * HEIGHT + c->dstY + y) * ROW + c->dstXInBytes,
                   src + ((c->srcZ + z) * HEIGHT + c->srcY + y) * ROW + c->srcXInBytes,
                   c->WidthInBytes);
}

static void between(enum kind a, enum kind b, bool async)
{
    static unsigned char src[BYTES], dst[BYTES], got[BYTES];
    CUDA_MEMCPY3D c = {.srcXInBytes = 2 * ELEMENT,
                       .srcY = 1,
                       .srcZ = 1,
                       .dstXInBytes = 5 * ELEMENT,
                       .dstY = 2,
                       .WidthInBytes = 7 * ELEMENT,
                       .Height = 6,
                       .Depth = 2};
    if (a != ARRAY && b != ARRAY)
        return; /* other programs have these */
    for (size_t i = 0; i < BYTES; i++) {
        src[i] = (unsigned char)(i * 31 + (size_t)a * 7 + (size_t)b);
        dst[i] = (unsigned char)(i * 17 + 3);
    }
    for (int whole = 0; whole < 2; whole++) {
        if (whole)
            c = (CUDA_MEMCPY3D){.WidthInBytes = ROW, .Height = HEIGHT, .Depth = DEPTH};
        all_of(a, src, array, true);
        all_of(b, dst, other, true);
        from(&c, a, array);
        to(&c, b, other);
        if (async)
            CU(cuMemcpy3DAsync(&c, stream));
        else
            CU(cuMemcpy3D(&c));
        if (async)
            CU(cuStreamSynchronize(stream));
        all_of(b, got, other, false);
        expect_box(&c, src, dst);
        EXPECT(memcmp(got, dst, BYTES) == 0, "%s of %s to %s%s is wrong", whole ? "all" : "a box",
               names[a], names[b], async ? ", in a stream," : "");
    }
}

static void every_pair(void)
{
    for (int a = 0; a < KINDS; a++)
        for (int b = 0; b < KINDS; b++) {
            between((enum kind)a, (enum kind)b, false);
            between((enum kind)a, (enum kind)b, true);
        }
}

static void in_peer_form(void)
{
    CUDA_MEMCPY3D_PEER c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                            .srcHost = fill,
                            .srcContext = driver_context,
                            .srcPitch = ROW,
                            .srcHeight = HEIGHT,
                            .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                            .dstArray = array,
                            .dstContext = driver_context,
                            .WidthInBytes = ROW,
                            .Height = HEIGHT,
                            .Depth = DEPTH};
    CU(cuMemcpy3DPeer(&c));
    c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    c.srcArray = array;
    c.dstArray = other;
    CU(cuMemcpy3DPeerAsync(&c, stream));
    CU(cuStreamSynchronize(stream));
    all_of(ARRAY, check, other, false);
    EXPECT(memcmp(check, fill, BYTES) == 0, "an array copied between contexts is wrong");
}

/* --- flat and long ones ------------------------------------------------------------------- */

/* Rows that are longer than a message, and more of them than fit into one. */
static void large(size_t width, size_t height)
{
    size_t bytes = width * height * 16, pitch = width * 16;
    CUarray a = made(width, height, 0, CU_AD_FORMAT_UNSIGNED_INT32, 4, 0);
    unsigned *there = malloc(bytes), *back = calloc(1, bytes);
    REQUIRE(there && back, "no memory");
    for (size_t i = 0; i < bytes / 4; i++)
        there[i] = (unsigned)(i * 2654435761u);
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = there,
                       .srcPitch = pitch,
                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                       .dstArray = a,
                       .WidthInBytes = pitch,
                       .Height = height};
    CU(cuMemcpy2DUnaligned(&c));
    CUDA_MEMCPY2D d = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                       .srcArray = a,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = back,
                       .dstPitch = pitch,
                       .WidthInBytes = pitch,
                       .Height = height};
    CU(cuMemcpy2DAsync(&d, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(memcmp(there, back, bytes) == 0, "%zu rows of %zu elements came back wrong", height,
           width);
    CU(cuArrayDestroy(a));
    free(there);
    free(back);
}

static void lines(void)
{
    CUarray a = made(BYTES, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0);
    CUarray b = made(BYTES, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0);

    CU(cuMemcpyHtoA(a, 0, fill, BYTES));
    CU(cuMemcpyAtoA(b, 8, a, 16, BYTES - 64));
    CU(cuMemcpyAtoD(memory, b, 8, BYTES - 64));
    CU(cuMemcpyDtoH(check, memory, BYTES - 64));
    EXPECT(memcmp(check, fill + 16, BYTES - 64) == 0, "a line through two arrays is wrong");
    CU(cuMemcpyDtoA(a, 32, memory, 128));
    CU(cuMemcpyAtoH(check, a, 32, 128));
    EXPECT(memcmp(check, fill + 16, 128) == 0, "a line from memory to an array is wrong");
    memcpy(pinned, fill + 100, 512);
    CU(cuMemcpyHtoAAsync(b, 0, pinned, 512, stream));
    CU(cuMemcpyAtoHAsync(pinned + 1024, b, 0, 512, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(memcmp(pinned + 1024, fill + 100, 512) == 0, "a line in a stream is wrong");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(a, BYTES - 8, fill, 16));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH(check, a, BYTES, 1));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoA(a, 0, b, SIZE_MAX, 2));
    CU(cuArrayDestroy(a));
    CU(cuArrayDestroy(b));
}

/* --- graphs, levels ----------------------------------------------------------------------- */

static void captured(enum kind kind)
{
    CUDA_MEMCPY3D up = {.WidthInBytes = ROW, .Height = HEIGHT, .Depth = DEPTH}, down = up;
    unsigned char *host = kind == PINNED ? pinned : pageable;
    CUgraph graph;
    CUgraphExec exec;

    from(&up, kind, NULL);
    to(&up, ARRAY, array);
    from(&down, ARRAY, array);
    to(&down, kind, NULL);
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuMemcpy3DAsync(&up, stream));
    down.dstHost = host + BYTES;
    CU(cuMemcpy3DAsync(&down, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < BYTES; i++)
            host[i] = (unsigned char)(fill[i] + round);
        memset(host + BYTES, 0, BYTES);
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(memcmp(host, host + BYTES, BYTES) == 0,
               "round %d of a graph with %s memory is wrong", round, names[kind]);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void levels(void)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {64, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray mipmap;
    CUarray level, again;

    CU(cuMipmappedArrayCreate(&mipmap, &d, 100));
    for (unsigned i = 0; i < 7; i++) {
        CUDA_ARRAY3D_DESCRIPTOR told;
        CU(cuMipmappedArrayGetLevel(&level, mipmap, i));
        CU(cuMipmappedArrayGetLevel(&again, mipmap, i));
        CU(cuArray3DGetDescriptor(&told, level));
        EXPECT(told.Width == 64u >> i && told.Height == (16u >> i ? 16u >> i : 1),
               "level %u is %zu x %zu", i, told.Width, told.Height);
        EXPECT(level == again, "level %u is two arrays", i);
    }
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, mipmap, 7));
    CU(cuMipmappedArrayGetLevel(&level, mipmap, 2));
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = fill,
                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                       .dstArray = level,
                       .WidthInBytes = 64,
                       .Height = 4};
    CU(cuMemcpy2D(&c));
    c = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                        .srcArray = level,
                        .dstMemoryType = CU_MEMORYTYPE_HOST,
                        .dstHost = check,
                        .WidthInBytes = 64,
                        .Height = 4};
    CU(cuMemcpy2D(&c));
    EXPECT(memcmp(check, fill, 256) == 0, "a level came back wrong");
    c.Height = 5;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
    CU(cuMipmappedArrayDestroy(mipmap));
}

/* --- what is refused ------------------------------------------------------------------------ */

static void boxes_refused(void)
{
    const struct {
        size_t x, y, z, width, height, depth;
    } all[] = {
        {0, 0, 0, ROW + ELEMENT, 1, 1},      {ELEMENT, 0, 0, ROW, 1, 1},
        {0, 1, 0, ELEMENT, HEIGHT, 1},       {0, 0, 1, ELEMENT, 1, DEPTH},
        {0, HEIGHT, 0, ELEMENT, 1, 1},       {0, 0, DEPTH, ELEMENT, 1, 1},
        {SIZE_MAX - 7, 0, 0, ELEMENT, 1, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CUDA_MEMCPY3D c = {.srcXInBytes = all[i].x,
                           .srcY = all[i].y,
                           .srcZ = all[i].z,
                           .WidthInBytes = all[i].width,
                           .Height = all[i].height,
                           .Depth = all[i].depth};
        from(&c, ARRAY, array);
        to(&c, DEVICE, NULL);
        c.dstPitch = c.dstHeight = 0;
        CUresult r = cuMemcpy3D(&c);
        EXPECT(r == CUDA_ERROR_INVALID_VALUE, "box %zu beyond an array gave %s", i, driver_name(r));
    }
}

static void properties_refused(void)
{
    CUDA_ARRAY_SPARSE_PROPERTIES sparse;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    const CUDA_ARRAY3D_DESCRIPTOR d = {64, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray mipmap;
    CUarray plane;

    CU(cuMipmappedArrayCreate(&mipmap, &d, 3));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&sparse, array));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetSparseProperties(&sparse, mipmap));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&needs, array, driver_device));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMipmappedArrayGetMemoryRequirements(&needs, mipmap, driver_device));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&plane, array, 0));
    CU(cuMipmappedArrayDestroy(mipmap));
}

/* What is destroyed comes back, also if a context takes it with it. */
static void nothing_is_kept(void)
{
    size_t before, after, total;
    CUcontext own;
    const CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 8, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_LAYERED};

    CU(cuCtxSynchronize());
    CU(cuMemGetInfo(&before, &total));
    for (int i = 0; i < 20; i++) {
        CUarray a;
        CUmipmappedArray m;
        CU(cuArray3DCreate(&a, &d));
        CU(cuMipmappedArrayCreate(&m, &d, 11));
        CU(cuArrayDestroy(a));
        CU(cuMipmappedArrayDestroy(m));
    }
    CU(cuCtxCreate(&own, NULL, 0, driver_device));
    CUarray a;
    CU(cuArray3DCreate(&a, &d));
    CU(cuCtxDestroy(own));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuMemGetInfo(&after, &total));
    EXPECT(after + ((size_t)64 << 20) >= before, "%zu MiB are gone", (before - after) >> 20);
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    CU(cuMemAlloc(&memory, BYTES));
    CU(cuMemHostAlloc((void **)&pinned, 2 * BYTES, 0));
    pageable = malloc(2 * BYTES);
    check = malloc(BYTES);
    fill = malloc(BYTES);
    REQUIRE(pageable && check && fill, "no memory");
    for (size_t i = 0; i < BYTES; i++)
        fill[i] = (unsigned char)(i * 13 + (i >> 8));
    shapes();
    shapes_refused();
    array = made(WIDTH, HEIGHT, DEPTH, CU_AD_FORMAT_UNSIGNED_INT32, 2, 0);
    other = made(WIDTH, HEIGHT, DEPTH, CU_AD_FORMAT_UNSIGNED_INT32, 2, 0);
    every_pair();
    in_peer_form();
    large(1000, 300);
    large(100000, 3);
    lines();
    captured(PINNED);
    captured(PAGEABLE);
    levels();
    boxes_refused();
    properties_refused();
    CU(cuArrayDestroy(array));
    CU(cuArrayDestroy(other));
    nothing_is_kept();
    free(pageable);
    free(check);
    free(fill);
    CU(cuMemFreeHost(pinned));
    CU(cuMemFree(memory));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_arrays");
}
