/*
 * What processes do beside CUDA: fork while another thread is in cuInit, cancel a thread inside
 * a call, close descriptors that are not theirs. None of it may hang or end the program.
 *
 *   driver_process fork MICROSECONDS   fork so long after the other thread entered cuInit
 *   driver_process cancel              cancel threads that copy, and go on
 *   driver_process close               close all descriptors, use their numbers again, go on
 *   driver_process close-waiting       the same while another thread copies
 *   driver_process close-standard      close 0 to 2 before anything else, and print
 *   driver_process file-limit          no file may be larger than nothing
 *   driver_process few-descriptors     initialise with room for 1, 2, 3 … more
 *   driver_process few-threads         initialise where no thread can be started
 *   driver_process small-stack         launch and copy on the smallest stack that a thread has
 *   driver_process interrupted         call CUDA in a signal's handler that interrupts a wait, go
 *                                      on, and leave by exit() in the next one
 *   driver_process uploading           copy, 2 MiB each time, until SIGUSR1, and leave likewise
 */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 1 << 20, PATIENCE_S = 30 };

static CUdeviceptr device;
static unsigned char *from, *to;

static void start_copying(void)
{
    driver_start();
    CU(cuMemAlloc(&device, BYTES));
    from = malloc(BYTES);
    to = malloc(BYTES);
}

static CUresult copy(int value)
{
    memset(from, value, BYTES);
    memset(to, 0, BYTES);
    CUresult r = cuMemcpyHtoD(device, from, BYTES);
    if (r == CUDA_SUCCESS)
        r = cuMemcpyDtoH(to, device, BYTES);
    if (r == CUDA_SUCCESS)
        EXPECT(memcmp(from, to, BYTES) == 0, "what came back is not what went");
    return r;
}

/* --- fork --- */

static void *init_elsewhere(void *unused)
{
    (void)unused;
    CU(cuInit(0));
    return NULL;
}

static void fork_in_init(unsigned microseconds)
{
    pthread_t thread;
    int status = -1;
    REQUIRE(pthread_create(&thread, NULL, init_elsewhere, NULL) == 0, "no thread");
    usleep(microseconds);
    pid_t child = fork();
    REQUIRE(child >= 0, "no child");
    if (child == 0) {
        int count = 0;
        alarm(PATIENCE_S);      /* instead of hanging */
        CUresult r = cuInit(0); /* success where the other thread had not begun */
        EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_INITIALIZED, "cuInit: %s", driver_name(r));
        CU_GIVES(r, cuDeviceGetCount(&count));
        fflush(stdout);
        exit(check_failures != 0);
    }
    REQUIRE(waitpid(child, &status, 0) == child, "the child cannot be waited for");
    EXPECT(status == 0, "the child ended with status %#x", (unsigned)status);
    pthread_join(thread, NULL);
    start_copying();
    CU(copy(3));
}

/* --- cancellation --- */

static long copies;

static void *copy_for_ever(void *unused)
{
    (void)unused;
    CUdeviceptr own;
    CUstream stream;
    static unsigned char bytes[BYTES]; /* on nobody's stack */
    CU(cuCtxSetCurrent(driver_context));
    CU(cuMemAlloc(&own, BYTES));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (;;) {
        CU(cuMemcpyHtoDAsync(own, bytes, BYTES, stream));
        CU(cuStreamSynchronize(stream));
        CU(cuMemcpyDtoH(bytes, own, BYTES));
        __atomic_fetch_add(&copies, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void cancel_inside(void)
{
    start_copying();
    /* on a busy machine, longer: until one has come to copy; the alarm ends it if need be */
    for (int i = 0; i < 20 || !__atomic_load_n(&copies, __ATOMIC_RELAXED); i++) {
        pthread_t thread;
        void *result = NULL;
        REQUIRE(pthread_create(&thread, NULL, copy_for_ever, NULL) == 0, "no thread");
        usleep(2000 + 300 * (unsigned)i);
        pthread_cancel(thread);
        REQUIRE(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED, "not cancelled");
        CU(copy(i & 127));
    }
}

/* --- descriptors --- */

static void close_descriptors(void)
{
    int last = 8;
    for (int fd = 3; fd < 1024; fd++)
        if (close(fd) == 0 && fd > last)
            last = fd;
    for (int fd = 3; fd <= last; fd++) /* and their numbers are somebody else's */
        REQUIRE(open("/dev/null", O_RDWR) >= 0, "cannot open /dev/null");
}

static void descriptors_remain(void)
{
    /* nothing of ours may touch what is the program's now */
    for (int fd = 3; fd < 6; fd++)
        EXPECT(fcntl(fd, F_GETFD) != -1, "descriptor %d is not the program's any more", fd);
}

/* What CUDA says now: success for as long as nothing is needed of them, then one error. */
static void after_closing(void)
{
    CUresult r = CUDA_SUCCESS;
    for (int i = 0; r == CUDA_SUCCESS; i++) /* the alarm ends it if need be */
        r = copy(i & 127);
    for (int i = 0; i < 5; i++)
        CU_GIVES(CUDA_ERROR_DEVICE_UNAVAILABLE, copy(i));
    EXPECT(r == CUDA_ERROR_DEVICE_UNAVAILABLE, "a copy gave %s", driver_name(r));
    descriptors_remain();
}

static void close_all(void)
{
    start_copying();
    CU(copy(1));
    usleep(50000); /* nothing of ours is at work */
    close_descriptors();
    after_closing();
}

static void *copy_until_lost(void *unused)
{
    (void)unused;
    CUresult r = cuCtxSetCurrent(driver_context);
    while (r == CUDA_SUCCESS)
        r = cuMemcpyDtoH(to, device, 64);
    EXPECT(r == CUDA_ERROR_DEVICE_UNAVAILABLE, "the waiting thread got %s", driver_name(r));
    return NULL;
}

static void close_while_waiting(void)
{
    pthread_t thread;
    start_copying();
    CU(copy(1));
    REQUIRE(pthread_create(&thread, NULL, copy_until_lost, NULL) == 0, "no thread");
    usleep(50000);
    close_descriptors();
    pthread_join(thread, NULL);
    descriptors_remain();
}

/* What is printed where nobody listens must not go to the server, or into managed memory. */
static void close_standard(void)
{
    CUdeviceptr managed;
    int out = fcntl(STDOUT_FILENO, F_DUPFD, 10), taken = 0;
    REQUIRE(out >= 10, "no descriptor");
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    CUresult r = cuInit(0);
    for (int fd = 0; fd < 3; fd++)
        taken += fcntl(fd, F_GETFD) != -1;
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    EXPECT(r == CUDA_SUCCESS, "cuInit: %s", driver_name(r));
    EXPECT(taken == 0, "%d of the descriptors 0 to 2 are gpupool's", taken);
    start_copying();
    CU(copy(1));
    CU(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    EXPECT(fcntl(STDIN_FILENO, F_GETFD) == -1, "managed memory is descriptor 0");
}

/* --- a limit of files' sizes --- */

/* SIGXFSZ, as it is by default, would end the program. */
static void limit_files(void)
{
    struct rlimit before, nothing;
    CUdeviceptr managed;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0, "which limit?");
    nothing = (struct rlimit){0, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &nothing) == 0, "no limit");
    start_copying();
    CU(copy(1));
    CUresult r = cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL);
    EXPECT(driver_is_native() || r == CUDA_ERROR_OUT_OF_MEMORY, "managed memory: %s",
           driver_name(r));
    CU(copy(2));
    setrlimit(RLIMIT_FSIZE, &before);
}

/* --- a limit of descriptors --- */

static void init_with_room_for(rlim_t count)
{
    const struct rlimit few = {count, count};
    alarm(PATIENCE_S); /* instead of hanging */
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0, "no limit");
    CUresult r = cuInit(0);
    EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_NO_DEVICE, "%d descriptors: %s", (int)count,
           driver_name(r));
    fflush(stdout);
    _exit(check_failures != 0);
}

/* Each answers, whether with an error or without one. */
static void few_descriptors(void)
{
    for (rlim_t count = 4; count < 20; count++) {
        int status = -1;
        pid_t child = fork();
        REQUIRE(child >= 0, "no child");
        if (child == 0)
            init_with_room_for(count);
        REQUIRE(waitpid(child, &status, 0) == child, "the child cannot be waited for");
        EXPECT(status == 0, "with %d descriptors it ended with status %#x", (int)count,
               (unsigned)status);
    }
    start_copying();
    CU(copy(1));
}

/* --- threads --- */

static void init_without_threads(void)
{
    pthread_attr_t large; /* no address space has room for its stack */
    alarm(PATIENCE_S);
    pthread_attr_init(&large);
    REQUIRE(pthread_attr_setstacksize(&large, (size_t)1 << 48) == 0, "no such stack");
    REQUIRE(pthread_setattr_default_np(&large) == 0, "no such default");
    CU_GIVES(CUDA_ERROR_NO_DEVICE, cuInit(0));
    fflush(stdout);
    _exit(check_failures != 0);
}

static void few_threads(void)
{
    int status = -1;
    pid_t child = fork();
    REQUIRE(child >= 0, "no child");
    if (child == 0)
        init_without_threads();
    REQUIRE(waitpid(child, &status, 0) == child, "the child cannot be waited for");
    EXPECT(status == 0, "the child ended with status %#x", (unsigned)status);
}

static CUfunction multiply_add;

static void *launch_and_copy(void *unused)
{
    int value = 0, count = 1, factor = 3, term = 4;
    void *parameters[] = {&device, &count, &factor, &term};
    (void)unused;
    CU(cuCtxSetCurrent(driver_context));
    CU(cuLaunchKernel(multiply_add, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(&value, device, sizeof value));
    EXPECT(value == 7, "the kernel wrote %d", value);
    return NULL;
}

static void small_stack(void)
{
    pthread_attr_t small;
    pthread_t thread;
    CUmodule module;
    start_copying();
    CU(cuModuleLoadData(&module, kernels_ptx));
    multiply_add = driver_function(module, "multiply_add");
    CU(cuMemsetD32(device, 1, 1));
    pthread_attr_init(&small);
    REQUIRE(pthread_attr_setstacksize(&small, 16384) == 0, "no such stack");
    REQUIRE(pthread_create(&thread, &small, launch_and_copy, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
}

/* --- handlers of signals --- */

static pthread_t waiting;
static volatile sig_atomic_t interruptions;

static void CUDA_CB interrupt_it(void *unused)
{
    (void)unused;
    usleep(50000); /* it has come to wait */
    pthread_kill(waiting, SIGUSR1);
}

/* As of Ctrl-C: the wait is this thread's own, so it cannot be over before this one returns. */
static void handler(int number)
{
    size_t available, total;
    (void)number;
    CUresult r = cuMemGetInfo(&available, &total);
    EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_PERMITTED, "in a handler: %s", driver_name(r));
    if (++interruptions == 2)
        exit(finish("driver_process"));
}

static void interrupted(void)
{
    CUstream stream;
    start_copying();
    waiting = pthread_self();
    signal(SIGUSR1, handler);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuLaunchHostFunc(stream, interrupt_it, NULL));
    CU(cuStreamSynchronize(stream));
    EXPECT(interruptions == 1, "%d signals came", (int)interruptions);
    CU(copy(1));
    CU(cuLaunchHostFunc(stream, interrupt_it, NULL));
    CU(cuStreamSynchronize(stream));
    EXPECT(0, "exit() in a handler came back");
}

static void leave(int number)
{
    (void)number;
    exit(finish("driver_process"));
}

static void uploading(void)
{
    static unsigned char bytes[2 << 20];
    CUdeviceptr to_there;
    driver_start();
    CU(cuMemAlloc(&to_there, sizeof bytes));
    signal(SIGUSR1, leave);
    for (int i = 0;; i++) {
        CU(cuMemcpyHtoD(to_there, bytes, sizeof bytes));
        if (i == 20) { /* by now over all connections */
            puts("copying");
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    alarm(2 * PATIENCE_S);
    if (strcmp(what, "fork") == 0 && argc > 2)
        fork_in_init((unsigned)atoi(argv[2]));
    else if (strcmp(what, "cancel") == 0)
        cancel_inside();
    else if (strcmp(what, "close") == 0)
        close_all();
    else if (strcmp(what, "close-waiting") == 0)
        close_while_waiting();
    else if (strcmp(what, "close-standard") == 0)
        close_standard();
    else if (strcmp(what, "few-threads") == 0)
        few_threads();
    else if (strcmp(what, "small-stack") == 0)
        small_stack();
    else if (strcmp(what, "interrupted") == 0)
        interrupted();
    else if (strcmp(what, "uploading") == 0)
        uploading();
    else if (strcmp(what, "few-descriptors") == 0)
        few_descriptors();
    else if (strcmp(what, "file-limit") == 0)
        limit_files();
    else
        REQUIRE(0, "which case?");
    return finish("driver_process");
}
