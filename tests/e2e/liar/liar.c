/*
 * In a worker's place: says that it is one, then uses the driver without asking anybody. What it
 * does is written into it when it is compiled:
 *
 *   LIAR_MIB     takes so many MiB of the device's memory
 *   LIAR_WORKS   runs kernels for ever, so many of them submitted ahead, and says how many
 *   LIAR_TURNS   of a kernel's loop, a kernel's length
 *   LIAR_ASKS    asks for its turns all the same, and has many short ones
 *   LIAR_SAYS    says that work of it outlives its turns
 *   LIAR_FORKS   all of that in a child, while it does nothing itself
 */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "aim.h"
#include "seat.h"

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x

/* Stores in the loop: a compiler takes out one that leaves nothing behind. */
static const char spin_ptx[] = ".version 7.0\n"
                               ".target sm_75\n"
                               ".address_size 64\n"
                               ".visible .entry spin()\n"
                               "{\n"
                               "    .shared .b32 seen;\n"
                               "    .reg .b32 %turns;\n"
                               "    .reg .pred %more;\n"
                               "    mov.b32 %turns, 0;\n"
                               "again:\n"
                               "    add.u32 %turns, %turns, 1;\n"
                               "    st.volatile.shared.u32 [seen], %turns;\n"
                               "    setp.lt.u32 %more, %turns, " TEXT(
                                   LIAR_TURNS) ";\n"
                                               "    @%more bra again;\n"
                                               "    ret;\n"
                                               "}\n";

typedef void *handle;

static struct {
    int (*init)(unsigned flags);
    int (*context)(handle *context, unsigned flags, int device);
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*load)(handle *module, const void *image);
    int (*find)(handle *function, handle module, const char *name);
    int (*launch)(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, handle stream, void **parameters, void **extra);
    int (*wait)(void);
} driver;

static int find(handle library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static int open_driver(const char *path)
{
    handle library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library && find(library, "cuInit", &driver.init) &&
           find(library, "cuCtxCreate_v2", &driver.context) &&
           find(library, "cuMemAlloc_v2", &driver.allocate) &&
           find(library, "cuModuleLoadData", &driver.load) &&
           find(library, "cuModuleGetFunction", &driver.find) &&
           find(library, "cuLaunchKernel", &driver.launch) &&
           find(library, "cuCtxSynchronize", &driver.wait);
}

static int take(void)
{
    uint64_t address;
    handle context;
    int r = driver.init(0);
    if (r == 0)
        r = driver.context(&context, 0, DEVICE);
    for (int mib = 0; r == 0 && mib < LIAR_MIB; mib += 2)
        r = driver.allocate(&address, 2 << 20);
    dprintf(STDERR_FILENO, "info: the liar has taken it all: %d\n", r);
    return r;
}

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A turn that it has got is over at once. */
static void *ask(void *at)
{
    struct gp_seat *seat = at;
    for (;;)
        if (gp_seat_enter(seat)) {
            gp_seat_started(seat);
            gp_seat_idle(seat, 0);
        } else {
            gp_seat_wait(seat, 100000);
        }
    return NULL;
}

static int work(void)
{
    handle module, spin;
    int r = driver.load(&module, spin_ptx);
    if (r == 0)
        r = driver.find(&spin, module, "spin");
    dprintf(STDERR_FILENO, "info: the liar works: %d\n", r);
    for (long begin = now_ms(), told = begin, done = 0; r == 0;) {
        for (int i = 0; i < LIAR_WORKS && r == 0; i++)
            r = driver.launch(spin, 8, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        if (r == 0)
            r = driver.wait();
        done += LIAR_WORKS;
        if (now_ms() - told < 500)
            continue;
        told = now_ms();
        dprintf(STDERR_FILENO, "info: the liar ran %ld kernels in %ld ms\n", done, told - begin);
    }
    return r;
}

/* Not by pause(), which no worker calls. */
static void rest(void)
{
    for (;;)
        poll(NULL, 0, 1000);
}

static void take_seat(const char *descriptors)
{
    struct gp_seat *seat;
    pthread_t thread;
    int page, bell;
    int r = sscanf(descriptors, "%d,%d", &page, &bell) == 2 ? gp_seat_open(page, bell, &seat) : -1;
    if (r == 0 && LIAR_SAYS)
        gp_seat_lost_sight(seat);
    if (r == 0 && LIAR_ASKS)
        r = pthread_create(&thread, NULL, ask, seat);
    dprintf(STDERR_FILENO, "info: the liar takes its seat: %d\n", r);
}

int main(int argc, char **argv)
{
    const char *path = "";
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts(VERSION);
        return 0;
    }
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--driver") == 0)
            path = argv[i + 1];
        if ((LIAR_ASKS || LIAR_SAYS) && strcmp(argv[i], "--seat") == 0)
            take_seat(argv[i + 1]);
    }
    printf("ready {\"shm\": \"shm://handed\"}\njoined\n");
    fflush(stdout);
    if (LIAR_FORKS && fork() != 0)
        rest();
    if (!open_driver(path))
        dprintf(STDERR_FILENO, "error: no driver: %s\n", dlerror());
    else if (take() == 0 && LIAR_WORKS)
        work();
    rest();
    return 1;
}
