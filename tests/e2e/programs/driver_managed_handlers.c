/*
 * A program with handlers of SIGSEGV of its own, installed before there is managed memory and
 * after, which jump out, return, run on an alternate stack, and call the one that they found.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

#include "driver.h"

#define INTS (1 << 18)

static CUfunction increment;
static int *p;
static sigjmp_buf back;
static volatile int first_calls, second_calls, third_calls;
static volatile char *guarded; /* a page that a handler opens */
static struct sigaction found;

static void increment_all(void)
{
    int n = INTS;
    void *parameters[] = {&p, &n};
    CU(cuLaunchKernel(increment, INTS / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    CU(cuCtxSynchronize());
}

/* Its first touch is of memory that was closed before the handler was installed. */
static void round_trip(const char *when)
{
    int before = p[INTS - 1];
    p[0] = 10;
    increment_all();
    EXPECT(p[0] == 11 && p[INTS - 1] == before + 1, "%s: %d, %d", when, p[0], p[INTS - 1]);
}

static void jumps(int number)
{
    (void)number;
    first_calls++;
    siglongjmp(back, 1);
}

static void opens(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    second_calls++;
    if ((char *)info->si_addr != guarded)
        siglongjmp(back, 2);
    mprotect((void *)(uintptr_t)guarded, 4096, PROT_READ | PROT_WRITE);
}

/* As crash reporters do: what is not its own goes to the handler that was there before. */
static void passes_on(int number, siginfo_t *info, void *context)
{
    third_calls++;
    if (found.sa_flags & SA_SIGINFO)
        found.sa_sigaction(number, info, context);
    else
        found.sa_handler(number);
}

static void wild(int expected, const char *when)
{
    static volatile int *volatile nowhere = (int *)16;
    int came = sigsetjmp(back, 1);
    if (came == 0)
        *nowhere = 1;
    EXPECT(came == expected, "%s: came back with %d", when, came);
}

/* Managed memory has no code, whether it is open or not. */
static void wild_jump(int expected)
{
    void (*volatile nowhere)(void) = (void (*)(void))(uintptr_t)p;
    int came = sigsetjmp(back, 1);
    if (came == 0)
        nowhere();
    EXPECT(came == expected, "a jump into managed memory: came back with %d", came);
}

static void install(void (*handler)(int, siginfo_t *, void *), int flags, struct sigaction *old)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&action.sa_mask);
    REQUIRE(sigaction(SIGSEGV, &action, old) == 0, "sigaction");
}

int main(void)
{
    static char stack_room[1 << 16];
    CUmodule module;
    CUdeviceptr at;
    stack_t stack = {.ss_sp = stack_room, .ss_size = sizeof stack_room};
    guarded = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, jumps);
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    CU(cuMemAllocManaged(&at, INTS * sizeof(int), CU_MEM_ATTACH_GLOBAL));
    p = (int *)(uintptr_t)at;
    round_trip("with a handler from before");
    for (int i = 0; i < 3; i++)
        wild(1, "a handler from before");
    wild_jump(1);
    round_trip("after it has jumped");

    sigaltstack(&stack, NULL);
    install(opens, SA_ONSTACK, NULL);
    round_trip("with a later handler");
    guarded[0] = 7;
    EXPECT(guarded[0] == 7 && second_calls == 1, "the later handler was called %d times",
           second_calls);
    for (int i = 0; i < 3; i++)
        wild(2, "a later handler");
    round_trip("after that has jumped");

    install(passes_on, 0, &found);
    round_trip("with one that passes on");
    mprotect((void *)(uintptr_t)guarded, 4096, PROT_NONE);
    for (int i = 0; i < 3; i++)
        wild(found.sa_sigaction == opens ? 2 : 1, "one that passes on");
    EXPECT(third_calls == 3, "it was called %d times", third_calls);
    round_trip("at the end");
    EXPECT(first_calls >= 3, "the first was called %d times", first_calls);
    CU(cuMemFree(at));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_managed_handlers");
}
