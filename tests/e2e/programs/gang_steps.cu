// A training job's steps, counted: work on each of its GPUs, then what needs all of them.
//
//   gang_steps WAY CHUNKS BLOCKS THREADS MOMENT...
//
// WAY 1 or 2: so many GPUs of this process, each of which goes on when the others have come as far.
// WAY RANK,LIBRARY,FILE,FLOATS: one of two processes with a GPU each, which sum FLOATS behind each
// kernel beside the next one, as data-parallel training does; they find each other by FILE, and
// NCCL in LIBRARY. CHUNKS of about 1 us of arithmetic are in each of a step's four kernels. MOMENTs
// are seconds of CLOCK_MONOTONIC; the program ends after the last. Prints one line of JSON: the
// steps that ended between each two moments, whether it came too late for the first, and on how many
// GPUs kernels are missing (0). GANG_STEPS_TIMES names a file that gets the moment of each step's end.
#include "check.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include "../../../proto/wire/nccl_api.h"

#define GPUS_MOST 2
#define MOMENTS_MOST 8
#define KERNELS 4
#define RANKS 2

__global__ void work(long chunks, unsigned *steps, float *out)
{
    float x = threadIdx.x;
    for (long i = 0; i < 400 * chunks; i++)
        x = x * 1.000001f + 0.5f;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        ++*steps;
    if (x == 42.0f)
        *out = x; // never, but the compiler cannot know
}

static double seconds()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

struct Gpu {
    cudaStream_t stream;
    cudaEvent_t came;
    unsigned *steps;
    float *out;
};

static void open(Gpu *g, int device)
{
    CUDA(cudaSetDevice(device));
    CUDA(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&g->came, cudaEventDisableTiming));
    CUDA(cudaMalloc(&g->steps, sizeof *g->steps));
    CUDA(cudaMalloc(&g->out, sizeof *g->out));
    CUDA(cudaMemset(g->steps, 0, sizeof *g->steps));
    CUDA(cudaDeviceSynchronize()); // the streams do not wait for it
}

// What sums the ranks' gradients, on a stream beside that of the work.
struct Sums {
    __typeof__(&ncclAllReduce) all_reduce; // NULL: there are no ranks
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t came;
    float *gradients;
    long count;
};

struct Job {
    int count;
    long chunks;
    int blocks, threads;
    Gpu gpus[GPUS_MOST];
    Sums sums;
};

// The first rank writes the id to a file of a name that only comes when it is whole.
static ncclUniqueId meet(__typeof__(&ncclGetUniqueId) get, const char *path, int rank)
{
    ncclUniqueId id;
    char partly[512];
    FILE *file;
    snprintf(partly, sizeof partly, "%s.part", path);
    if (rank == 0) {
        REQUIRE(get(&id) == ncclSuccess, "there is no id");
        file = fopen(partly, "w");
        REQUIRE(file && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0 &&
                    rename(partly, path) == 0,
                "cannot write %s", path);
        return id;
    }
    while (!(file = fopen(path, "r")))
        usleep(10000);
    REQUIRE(fread(&id, sizeof id, 1, file) == 1, "cannot read %s", path);
    fclose(file);
    return id;
}

static void join(Sums *s, char *way)
{
    int rank = atoi(strtok(way, ","));
    const char *path = strtok(NULL, ","), *file = strtok(NULL, ","), *count = strtok(NULL, ",");
    REQUIRE(count, "RANK,LIBRARY,FILE,FLOATS");
    s->count = atol(count);
    void *library = dlopen(path, RTLD_NOW);
    REQUIRE(library, "%s", dlerror());
    auto get = (__typeof__(&ncclGetUniqueId))dlsym(library, "ncclGetUniqueId");
    auto init = (__typeof__(&ncclCommInitRank))dlsym(library, "ncclCommInitRank");
    s->all_reduce = (__typeof__(&ncclAllReduce))dlsym(library, "ncclAllReduce");
    REQUIRE(get && init && s->all_reduce, "%s is no NCCL", path);
    CUDA(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&s->came, cudaEventDisableTiming));
    CUDA(cudaMalloc(&s->gradients, s->count * sizeof *s->gradients));
    CUDA(cudaMemset(s->gradients, 0, s->count * sizeof *s->gradients));
    CUDA(cudaDeviceSynchronize());
    ncclResult_t r = init(&s->comm, RANKS, meet(get, file, rank), rank);
    REQUIRE(r == ncclSuccess, "NCCL error %d", (int)r);
}

static void sum(Sums *s, Gpu *g)
{
    CUDA(cudaEventRecord(g->came, g->stream));
    CUDA(cudaStreamWaitEvent(s->stream, g->came, 0));
    ncclResult_t r = s->all_reduce(s->gradients, s->gradients, s->count, ncclFloat32, ncclSum,
                                   s->comm, s->stream);
    REQUIRE(r == ncclSuccess, "NCCL error %d", (int)r);
}

static void step(Job *j, long chunks)
{
    Gpu *gpus = j->gpus;
    for (int i = 0; i < j->count; i++) {
        CUDA(cudaSetDevice(i));
        for (int k = 0; k < KERNELS; k++) {
            work<<<j->blocks, j->threads, 0, gpus[i].stream>>>(chunks, gpus[i].steps, gpus[i].out);
            if (j->sums.all_reduce)
                sum(&j->sums, &gpus[i]);
        }
        if (j->sums.all_reduce)
            CUDA(cudaEventRecord(j->sums.came, j->sums.stream));
        else
            CUDA(cudaEventRecord(gpus[i].came, gpus[i].stream));
    }
    for (int i = 0; i < j->count; i++) {
        cudaEvent_t came = j->sums.all_reduce ? j->sums.came : gpus[j->count - 1 - i].came;
        CUDA(cudaSetDevice(i));
        CUDA(cudaStreamWaitEvent(gpus[i].stream, came, 0));
        work<<<1, 32, 0, gpus[i].stream>>>(1, gpus[i].steps, gpus[i].out);
    }
    for (int i = 0; i < j->count; i++)
        CUDA(cudaStreamSynchronize(gpus[i].stream));
}

// Steps until the last moment: ranks have to agree on that, so each counts the same for itself in
// `stop`, which is the sum of those that want to end.
static bool is_over(Job *j, bool mine)
{
    if (!j->sums.all_reduce)
        return mine;
    float all = mine;
    CUDA(cudaMemcpy(j->sums.gradients, &all, sizeof all, cudaMemcpyHostToDevice));
    ncclResult_t r = j->sums.all_reduce(j->sums.gradients, j->sums.gradients, 1, ncclFloat32,
                                        ncclSum, j->sums.comm, j->sums.stream);
    REQUIRE(r == ncclSuccess, "NCCL error %d", (int)r);
    CUDA(cudaStreamSynchronize(j->sums.stream));
    CUDA(cudaMemcpy(&all, j->sums.gradients, sizeof all, cudaMemcpyDeviceToHost));
    return all > 0;
}

// Before the first moment, too; two steps load the kernels.
static long run(Job *j, const double *moments, int count, long *counted)
{
    const char *path = getenv("GANG_STEPS_TIMES");
    FILE *times = path ? fopen(path, "w") : NULL;
    REQUIRE(!path || times, "cannot write %s", path);
    long all = 0;
    for (; all < 2; all++)
        step(j, 1);
    for (bool over = false; !over; all++) {
        step(j, j->chunks);
        double now = seconds();
        if (times)
            fprintf(times, "%.6f\n", now);
        for (int i = 0; i + 1 < count; i++)
            counted[i] += now >= moments[i] && now < moments[i + 1];
        over = is_over(j, now >= moments[count - 1]);
    }
    REQUIRE(!times || fclose(times) == 0, "cannot write %s", path);
    return all;
}

static void say(Job *j, const long *counted, int phases, long all, bool late)
{
    int wrong = 0;
    for (int i = 0; i < j->count; i++) {
        unsigned done = 0;
        CUDA(cudaSetDevice(i));
        CUDA(cudaMemcpy(&done, j->gpus[i].steps, sizeof done, cudaMemcpyDeviceToHost));
        wrong += done != (KERNELS + 1) * all;
    }
    for (int i = 0; i < phases; i++)
        printf("%s%ld", i ? ", " : "{\"steps\": [", counted[i]);
    printf("], \"late\": %s, \"wrong\": %d}\n", late ? "true" : "false", wrong);
    REQUIRE(wrong == 0, "kernels are missing");
}

int main(int argc, char **argv)
{
    double moments[MOMENTS_MOST];
    long counted[MOMENTS_MOST] = {};
    int count = argc - 5;
    REQUIRE(count >= 2 && count <= MOMENTS_MOST, "gang_steps WAY CHUNKS BLOCKS THREADS MOMENT...");
    bool ranks = strchr(argv[1], ',') != NULL;
    Job j = {ranks ? 1 : atoi(argv[1]), atol(argv[2]), atoi(argv[3]), atoi(argv[4]), {}, {}};
    REQUIRE(j.count >= 1 && j.count <= GPUS_MOST, "1 or %d GPUs", GPUS_MOST);
    for (int i = 0; i < count; i++)
        moments[i] = atof(argv[5 + i]);
    for (int i = 0; i < j.count; i++)
        open(&j.gpus[i], i);
    if (ranks)
        join(&j.sums, argv[1]);
    bool late = seconds() > moments[0];
    long all = run(&j, moments, count, counted);
    say(&j, counted, count - 1, all, late);
    return 0;
}
