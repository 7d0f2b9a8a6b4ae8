/*
 * Events that are recorded right behind a copy to another host, and what waits for them there: the
 * copy's own end is enough for it, and anything that came between is not left out. The argument
 * says how many devices the first host has; all the others are other hosts'.
 */
#include "driver.h"

#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1 << 10, ROUNDS = 20 };

static int here, there; /* a device of either host */
static CUcontext contexts[2];
static CUmodule modules[2];
static CUdeviceptr memory[2];
static CUstream streams[2], other;
static CUevent event;

static void use(int end)
{
    CU(cuCtxSetCurrent(contexts[end]));
}

static void open_both(int first_of_second)
{
    int devices;
    CU(cuInit(0));
    CU(cuDeviceGetCount(&devices));
    REQUIRE(first_of_second < devices, "%d devices", devices);
    there = first_of_second;
    for (int i = 0; i < 2; i++) {
        CU(cuDevicePrimaryCtxRetain(&contexts[i], i ? there : here));
        use(i);
        CU(cuModuleLoadData(&modules[i], kernels_ptx));
        CU(cuMemAlloc(&memory[i], 4 * WORDS));
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    use(0);
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
}

static void launch(int end, int factor, int term, CUstream stream)
{
    int n = WORDS;
    void *arguments[] = {&memory[end], &n, &factor, &term};
    CU(cuLaunchKernel(driver_function(modules[end], "multiply_add"), (WORDS + 255) / 256, 1, 1, 256,
                      1, 1, 0, stream, arguments, NULL));
}

static int word(int end)
{
    int value = 0;
    CU(cuMemcpyDtoH(&value, memory[end] + 4 * (WORDS - 1), 4));
    return value;
}

static void copy(int from, int to, CUstream stream)
{
    CU(cuMemcpyPeerAsync(memory[to], contexts[to], memory[from], contexts[from], 4 * WORDS,
                         stream));
}

static sem_t gate;

static void CUDA_CB stay(void *arg)
{
    (void)arg;
    while (sem_wait(&gate) != 0)
        ;
}

static void let_go(void)
{
    REQUIRE(sem_post(&gate) == 0, "sem_post");
}

/* To and fro, as a training loop does: each end computes with what the other has sent. */
static void to_and_fro(CUstream one, CUstream two)
{
    use(0);
    CU(cuMemsetD32Async(memory[0], 0, WORDS, one));
    for (int i = 0; i < ROUNDS; i++)
        for (int from = 0; from < 2; from++) {
            CUevent passed;
            use(from);
            launch(from, 1, 1, from ? two : one);
            copy(from, !from, from ? two : one);
            CU(cuEventCreate(&passed, CU_EVENT_DISABLE_TIMING));
            CU(cuEventRecord(passed, from ? two : one));
            use(!from);
            CU(cuStreamWaitEvent(from ? one : two, passed, 0));
            CU(cuEventDestroy(passed));
        }
    use(0);
    CU(cuStreamSynchronize(one));
    EXPECT(word(0) == 2 * ROUNDS, "%d, expected %d", word(0), 2 * ROUNDS);
}

/* Whether the other end's stream waits, as it is to; then it goes on. */
static void expect_waits(CUstream waits, const char *what)
{
    use(1);
    CU(cuStreamWaitEvent(waits, event, 0));
    EXPECT(cuStreamQuery(waits) == CUDA_ERROR_NOT_READY, "not waited for: %s", what);
    let_go();
    CU(cuStreamSynchronize(waits));
    use(0);
    CU(cuCtxSynchronize());
}

static void work_between(CUstream sends, CUstream waits)
{
    use(0);
    copy(0, 1, sends);
    CU(cuLaunchHostFunc(sends, stay, NULL));
    CU(cuEventRecord(event, sends));
    expect_waits(waits, "work between copy and event");
}

static void recorded_again(CUstream waits)
{
    use(0);
    copy(0, 1, streams[0]);
    CU(cuEventRecord(event, streams[0]));
    CU(cuLaunchHostFunc(other, stay, NULL));
    CU(cuEventRecord(event, other));
    expect_waits(waits, "the event's second record");
}

/* What the first record's message adds to the stream is nothing to wait for. */
static void several_records(CUstream sends, CUstream waits)
{
    CUevent second;
    use(0);
    CU(cuEventCreate(&second, CU_EVENT_DISABLE_TIMING));
    CU(cuMemsetD32Async(memory[0], 7, WORDS, sends));
    copy(0, 1, sends);
    CU(cuEventRecord(event, sends));
    CU(cuEventRecord(second, sends));
    use(1);
    CU(cuStreamWaitEvent(waits, second, 0));
    launch(1, 10, 1, waits);
    CU(cuStreamSynchronize(waits));
    EXPECT(word(1) == 71, "%d, expected 71", word(1));
    CU(cuEventDestroy(second));
    use(0);
    CU(cuLaunchHostFunc(sends, stay, NULL));
    CU(cuEventRecord(event, sends));
    expect_waits(waits, "work behind several records");
}

static void another_stream(CUstream waits)
{
    use(0);
    CU(cuLaunchHostFunc(other, stay, NULL));
    copy(0, 1, streams[0]);
    CU(cuEventRecord(event, other));
    expect_waits(waits, "an event of another stream");
}

/* What comes behind the event is not waited for. */
static void work_behind(CUstream waits)
{
    use(0);
    copy(0, 1, streams[0]);
    CU(cuEventRecord(event, streams[0]));
    CU(cuLaunchHostFunc(streams[0], stay, NULL));
    copy(0, 1, streams[0]);
    use(1);
    CU(cuStreamWaitEvent(waits, event, 0));
    CU(cuStreamSynchronize(waits));
    let_go();
    use(0);
    CU(cuStreamSynchronize(streams[0]));
}

/* Nor is what comes behind the copy at its own end. */
static void work_behind_there(CUstream waits)
{
    use(0);
    copy(0, 1, NULL);
    CU(cuEventRecord(event, NULL));
    use(1);
    CU(cuLaunchHostFunc(NULL, stay, NULL));
    CU(cuStreamWaitEvent(waits, event, 0));
    CU(cuStreamSynchronize(waits));
    let_go();
    CU(cuCtxSynchronize());
    use(0);
    CU(cuCtxSynchronize());
}

/* --- another process's record -------------------------------------------------------------- */

static int pipes[2][2]; /* to the parent, to the child */

static void tell(int to, const void *bytes, size_t size)
{
    REQUIRE(write(pipes[to][1], bytes, size) == (ssize_t)size, "write");
}

static void hear(int at, void *bytes, size_t size)
{
    REQUIRE(read(pipes[at][0], bytes, size) == (ssize_t)size, "the other process has ended");
}

/* Records the parent's event behind what stays until the parent says so. */
static void record_theirs(void)
{
    CUipcEventHandle name;
    char word = 0;
    hear(1, &name, sizeof name);
    REQUIRE(sem_init(&gate, 0, 0) == 0, "sem_init");
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&contexts[0], here));
    use(0);
    CU(cuIpcOpenEventHandle(&event, name));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuLaunchHostFunc(other, stay, NULL));
    CU(cuEventRecord(event, other));
    tell(0, &word, 1);
    hear(1, &word, 1);
    let_go();
    CU(cuStreamSynchronize(other));
    CU(cuEventDestroy(event));
}

static pid_t other_process(void)
{
    REQUIRE(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0, "pipe");
    pid_t pid = fork();
    REQUIRE(pid >= 0, "fork");
    close(pipes[pid != 0][0]);
    close(pipes[pid == 0][1]);
    if (pid == 0) {
        record_theirs();
        _exit(finish("driver_behind"));
    }
    return pid;
}

/* In the stream where the copy ends nothing is waited for at all but by what is known here. */
static void recorded_by_another(void)
{
    CUevent shared;
    CUipcEventHandle name;
    char word = 0;
    use(0);
    CU(cuEventCreate(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU(cuIpcGetEventHandle(&name, shared));
    copy(0, 1, NULL);
    CU(cuEventRecord(shared, NULL));
    tell(1, &name, sizeof name);
    hear(0, &word, 1);
    use(1);
    CU(cuStreamWaitEvent(NULL, shared, 0));
    EXPECT(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY, "not waited for: another's record");
    tell(1, &word, 1);
    CU(cuStreamSynchronize(NULL));
    use(0);
    CU(cuEventDestroy(shared));
}

int main(int argc, char **argv)
{
    pid_t child = other_process();
    int status = 0;
    open_both(argc > 1 ? atoi(argv[1]) : 1);
    REQUIRE(sem_init(&gate, 0, 0) == 0, "sem_init");
    to_and_fro(streams[0], streams[1]);
    use(0);
    CU(cuCtxSynchronize());
    to_and_fro(NULL, NULL);
    work_between(streams[0], streams[1]);
    work_between(NULL, NULL);
    recorded_again(streams[1]);
    several_records(streams[0], streams[1]);
    several_records(NULL, NULL);
    another_stream(streams[1]);
    work_behind(streams[1]);
    work_behind_there(streams[1]);
    recorded_by_another();
    REQUIRE(waitpid(child, &status, 0) == child && status == 0, "the other process: %d", status);
    return finish("driver_behind");
}
