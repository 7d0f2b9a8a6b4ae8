// What kernels read through textures and write through surfaces, by the formulas of CUDA's
// programming guide. Coordinates are such that weights of linear filtering are whole eighths. How
// products of weights and sums are rounded the guide does not say: a card is let off by 1/256 of what
// the neighbours differ by, in each dimension.
#include "check.h"

#define WIDE 8
#define HIGH 4
#define DEEP 3
#define MOST 4096

struct at {
    float x, y, z;
    int layer;
};

enum fetch { FLAT, VOLUME, LAYER, CUBE, CUBES, LEVEL, STEPS, RED, LINE };

template <typename T>
__global__ void sample(cudaTextureObject_t t, enum fetch how, const struct at *places, T *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    struct at p = places[i];
    switch (how) {
    case FLAT:
        out[i] = tex2D<T>(t, p.x, p.y);
        break;
    case VOLUME:
        out[i] = tex3D<T>(t, p.x, p.y, p.z);
        break;
    case LAYER:
        out[i] = tex2DLayered<T>(t, p.x, p.y, p.layer);
        break;
    case CUBE:
        out[i] = texCubemap<T>(t, p.x, p.y, p.z);
        break;
    case CUBES:
        out[i] = texCubemapLayered<T>(t, p.x, p.y, p.z, p.layer);
        break;
    case LEVEL:
        out[i] = tex2DLod<T>(t, p.x, p.y, p.z);
        break;
    case STEPS:
        out[i] = tex2DGrad<T>(t, p.x, p.y, make_float2(p.z, 0), make_float2(0, p.z / 4));
        break;
    case LINE:
        out[i] = tex1Dfetch<T>(t, (int)p.x);
        break;
    default:
        break;
    }
}

__global__ void gather(cudaTextureObject_t t, const struct at *places, float4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex2Dgather<float4>(t, places[i].x, places[i].y, 0);
}

static struct at *device_places;
static void *device_out;

template <typename T>
static void run(cudaTextureObject_t t, enum fetch how, const struct at *places, T *out, int n)
{
    REQUIRE(n <= MOST, "%d places", n);
    CUDA(cudaMemcpy(device_places, places, n * sizeof *places, cudaMemcpyHostToDevice));
    sample<T><<<(n + 63) / 64, 64>>>(t, how, device_places, (T *)device_out, n);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out, device_out, n * sizeof *out, cudaMemcpyDeviceToHost));
}

static cudaTextureObject_t texture_of(cudaResourceDesc what, cudaTextureAddressMode mode,
                                      cudaTextureFilterMode filter, bool normalized,
                                      cudaTextureReadMode read = cudaReadModeElementType)
{
    cudaTextureDesc d = {};
    for (int i = 0; i < 3; i++)
        d.addressMode[i] = mode;
    d.filterMode = filter;
    d.readMode = read;
    d.normalizedCoords = normalized;
    d.borderColor[0] = -7;
    d.mipmapFilterMode = filter;
    d.maxMipmapLevelClamp = 16;
    cudaTextureObject_t t;
    CUDA(cudaCreateTextureObject(&t, &what, &d, NULL));
    return t;
}

template <typename T> static cudaArray_t array_of(cudaExtent size, unsigned flags, const T *values)
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc<T>();
    cudaArray_t array;
    CUDA(cudaMalloc3DArray(&array, &format, size, flags));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr((void *)values, size.width * sizeof(T), size.width,
                                      size.height ? size.height : 1);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(size.width, size.height ? size.height : 1,
                                  size.depth ? size.depth : 1);
    copy.kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy3D(&copy));
    return array;
}

static cudaResourceDesc resource_of(cudaArray_t array)
{
    cudaResourceDesc what = {};
    what.resType = cudaResourceTypeArray;
    what.res.array.array = array;
    return what;
}

// The texel that an index beyond the size stands for; -1: the border.
static int folded(int i, int n, cudaTextureAddressMode mode)
{
    switch (mode) {
    case cudaAddressModeWrap:
        return ((i % n) + n) % n;
    case cudaAddressModeMirror:
        i = ((i % (2 * n)) + 2 * n) % (2 * n);
        return i < n ? i : 2 * n - 1 - i;
    case cudaAddressModeClamp:
        return i < 0 ? 0 : i >= n ? n - 1 : i;
    default:
        return i < 0 || i >= n ? -1 : i;
    }
}

static float value_at(int x, int y, int z)
{
    return (float)(x * 16 + y * 128 + z * 1024 + 8);
}

static float texel(int x, int y, int z, const int *size, cudaTextureAddressMode mode)
{
    x = folded(x, size[0], mode);
    y = folded(y, size[1], mode);
    z = folded(z, size[2], mode);
    return x < 0 || y < 0 || z < 0 ? -7 : value_at(x, y, z);
}

static bool on_card; // no soft GPU, which is exact

// Two, four or eight neighbours with their weights; and how far a card may be off.
static float blended(const float *at, const int *size, cudaTextureAddressMode mode, bool flat,
                     float *off)
{
    float low[3], part[3], sum = 0, least = INFINITY, most = -INFINITY;
    for (int i = 0; i < 3; i++) {
        low[i] = floorf(at[i] - 0.5f);
        part[i] = at[i] - 0.5f - low[i];
    }
    for (int c = 0; c < (flat ? 4 : 8); c++) {
        float weight = 1;
        for (int i = 0; i < (flat ? 2 : 3); i++)
            weight *= c >> i & 1 ? part[i] : 1 - part[i];
        float neighbour = texel((int)low[0] + (c & 1), (int)low[1] + (c >> 1 & 1),
                                flat ? 0 : (int)low[2] + (c >> 2 & 1), size, mode);
        sum += weight * neighbour;
        least = fminf(least, neighbour);
        most = fmaxf(most, neighbour);
    }
    *off = on_card ? (most - least) * (flat ? 2 : 3) / 256 : 0;
    return sum;
}

static void check_grid(cudaResourceDesc what, int depth, cudaTextureAddressMode mode, bool linear,
                       bool normalized)
{
    static struct at places[MOST];
    static float got[MOST], expected[MOST], off[MOST];
    const int size[3] = {WIDE, HIGH, depth};
    // Without fractions of the size, wrap and mirror are clamp.
    bool folds = mode == cudaAddressModeWrap || mode == cudaAddressModeMirror;
    cudaTextureAddressMode real = folds && !normalized ? cudaAddressModeClamp : mode;
    int n = 0;
    for (int x = -10; x < 20; x++)
        for (int y = -6; y < 10; y++) {
            float at[3] = {x + (linear ? x % 8 / 8.0f : 0.25f), y + (linear ? 0.625f : 0.75f),
                           (float)(n % (2 * depth)) - 0.5f * depth + 0.375f};
            bool flat = depth == 1;
            off[n] = 0;
            expected[n] = linear ? blended(at, size, real, flat, &off[n])
                                 : texel((int)floorf(at[0]), (int)floorf(at[1]),
                                         flat ? 0 : (int)floorf(at[2]), size, real);
            places[n] = (struct at){at[0], at[1], at[2], 0};
            if (normalized)
                places[n] = (struct at){at[0] / WIDE, at[1] / HIGH, at[2] / depth, 0};
            n++;
        }
    cudaTextureObject_t t = texture_of(what, mode,
                                       linear ? cudaFilterModeLinear : cudaFilterModePoint,
                                       normalized);
    run(t, depth == 1 ? FLAT : VOLUME, places, got, n);
    for (int i = 0; i < n; i++)
        EXPECT(fabsf(got[i] - expected[i]) <= off[i],
               "mode %d linear %d normalized %d at %g %g %g: %g, not %g", (int)mode, linear,
               normalized, (double)places[i].x, (double)places[i].y, (double)places[i].z,
               (double)got[i], (double)expected[i]);
    CUDA(cudaDestroyTextureObject(t));
}

static void check_grids(void)
{
    static float values[4 * HIGH * WIDE];
    for (int i = 0; i < 4 * HIGH * WIDE; i++)
        values[i] = value_at(i % WIDE, i / WIDE % HIGH, i / WIDE / HIGH);
    cudaArray_t flat = array_of(make_cudaExtent(WIDE, HIGH, 0), 0, values);
    cudaArray_t volume = array_of(make_cudaExtent(WIDE, HIGH, 4), 0, values);
    const cudaTextureAddressMode modes[] = {cudaAddressModeWrap, cudaAddressModeClamp,
                                            cudaAddressModeMirror, cudaAddressModeBorder};
    for (int i = 0; i < 16; i++) {
        check_grid(resource_of(flat), 1, modes[i % 4], i & 4, i & 8);
        check_grid(resource_of(volume), 4, modes[i % 4], i & 4, i & 8);
    }
    CUDA(cudaFreeArray(flat));
    CUDA(cudaFreeArray(volume));
}

// Memory in rows: 2-D without an array.
static void check_rows(void)
{
    float values[HIGH * WIDE], *rows;
    size_t pitch;
    for (int i = 0; i < HIGH * WIDE; i++)
        values[i] = value_at(i % WIDE, i / WIDE, 0);
    CUDA(cudaMallocPitch(&rows, &pitch, WIDE * sizeof *rows, HIGH));
    CUDA(cudaMemcpy2D(rows, pitch, values, WIDE * sizeof *rows, WIDE * sizeof *rows, HIGH,
                      cudaMemcpyHostToDevice));
    cudaResourceDesc what = {};
    what.resType = cudaResourceTypePitch2D;
    what.res.pitch2D.devPtr = rows;
    what.res.pitch2D.desc = cudaCreateChannelDesc<float>();
    what.res.pitch2D.width = WIDE;
    what.res.pitch2D.height = HIGH;
    what.res.pitch2D.pitchInBytes = pitch;
    check_grid(what, 1, cudaAddressModeClamp, false, false);
    check_grid(what, 1, cudaAddressModeClamp, true, false);
    CUDA(cudaFree(rows));
}

// Integers as they are and as numbers; one channel and four; memory without an array.
static void check_reading(void)
{
    uchar4 values[256], *line;
    struct at places[256];
    static uchar4 whole[256];
    static float4 parts[256];
    for (int i = 0; i < 256; i++) {
        values[i] = make_uchar4(i, 255 - i, i * 7, i ^ 0x55);
        places[i] = (struct at){(float)i, 0, 0, 0};
    }
    CUDA(cudaMalloc(&line, sizeof values));
    CUDA(cudaMemcpy(line, values, sizeof values, cudaMemcpyHostToDevice));
    cudaResourceDesc what = {};
    what.resType = cudaResourceTypeLinear;
    what.res.linear.devPtr = line;
    what.res.linear.desc = cudaCreateChannelDesc<uchar4>();
    what.res.linear.sizeInBytes = sizeof values;
    cudaTextureObject_t t = texture_of(what, cudaAddressModeClamp, cudaFilterModePoint, false);
    run(t, LINE, places, whole, 256);
    CUDA(cudaDestroyTextureObject(t));
    t = texture_of(what, cudaAddressModeClamp, cudaFilterModePoint, false,
                   cudaReadModeNormalizedFloat);
    run(t, LINE, places, parts, 256);
    for (int i = 0; i < 256; i++) {
        EXPECT(memcmp(&whole[i], &values[i], sizeof *whole) == 0, "element %d is another", i);
        EXPECT(parts[i].x == (float)i / 255 && parts[i].y == (float)(255 - i) / 255,
               "element %d is %g, %g", i, (double)parts[i].x, (double)parts[i].y);
    }
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFree(line));

    short shorts[WIDE * HIGH];
    static float signs[WIDE * HIGH];
    for (int i = 0; i < WIDE * HIGH; i++) {
        shorts[i] = (short)(i * 2111 - 32768);
        places[i] = (struct at){i % WIDE + 0.5f, i / WIDE + 0.5f, 0, 0};
    }
    cudaArray_t array = array_of(make_cudaExtent(WIDE, HIGH, 0), 0, shorts);
    t = texture_of(resource_of(array), cudaAddressModeClamp, cudaFilterModePoint, false,
                   cudaReadModeNormalizedFloat);
    run(t, FLAT, places, signs, WIDE * HIGH);
    for (int i = 0; i < WIDE * HIGH; i++) {
        float v = shorts[i] == -32768 ? -1 : (float)shorts[i] / 32767;
        EXPECT(signs[i] == v, "%d is read as %g, not %g", shorts[i], (double)signs[i], (double)v);
    }
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFreeArray(array));
}

static void check_layers(void)
{
    static float values[DEEP * HIGH * WIDE], got[DEEP * 3];
    struct at places[DEEP * 3];
    for (int i = 0; i < DEEP * HIGH * WIDE; i++)
        values[i] = value_at(i % WIDE, i / WIDE % HIGH, i / WIDE / HIGH);
    cudaArray_t array = array_of(make_cudaExtent(WIDE, HIGH, DEEP), cudaArrayLayered, values);
    cudaTextureObject_t t = texture_of(resource_of(array), cudaAddressModeClamp,
                                       cudaFilterModePoint, false);
    for (int i = 0; i < DEEP * 3; i++)
        places[i] = (struct at){i + 0.5f, i % HIGH + 0.5f, 0, i % (DEEP + 1)};
    run(t, LAYER, places, got, DEEP * 3);
    for (int i = 0; i < DEEP * 3; i++) {
        int layer = places[i].layer < DEEP ? places[i].layer : DEEP - 1;
        float v = value_at(i < WIDE ? i : WIDE - 1, i % HIGH, layer);
        EXPECT(got[i] == v, "layer %d: %g, not %g", places[i].layer, (double)got[i], (double)v);
    }
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFreeArray(array));
}

// Faces in the order +x, -x, +y, -y, +z, -z; on each, s and t as the guide's table has them.
static void check_cubes(void)
{
    static float values[12 * 4 * 4], got[6 * 4];
    struct at places[6 * 4];
    const float a = 0.75f, b = 0.25f; // s and t of texel (3, 2): 0.875 and 0.625
    const struct at faces[6] = {{1, -b, -a, 0},  {-1, -b, a, 0}, {a, 1, b, 0},
                                {a, -1, -b, 0}, {a, -b, 1, 0},  {-a, -b, -1, 0}};
    for (int i = 0; i < 12 * 4 * 4; i++)
        values[i] = value_at(i % 4, i / 4 % 4, i / 16);
    cudaArray_t one = array_of(make_cudaExtent(4, 4, 6), cudaArrayCubemap, values);
    cudaArray_t two = array_of(make_cudaExtent(4, 4, 12), cudaArrayCubemap | cudaArrayLayered,
                               values);
    for (int i = 0; i < 6 * 4; i++) {
        places[i] = faces[i % 6];
        float longer = (float)(1 + i / 12);
        places[i].x *= longer, places[i].y *= longer, places[i].z *= longer;
        places[i].layer = i / 6 % 2;
    }
    for (int layered = 0; layered < 2; layered++) {
        cudaTextureObject_t t = texture_of(resource_of(layered ? two : one), cudaAddressModeClamp,
                                           cudaFilterModePoint, true);
        run(t, layered ? CUBES : CUBE, places, got, 6 * 4);
        for (int i = 0; i < 6 * 4; i++) {
            float v = value_at(3, 2, i % 6 + (layered ? 6 * places[i].layer : 0));
            EXPECT(got[i] == v, "face %d, layered %d: %g, not %g", i % 6, layered, (double)got[i],
                   (double)v);
        }
        CUDA(cudaDestroyTextureObject(t));
    }
    CUDA(cudaFreeArray(one));
    CUDA(cudaFreeArray(two));
}

static void check_levels(void)
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t mipmap;
    cudaResourceDesc what = {};
    CUDA(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(WIDE, WIDE, 0), 3));
    for (int level = 0; level < 3; level++) {
        int side = WIDE >> level;
        float values[WIDE * WIDE];
        cudaArray_t array;
        for (int i = 0; i < side * side; i++)
            values[i] = (float)(64 << level);
        CUDA(cudaGetMipmappedArrayLevel(&array, mipmap, level));
        CUDA(cudaMemcpy2DToArray(array, 0, 0, values, side * 4, side * 4, side,
                                 cudaMemcpyHostToDevice));
    }
    what.resType = cudaResourceTypeMipmappedArray;
    what.res.mipmap.mipmap = mipmap;
    const float asked[] = {-1, 0, 0.25f, 0.5f, 0.75f, 1, 1.25f, 2, 5};
    const float near[] = {64, 64, 64, 128, 128, 128, 128, 256, 256};
    const float mixed[] = {64, 64, 80, 96, 112, 128, 160, 256, 256};
    struct at places[9];
    float got[9];
    for (int i = 0; i < 9; i++)
        places[i] = (struct at){0.5f, 0.5f, asked[i], 0};
    for (int linear = 0; linear < 2; linear++) {
        cudaTextureObject_t t = texture_of(what, cudaAddressModeClamp,
                                           linear ? cudaFilterModeLinear : cudaFilterModePoint,
                                           true);
        run(t, LEVEL, places, got, 9);
        for (int i = 0; i < 9; i++) {
            float v = linear ? mixed[i] : near[i];
            bool half = !linear && asked[i] == 0.5f; // either neighbour is as near
            EXPECT(got[i] == v || half, "level %g linear %d: %g, not %g", (double)asked[i], linear,
                   (double)got[i], (double)v);
        }
        struct at steps[3] = {{0.5f, 0.5f, 1.0f / WIDE, 0},
                              {0.5f, 0.5f, 2.0f / WIDE, 0},
                              {0.5f, 0.5f, 4.0f / WIDE, 0}};
        run(t, STEPS, steps, got, 3);
        for (int i = 0; i < 3; i++)
            EXPECT(got[i] == (float)(64 << i), "a step of %d texels: %g", 1 << i, (double)got[i]);
        CUDA(cudaDestroyTextureObject(t));
    }
    CUDA(cudaFreeMipmappedArray(mipmap));
}

static void check_gathering(void)
{
    static float values[WIDE * HIGH];
    struct at places[9];
    float4 got[9];
    for (int i = 0; i < WIDE * HIGH; i++)
        values[i] = value_at(i % WIDE, i / WIDE, 0);
    cudaArray_t array = array_of(make_cudaExtent(WIDE, HIGH, 0), cudaArrayTextureGather, values);
    cudaTextureObject_t t = texture_of(resource_of(array), cudaAddressModeClamp,
                                       cudaFilterModePoint, false);
    for (int i = 0; i < 9; i++)
        places[i] = (struct at){i + 0.75f, i % HIGH + 0.75f, 0, 0};
    CUDA(cudaMemcpy(device_places, places, sizeof places, cudaMemcpyHostToDevice));
    gather<<<1, 32>>>(t, device_places, (float4 *)device_out, 9);
    CUDA(cudaMemcpy(got, device_out, sizeof got, cudaMemcpyDeviceToHost));
    const int size[3] = {WIDE, HIGH, 1};
    for (int i = 0; i < 9; i++) {
        int x = i, y = i % HIGH;
        float v[4] = {texel(x, y + 1, 0, size, cudaAddressModeClamp),
                      texel(x + 1, y + 1, 0, size, cudaAddressModeClamp),
                      texel(x + 1, y, 0, size, cudaAddressModeClamp),
                      texel(x, y, 0, size, cudaAddressModeClamp)};
        EXPECT(memcmp(v, &got[i], sizeof v) == 0, "gathered %g %g %g %g", (double)got[i].x,
               (double)got[i].y, (double)got[i].z, (double)got[i].w);
    }
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFreeArray(array));
}

// Each thread moves its element one row down; what is outside is skipped, or read as zero.
__global__ void shift(cudaSurfaceObject_t s, int *seen)
{
    int x = threadIdx.x, y = threadIdx.y;
    int2 v = surf2Dread<int2>(s, x * 8, y), none, last;
    none = surf2Dread<int2>(s, (x + WIDE) * 8, y, cudaBoundaryModeZero);
    last = surf2Dread<int2>(s, (x + WIDE) * 8, y + HIGH, cudaBoundaryModeClamp);
    __syncthreads();
    surf2Dwrite(make_int2(v.y, v.x), s, x * 8, y + 1, cudaBoundaryModeZero);
    seen[y * WIDE + x] = none.x == 0 && none.y == 0 ? last.x : -1;
}

// Layers of a surface, with elements of one byte.
__global__ void mark(cudaSurfaceObject_t s)
{
    int x = threadIdx.x, layer = threadIdx.y;
    unsigned char v = surf2DLayeredread<unsigned char>(s, x, 0, layer);
    surf2DLayeredwrite((unsigned char)(v + 1), s, x, 1, layer);
}

static void check_surfaces(void)
{
    int2 values[WIDE * HIGH], got[WIDE * HIGH];
    int seen[WIDE * HIGH];
    cudaSurfaceObject_t s;
    for (int i = 0; i < WIDE * HIGH; i++)
        values[i] = make_int2(i + 1, -i);
    cudaArray_t array = array_of(make_cudaExtent(WIDE, HIGH, 0), cudaArraySurfaceLoadStore, values);
    cudaResourceDesc what = resource_of(array);
    CUDA(cudaCreateSurfaceObject(&s, &what));
    shift<<<1, dim3(WIDE, HIGH)>>>(s, (int *)device_out);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(seen, device_out, sizeof seen, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy2DFromArray(got, WIDE * 8, array, 0, 0, WIDE * 8, HIGH, cudaMemcpyDeviceToHost));
    for (int i = 0; i < WIDE * HIGH; i++) {
        int2 v = i < WIDE ? values[i] : make_int2(values[i - WIDE].y, values[i - WIDE].x);
        EXPECT(got[i].x == v.x && got[i].y == v.y, "element %d is %d, %d", i, got[i].x, got[i].y);
        EXPECT(seen[i] == WIDE * HIGH, "beyond element %d there is %d", i, seen[i]);
    }
    CUDA(cudaDestroySurfaceObject(s));
    CUDA(cudaFreeArray(array));

    unsigned char bytes[DEEP * 2 * WIDE];
    for (int i = 0; i < DEEP * 2 * WIDE; i++)
        bytes[i] = (unsigned char)(i * 3);
    array = array_of(make_cudaExtent(WIDE, 2, DEEP), cudaArraySurfaceLoadStore | cudaArrayLayered,
                     bytes);
    what = resource_of(array);
    CUDA(cudaCreateSurfaceObject(&s, &what));
    mark<<<1, dim3(WIDE, DEEP)>>>(s);
    CUDA(cudaGetLastError());
    cudaMemcpy3DParms copy = {};
    copy.srcArray = array;
    copy.dstPtr = make_cudaPitchedPtr(bytes, WIDE, WIDE, 2);
    copy.extent = make_cudaExtent(WIDE, 2, DEEP);
    copy.kind = cudaMemcpyDeviceToHost;
    CUDA(cudaMemcpy3D(&copy));
    for (int i = 0; i < DEEP * WIDE; i++) {
        int from = i / WIDE * 2 * WIDE + i % WIDE;
        EXPECT(bytes[from + WIDE] == (unsigned char)(from * 3 + 1), "layer %d, byte %d is %d",
               i / WIDE, i % WIDE, bytes[from + WIDE]);
    }
    CUDA(cudaDestroySurfaceObject(s));
    CUDA(cudaFreeArray(array));
}

int main(void)
{
    cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, 0));
    on_card = !strstr(device.name, "soft GPU");
    CUDA(cudaMalloc(&device_places, MOST * sizeof *device_places));
    CUDA(cudaMalloc(&device_out, MOST * 16));
    check_grids();
    check_rows();
    check_reading();
    check_layers();
    check_cubes();
    check_levels();
    check_gathering();
    check_surfaces();
    CUDA(cudaFree(device_places));
    CUDA(cudaFree(device_out));
    return finish("textures");
}
