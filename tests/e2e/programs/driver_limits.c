/*
 * A memory limit, taken at its word: `driver_limits [MIB]`, by default all of the GPU.
 *
 * Eight threads take and give back memory at random in ten ways, three times over.
 * What they hold never exceeds the limit; while they hold it, and when all is given
 * back, everything that cuMemGetInfo calls free can be had, and nothing beyond it.
 */
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define SLOTS 12
#define STEPS 400
#define ROUNDS 3
#define MIB ((size_t)1 << 20)
#define UNIT (2 * MIB) /* in which large memory is counted */

enum way {
    TINY,
    SMALL,
    LARGE,
    PITCH,
    ASYNC,
    OWN_POOL,
    MAPPED,
    RELEASED_FIRST, /* its handle goes while it is mapped */
    RETAINED,       /* and comes back from the address */
    TWICE,          /* mapped at two addresses: counts once */
    WAYS
};

struct slot {
    CUdeviceptr at; /* 0: empty */
    CUmemGenericAllocationHandle handle;
    size_t bytes, asked;
    unsigned tag;
    enum way way;
};

struct thread {
    pthread_t id;
    unsigned seed;
    unsigned taken[WAYS], refused;
    CUstream stream;
    CUmemoryPool pool;
    struct slot slots[SLOTS];
};

static size_t limit;
static _Atomic size_t held; /* never more than is really held */
static _Atomic unsigned tags;
static struct thread threads[THREADS];
static pthread_barrier_t barrier;

static CUmemAllocationProp property(void)
{
    CUmemAllocationProp p = {0};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = driver_device;
    return p;
}

static size_t size_for(struct thread *t, enum way way)
{
    size_t r = check_random(&t->seed);
    if (way == TINY)
        return sizeof(unsigned) + r % 4096;
    if (way == SMALL)
        return 4096 + r % (508 * 1024);
    size_t pieces = limit / 16 / MIB;
    return (1 + r % (pieces ? pieces : 1)) * MIB + (way <= OWN_POOL ? r % 5000 : 0);
}

/* --- ways that map ----------------------------------------------------------------- */

static CUresult map_at(struct slot *s, CUdeviceptr at)
{
    CUmemAccessDesc access = {property().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemMap(at, s->bytes, 0, s->handle, 0));
    CU(cuMemSetAccess(at, s->bytes, &access, 1));
    return CUDA_SUCCESS;
}

static CUresult take_mapped(struct slot *s)
{
    CUmemAllocationProp p = property();
    CUdeviceptr at;
    s->bytes = (s->bytes + UNIT - 1) / UNIT * UNIT;
    s->asked = s->bytes;
    CUresult r = cuMemCreate(&s->handle, s->bytes, &p, 0);
    if (r != CUDA_SUCCESS)
        return r;
    CU(cuMemAddressReserve(&at, s->way == TWICE ? 2 * s->bytes : s->bytes, 0, 0, 0));
    map_at(s, at);
    if (s->way == TWICE)
        map_at(s, at + s->bytes);
    if (s->way == RELEASED_FIRST || s->way == RETAINED)
        CU(cuMemRelease(s->handle));
    if (s->way == RETAINED)
        CU(cuMemRetainAllocationHandle(&s->handle, (void *)(uintptr_t)at));
    s->at = at;
    return CUDA_SUCCESS;
}

static void give_mapped(struct slot *s)
{
    size_t reserved = s->way == TWICE ? 2 * s->bytes : s->bytes;
    CU(cuMemUnmap(s->at, s->bytes));
    if (s->way == TWICE)
        CU(cuMemUnmap(s->at + s->bytes, s->bytes));
    if (s->way != RELEASED_FIRST)
        CU(cuMemRelease(s->handle));
    CU(cuMemAddressFree(s->at, reserved));
}

/* --- all ways ------------------------------------------------------------------------ */

static CUresult take_pitched(struct slot *s)
{
    size_t width = 1000, pitch = 0, height = s->asked / 1024 + 1;
    CUresult r = cuMemAllocPitch(&s->at, &pitch, width, height, 4);
    if (r == CUDA_SUCCESS) {
        EXPECT(pitch >= width, "the pitch is %zu", pitch);
        s->bytes = pitch * height;
    }
    return r;
}

static CUresult take(struct thread *t, struct slot *s)
{
    switch (s->way) {
    case TINY:
    case SMALL:
    case LARGE:
        return cuMemAlloc(&s->at, s->bytes);
    case PITCH:
        return take_pitched(s);
    case ASYNC:
        return cuMemAllocAsync(&s->at, s->bytes, t->stream);
    case OWN_POOL:
        return cuMemAllocFromPoolAsync(&s->at, s->bytes, t->pool, t->stream);
    default:
        return take_mapped(s);
    }
}

/* Its last whole word, so that it is touched to its end. */
static CUdeviceptr word_of(const struct slot *s)
{
    return s->at + s->bytes / sizeof s->tag * sizeof s->tag - sizeof s->tag;
}

static void fill(struct thread *t)
{
    struct slot *s = &t->slots[check_random(&t->seed) % SLOTS];
    if (s->at)
        return;
    *s = (struct slot){.way = check_random(&t->seed) % WAYS, .tag = atomic_fetch_add(&tags, 1) + 1};
    s->asked = s->bytes = size_for(t, s->way);
    CUresult r = take(t, s);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        EXPECT(s->at == 0, "an allocation that failed left %#llx", s->at);
        s->at = 0;
        t->refused++;
        return;
    }
    REQUIRE(r == CUDA_SUCCESS, "way %d, %zu bytes: %s", s->way, s->asked, driver_name(r));
    size_t now = atomic_fetch_add(&held, s->bytes) + s->bytes;
    EXPECT(now <= limit, "%zu bytes are held, the limit is %zu", now, limit);
    t->taken[s->way]++;
    CU(cuMemsetD32Async(word_of(s), s->tag, 1, t->stream));
    CU(cuStreamSynchronize(t->stream));
}

static void empty(struct thread *t, struct slot *s)
{
    unsigned tag = 0;
    if (!s->at)
        return;
    CU(cuMemcpyDtoH(&tag, word_of(s), sizeof tag));
    EXPECT(tag == s->tag, "memory of way %d holds %u, expected %u", s->way, tag, s->tag);
    atomic_fetch_sub(&held, s->bytes);
    if (s->way >= MAPPED)
        give_mapped(s);
    else if (s->way == ASYNC || s->way == OWN_POOL)
        CU(cuMemFreeAsync(s->at, t->stream));
    else
        CU(cuMemFree(s->at));
    s->at = 0;
}

/* --- what cuMemGetInfo says ------------------------------------------------------------ */

/* What the pools keep without need is free as well, once they are told. */
static size_t free_now(void)
{
    CUmemoryPool pool;
    size_t left = 0, total = 0;
    CU(cuCtxSynchronize());
    CU(cuDeviceGetDefaultMemPool(&pool, driver_device));
    CU(cuMemPoolTrimTo(pool, 0));
    for (int i = 0; i < THREADS; i++)
        if (threads[i].pool)
            CU(cuMemPoolTrimTo(threads[i].pool, 0));
    CU(cuMemGetInfo(&left, &total));
    EXPECT(total == limit, "cuMemGetInfo's total is %zu, the limit %zu", total, limit);
    EXPECT(left <= total, "%zu bytes are free of %zu", left, total);
    return left;
}

/* Nobody else allocates meanwhile: all that is free can be had, and nothing more. */
static size_t free_is_exact(void)
{
    const CUdeviceptr untouched = 0x5a5a5a5a;
    CUdeviceptr all = 0, more = untouched;
    size_t left = free_now(), whole = left / UNIT * UNIT;
    EXPECT(left + atomic_load(&held) <= limit, "%zu bytes are free and %zu held of %zu", left,
           atomic_load(&held), limit);
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, whole + UNIT));
    EXPECT(more == untouched, "an allocation that failed left %#llx", more);
    EXPECT(free_now() == left, "after a failure %zu bytes are free, before %zu", free_now(), left);
    if (whole == 0)
        return left;
    CUresult r = cuMemAlloc(&all, whole);
    EXPECT(r == CUDA_SUCCESS, "of %zu free bytes %zu cannot be had: %s", left, whole,
           driver_name(r));
    if (r != CUDA_SUCCESS)
        return left;
    EXPECT(free_now() < UNIT, "all is taken, and %zu bytes are free", free_now());
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&more, UNIT));
    EXPECT(more == untouched, "an allocation that failed left %#llx", more);
    CU(cuMemFree(all));
    EXPECT(free_now() == left, "freed again, %zu bytes are free of %zu", free_now(), left);
    return left;
}

/* --- rounds ------------------------------------------------------------------------------ */

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    CU(cuCtxSetCurrent(driver_context));
    for (int step = 0; step < STEPS; step++) {
        fill(t);
        if (check_random(&t->seed) % 3 == 0)
            empty(t, &t->slots[check_random(&t->seed) % SLOTS]);
        if (step != STEPS / 2)
            continue;
        CU(cuStreamSynchronize(t->stream));
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
            free_is_exact(); /* with all that the threads hold */
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < SLOTS; i++)
        empty(t, &t->slots[i]);
    CU(cuStreamSynchronize(t->stream));
    return NULL;
}

static void round_run(void)
{
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i].id, NULL, thread_main, &threads[i]) == 0, "no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    EXPECT(atomic_load(&held) == 0, "%zu bytes are held after all", atomic_load(&held));
}

static void threads_open(void)
{
    CUmemPoolProps props = {0};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = property().location;
    for (int i = 0; i < THREADS; i++) {
        threads[i].seed = 12345 + 77 * (unsigned)i;
        CU(cuStreamCreate(&threads[i].stream, CU_STREAM_NON_BLOCKING));
        CU(cuMemPoolCreate(&threads[i].pool, &props));
    }
}

static void threads_close(void)
{
    unsigned refused = 0;
    for (int way = 0; way < WAYS; way++) {
        unsigned taken = 0;
        for (int i = 0; i < THREADS; i++)
            taken += threads[i].taken[way];
        EXPECT(taken > 0, "way %d was never taken", way);
    }
    for (int i = 0; i < THREADS; i++) {
        refused += threads[i].refused;
        CU(cuMemPoolDestroy(threads[i].pool));
        threads[i].pool = NULL;
        CU(cuStreamDestroy(threads[i].stream));
    }
    EXPECT(refused > 0, "the limit was never reached");
}

int main(int argc, char **argv)
{
    char name[64] = "";
    size_t total = 0, first = 0;

    driver_start();
    CU(cuDeviceTotalMem(&total, driver_device));
    CU(cuDeviceGetName(name, sizeof name, driver_device));
    limit = argc > 1 ? (size_t)atoi(argv[1]) * MIB : total;
    REQUIRE(total == limit, "cuDeviceTotalMem says %zu, the limit is %zu", total, limit);
    /* a real driver's own needs vary a little */
    size_t drift = strstr(name, "soft GPU") ? 0 : 4 * MIB;
    pthread_barrier_init(&barrier, NULL, THREADS);
    threads_open();
    for (int round = 0; round < ROUNDS; round++) {
        size_t left;
        round_run();
        left = free_is_exact();
        if (round == 0)
            first = left;
        EXPECT(left + drift >= first, "after round %d %zu bytes are free, after the first %zu",
               round + 1, left, first);
    }
    threads_close();
    pthread_barrier_destroy(&barrier);
    driver_stop();
    return finish("driver_limits");
}
