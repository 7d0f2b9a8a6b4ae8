/*
 * Boxes of tensors, copied by kernels between global and shared memory (cp.async.bulk.tensor):
 * tiles of all dimensions, swizzled and over the edges of their tensors, columns of pixels, stores,
 * reductions, and one box for both blocks of a cluster. What must come out is computed here. Boxes
 * begin at a multiple of 16 bytes of their rows: a card ends a kernel that asks for another.
 */
#include "driver.h"

#include <stdbool.h>
#include <stdint.h>

#define RANK 5
#define ROOM 16384u
#define THREADS 64u
#define TENSOR_MOST (1u << 18)

struct tensor {
    CUtensorMapDataType type;
    unsigned rank, element;
    cuuint64_t size[RANK], stride[RANK - 1]; /* stride: bytes */
    cuuint32_t box[RANK], step[RANK];
    CUtensorMapSwizzle swizzle;
    int lower[3], upper[3]; /* of columns: W, H, D */
    unsigned channels, pixels;
};

static unsigned char content[TENSOR_MOST], result[TENSOR_MOST], expected[ROOM], room[2 * ROOM];
static CUdeviceptr memory, out;
static char text[8192];

/* --- kernels ------------------------------------------------------------------------------- */

static const char head[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".shared .align 1024 .b8 room[16384];\n.shared .align 8 .b64 bar;\n"
    ".visible .entry k(.param .align 64 .b8 map[128], .param .u64 at, .param .align 4 .b8 c[20],\n"
    " .param .u32 bytes, .param .u32 offsets)%s\n{\n"
    ".reg .b32 %%r<8>, %%c<5>;\n.reg .b64 %%x<4>;\n.reg .b16 %%h<4>;\n.reg .pred %%p<3>;\n"
    "mov.u32 %%r0, %%tid.x;\nsetp.eq.u32 %%p0, %%r0, 0;\nld.param.u64 %%x0, [at];\n"
    "ld.param.u32 %%r1, [bytes];\nmov.b64 %%x1, map;\ncvta.param.u64 %%x1, %%x1;\n"
    "ld.param.u32 %%c0, [c];\nld.param.u32 %%c1, [c+4];\nld.param.u32 %%c2, [c+8];\n"
    "ld.param.u32 %%c3, [c+12];\nld.param.u32 %%c4, [c+16];\n"
    "ld.param.u32 %%r6, [offsets];\nand.b32 %%r7, %%r6, 255;\ncvt.u16.u32 %%h0, %%r7;\n"
    "bfe.u32 %%r7, %%r6, 8, 8;\ncvt.u16.u32 %%h1, %%r7;\n"
    "bfe.u32 %%r7, %%r6, 16, 8;\ncvt.u16.u32 %%h2, %%r7;\n"
    "mov.u32 %%r2, room;\nmov.u32 %%r3, bar;\nmov.u32 %%r7, %%ctaid.x;\n"
    "mad.wide.u32 %%x0, %%r7, 16384, %%x0;\n";

/* Every byte of the room is set before: what nobody writes shows. */
static const char load_before[] = "mul.lo.u32 %r4, %r0, 4;\nFILL:\nadd.u32 %r5, %r2, %r4;\n"
                                  "st.shared.b32 [%r5], -1;\nadd.u32 %r4, %r4, 256;\n"
                                  "setp.lt.u32 %p1, %r4, 16384;\n@%p1 bra FILL;\n"
                                  "@%p0 mbarrier.init.shared.b64 [%r3], 1;\n"
                                  "fence.mbarrier_init.release.cluster;\nfence.proxy.async;\n"
                                  "bar.sync 0;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n"
                                  "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], %r1;\n";
static const char load_after[] =
    "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;\n@!%p1 bra WAIT;\n"
    "mul.lo.u32 %r4, %r0, 4;\nGIVE:\nadd.u32 %r5, %r2, %r4;\nld.shared.b32 %r6, [%r5];\n"
    "cvt.u64.u32 %x2, %r4;\nadd.u64 %x3, %x0, %x2;\nst.global.b32 [%x3], %r6;\n"
    "add.u32 %r4, %r4, 256;\nsetp.lt.u32 %p1, %r4, 16384;\n@%p1 bra GIVE;\nret;\n}\n";
static const char store_before[] =
    "mul.lo.u32 %r4, %r0, 4;\nTAKE:\nadd.u32 %r5, %r2, %r4;\ncvt.u64.u32 %x2, %r4;\n"
    "add.u64 %x3, %x0, %x2;\nld.global.b32 %r6, [%x3];\nst.shared.b32 [%r5], %r6;\n"
    "add.u32 %r4, %r4, 256;\nsetp.lt.u32 %p1, %r4, 16384;\n@%p1 bra TAKE;\n"
    "fence.proxy.async;\nbar.sync 0;\n@!%p0 bra END;\n";
static const char store_after[] =
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nEND:\nret;\n}\n";

static const char *const places[] = {
    "", "%c0", "%c0, %c1", "%c0, %c1, %c2", "%c0, %c1, %c2, %c3", "%c0, %c1, %c2, %c3, %c4"};

static CUfunction function_of(CUmodule *module, const char *before, const char *copy,
                              const char *after, const char *cluster)
{
    CUfunction f;
    size_t used = (size_t)snprintf(text, sizeof text, head, cluster);
    snprintf(text + used, sizeof text - used, "%s%s%s", before, copy, after);
    CU(cuModuleLoadData(module, text));
    CU(cuModuleGetFunction(&f, *module, "k"));
    return f;
}

static void run(CUfunction f, const CUtensorMap *map, const int *first, unsigned bytes,
                unsigned offsets, unsigned blocks)
{
    int c[RANK] = {0};
    memcpy(c, first, sizeof c);
    void *parameters[] = {(void *)(uintptr_t)map, &out, c, &bytes, &offsets};
    CU(cuLaunchKernel(f, blocks, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL));
    CU(cuCtxSynchronize());
}

/* --- what must come out -------------------------------------------------------------------- */

static void fill(void *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((unsigned char *)at)[i] = (unsigned char)(seed >> 24);
    }
}

static size_t tensor_bytes(const struct tensor *t)
{
    return t->rank == 1 ? (t->size[0] * t->element + 15) & ~(size_t)15
                        : t->size[t->rank - 1] * t->stride[t->rank - 2];
}

static unsigned count_of(const struct tensor *t, unsigned i)
{
    return i ? (t->box[i] + t->step[i] - 1) / t->step[i] : t->box[0];
}

static unsigned pitch_of(const struct tensor *t)
{
    unsigned row = (t->channels ? t->channels : t->box[0]) * t->element;
    return t->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? row : 16u << t->swizzle;
}

static unsigned swizzled(const struct tensor *t, unsigned at)
{
    unsigned mask = t->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : (1u << t->swizzle) - 1;
    return at ^ ((at >> 7 & mask) << 4);
}

/* The element of the tensor in its memory; NULL: it is outside. */
static unsigned char *element_of(const struct tensor *t, unsigned char *base, const long long *at)
{
    size_t offset = 0;
    for (unsigned i = 0; i < t->rank; i++) {
        if (at[i] < 0 || at[i] >= (long long)t->size[i])
            return NULL;
        offset += (size_t)at[i] * (i ? t->stride[i - 1] : t->element);
    }
    return base + offset;
}

typedef void (*visitor)(const struct tensor *t, unsigned place, const long long *at);

/* Every element of a tile, in shared memory's order. */
static unsigned tile_visit(const struct tensor *t, const int *first, visitor visit)
{
    unsigned elements = 1, row = count_of(t, 0);
    for (unsigned i = 0; i < t->rank; i++)
        elements *= count_of(t, i);
    for (unsigned n = 0; n < elements; n++) {
        long long at[RANK];
        unsigned left = n;
        for (unsigned i = 0; i < t->rank; i++) {
            at[i] = first[i] + (long long)(left % count_of(t, i)) * (i ? t->step[i] : 1);
            left /= count_of(t, i);
        }
        visit(t, swizzled(t, n / row * pitch_of(t) + n % row * t->element), at);
    }
    return elements * t->element;
}

static void take(const struct tensor *t, unsigned place, const long long *at)
{
    const unsigned char *from = element_of(t, content, at);
    if (from)
        memcpy(expected + place, from, t->element);
    else
        memset(expected + place, 0, t->element);
}

/* The pixels of a column: W first, then H and D, each within the box; then the next image. */
static unsigned column_take(const struct tensor *t, const int *first, const unsigned *offset)
{
    long long base[RANK];
    for (unsigned i = 0; i < t->rank; i++)
        base[i] = first[i];
    for (unsigned n = 0; n < t->pixels; n++) {
        long long at[RANK];
        for (unsigned i = 0; i < t->rank; i++)
            at[i] = base[i] + (i && i + 1 < t->rank ? offset[i - 1] : 0);
        for (unsigned c = 0; c < t->channels; c++, at[0]++)
            take(t, swizzled(t, n * pitch_of(t) + c * t->element), at);
        unsigned i = 1;
        for (; i + 1 < t->rank; i++) {
            base[i] += t->step[i];
            if (base[i] < (long long)t->size[i] + t->upper[i - 1])
                break;
            base[i] = t->lower[i - 1];
        }
        if (i + 1 == t->rank)
            base[i] += t->step[i];
    }
    return t->pixels * t->channels * t->element;
}

/* --- cases ---------------------------------------------------------------------------------- */

static CUtensorMap map_of(const struct tensor *t)
{
    CUtensorMap map;
    void *at = (void *)(uintptr_t)memory;
    if (t->channels)
        CU(cuTensorMapEncodeIm2col(
            &map, t->type, t->rank, at, t->size, t->stride, t->lower, t->upper, t->channels,
            t->pixels, t->step, CU_TENSOR_MAP_INTERLEAVE_NONE, t->swizzle,
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    else
        CU(cuTensorMapEncodeTiled(&map, t->type, t->rank, at, t->size, t->stride, t->box, t->step,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, t->swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

static void content_set(const struct tensor *t, unsigned seed)
{
    REQUIRE(tensor_bytes(t) <= sizeof content, "the tensor is too large");
    fill(content, tensor_bytes(t), seed);
    CU(cuMemcpyHtoD(memory, content, tensor_bytes(t)));
}

static void room_compare(const char *name, const unsigned char *got)
{
    for (unsigned i = 0; i < ROOM; i++)
        if (got[i] != expected[i]) {
            EXPECT(false, "%s: byte %u is %02x, expected %02x", name, i, got[i], expected[i]);
            return;
        }
}

static void load(const char *name, const struct tensor *t, const int *first, unsigned offsets)
{
    char copy[256], more[64] = "";
    static const char *const infos[] = {
        [3] = ", {%h0}", [4] = ", {%h0, %h1}", [5] = ", {%h0, %h1, %h2}"};
    unsigned offset[] = {offsets & 255, offsets >> 8 & 255, offsets >> 16 & 255};
    CUtensorMap map = map_of(t);
    CUmodule module;

    content_set(t, 7);
    memset(expected, 0xff, sizeof expected);
    unsigned bytes = t->channels ? column_take(t, first, offset) : tile_visit(t, first, take);
    if (t->channels)
        snprintf(more, sizeof more, "%s", infos[t->rank]);
    snprintf(copy, sizeof copy,
             "@%%p0 cp.async.bulk.tensor.%ud.shared::cluster.global.%s.mbarrier::complete_tx::bytes"
             " [%%r2], [%%x1, {%s}], [%%r3]%s;\n",
             t->rank, t->channels ? "im2col" : "tile", places[t->rank], more);
    CUfunction f = function_of(&module, load_before, copy, load_after, "");
    run(f, &map, first, bytes, offsets, 1);
    CU(cuMemcpyDtoH(room, out, ROOM));
    room_compare(name, room);
    CU(cuModuleUnload(module));
    SAY("%s: %u bytes", name, bytes);
}

static const struct tensor line = {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                   .rank = 1,
                                   .element = 1,
                                   .size = {100},
                                   .stride = {0},
                                   .box = {32},
                                   .step = {1}};
static const struct tensor plane = {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                    .rank = 2,
                                    .element = 2,
                                    .size = {64, 40},
                                    .stride = {144},
                                    .box = {64, 8},
                                    .step = {1, 1},
                                    .swizzle = CU_TENSOR_MAP_SWIZZLE_128B};
static const struct tensor sixty_four = {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                         .rank = 2,
                                         .element = 4,
                                         .size = {20, 20},
                                         .stride = {80},
                                         .box = {16, 16},
                                         .step = {1, 1},
                                         .swizzle = CU_TENSOR_MAP_SWIZZLE_64B};
static const struct tensor thirty_two = {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                         .rank = 2,
                                         .element = 1,
                                         .size = {64, 64},
                                         .stride = {64},
                                         .box = {32, 40},
                                         .step = {1, 1},
                                         .swizzle = CU_TENSOR_MAP_SWIZZLE_32B};
static const struct tensor steps = {.type = CU_TENSOR_MAP_DATA_TYPE_UINT16,
                                    .rank = 3,
                                    .element = 2,
                                    .size = {24, 10, 6},
                                    .stride = {48, 480},
                                    .box = {16, 7, 4},
                                    .step = {1, 2, 3}};
static const struct tensor four = {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
                                   .rank = 4,
                                   .element = 8,
                                   .size = {6, 5, 4, 3},
                                   .stride = {48, 240, 960},
                                   .box = {4, 3, 3, 2},
                                   .step = {1, 1, 1, 1}};
static const struct tensor five = {.type = CU_TENSOR_MAP_DATA_TYPE_INT32,
                                   .rank = 5,
                                   .element = 4,
                                   .size = {8, 4, 3, 3, 2},
                                   .stride = {32, 128, 384, 1152},
                                   .box = {4, 3, 2, 2, 2},
                                   .step = {1, 1, 2, 1, 1}};
static const struct tensor image = {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                    .rank = 4,
                                    .element = 2,
                                    .size = {16, 6, 5, 3},
                                    .stride = {32, 192, 960},
                                    .step = {1, 1, 1, 1},
                                    .swizzle = CU_TENSOR_MAP_SWIZZLE_32B,
                                    .lower = {-1, -1},
                                    .upper = {-1, -1},
                                    .channels = 16,
                                    .pixels = 40};
static const struct tensor strided = {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                      .rank = 4,
                                      .element = 2,
                                      .size = {16, 7, 7, 2},
                                      .stride = {32, 224, 1568},
                                      .step = {1, 2, 2, 1},
                                      .lower = {-1, -1},
                                      .upper = {-1, -1},
                                      .channels = 8,
                                      .pixels = 20};
static const struct tensor volume = {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                     .rank = 5,
                                     .element = 1,
                                     .size = {32, 4, 3, 3, 2},
                                     .stride = {32, 128, 384, 1152},
                                     .step = {1, 1, 1, 1, 1},
                                     .lower = {-1, 0, -1},
                                     .upper = {0, 0, -1},
                                     .channels = 16,
                                     .pixels = 60};

static void tiles(void)
{
    load("a line", &line, (const int[RANK]){16}, 0);
    load("a line from before its begin", &line, (const int[RANK]){-16}, 0);
    load("a line beyond its end", &line, (const int[RANK]){80}, 0);
    load("a line that is outside", &line, (const int[RANK]){1008}, 0);
    load("swizzled by 128", &plane, (const int[RANK]){0, 8}, 0);
    load("swizzled by 128, beyond the end", &plane, (const int[RANK]){8, 36}, 0);
    load("swizzled by 64", &sixty_four, (const int[RANK]){-4, -5}, 0);
    load("swizzled by 32", &thirty_two, (const int[RANK]){16, 40}, 0);
    load("by steps", &steps, (const int[RANK]){8, 1, 1}, 0);
    load("four dimensions", &four, (const int[RANK]){2, 3, 2, -1}, 0);
    load("five dimensions", &five, (const int[RANK]){4, 2, 0, 2, 1}, 0);
}

static void columns(void)
{
    load("columns", &image, (const int[RANK]){0, -1, -1, 0}, 0);
    load("columns with offsets", &image, (const int[RANK]){0, 2, 1, 1}, 0x0102);
    load("columns by steps", &strided, (const int[RANK]){8, -1, 1, 0}, 0x0201);
    load("columns of a volume", &volume, (const int[RANK]){16, 0, 1, -1, 0}, 0x010001);
}

/* --- stores and reductions ------------------------------------------------------------------- */

static const char *reduction;

static void give(const struct tensor *t, unsigned place, const long long *at)
{
    unsigned char *to = element_of(t, content, at);
    unsigned a, b;
    if (!to)
        return;
    if (!*reduction) {
        memcpy(to, room + place, t->element);
        return;
    }
    memcpy(&a, to, sizeof a);
    memcpy(&b, room + place, sizeof b);
    if (strcmp(reduction, "add") == 0)
        a += b;
    else if (strcmp(reduction, "min") == 0)
        a = (int)a < (int)b ? a : b;
    else
        a ^= b;
    memcpy(to, &a, sizeof a);
}

static void store(const char *name, const struct tensor *t, const int *first, const char *with)
{
    char copy[256];
    CUtensorMap map = map_of(t);
    CUmodule module;

    reduction = with;
    content_set(t, 11);
    fill(room, ROOM, 13);
    CU(cuMemcpyHtoD(out, room, ROOM));
    unsigned bytes = tile_visit(t, first, give);
    snprintf(copy, sizeof copy,
             "cp.%sasync.bulk.tensor.%ud.global.shared::cta.%s%stile.bulk_group"
             " [%%x1, {%s}], [%%r2];\n",
             *with ? "reduce." : "", t->rank, with, *with ? "." : "", places[t->rank]);
    CUfunction f = function_of(&module, store_before, copy, store_after, "");
    run(f, &map, first, bytes, 0, 1);
    CU(cuMemcpyDtoH(result, memory, tensor_bytes(t)));
    EXPECT(memcmp(result, content, tensor_bytes(t)) == 0, "%s: the tensor has other bytes", name);
    CU(cuModuleUnload(module));
    SAY("%s: %u bytes", name, bytes);
}

static void stores(void)
{
    struct tensor whole = sixty_four;
    store("a stored line", &line, (const int[RANK]){-16}, "");
    store("a stored tile", &plane, (const int[RANK]){0, 36}, "");
    store("a stored tile by steps", &steps, (const int[RANK]){8, 1, 1}, "");
    whole.type = CU_TENSOR_MAP_DATA_TYPE_INT32;
    store("a tile that adds", &whole, (const int[RANK]){-4, 7}, "add");
    store("a tile of least numbers", &whole, (const int[RANK]){8, -5}, "min");
    whole.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
    store("a tile that differs", &whole, (const int[RANK]){0, 0}, "xor");
}

/* One box comes to the same place of both blocks, and each block's barrier counts it. */
static void both_blocks(void)
{
    static const char copy[] =
        "mov.u32 %r4, %cluster_ctarank;\nsetp.eq.u32 %p2, %r4, 0;\nand.pred %p2, %p2, %p0;\n"
        "mov.b16 %h3, 3;\n"
        "@%p2 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%r2], [%x1, {%c0, %c1}], [%r3], %h3;\n";
    const int first[RANK] = {0, 8};
    CUtensorMap map = map_of(&plane);
    CUmodule module;

    content_set(&plane, 17);
    memset(expected, 0xff, sizeof expected);
    unsigned bytes = tile_visit(&plane, first, take);
    CUfunction f = function_of(&module, load_before, copy, load_after, " .reqnctapercluster 2");
    run(f, &map, first, bytes, 0, 2);
    CU(cuMemcpyDtoH(room, out, 2 * ROOM));
    room_compare("the first block", room);
    room_compare("the second block", room + ROOM);
    CU(cuModuleUnload(module));
}

int main(void)
{
    int has = 0;
    driver_start();
    CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, driver_device));
    if (has) {
        CU(cuMemAlloc(&memory, TENSOR_MOST));
        CU(cuMemAlloc(&out, 2 * ROOM));
        tiles();
        columns();
        stores();
        both_blocks();
        CU(cuMemFree(out));
        CU(cuMemFree(memory));
    }
    driver_stop();
    return finish("driver_tensor_copies");
}
