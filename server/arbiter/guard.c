/*
 * A board that another process makes shorter, or whose pages its disk has lost: touching it
 * would end this process. Its pages become empty ones of our own instead, which gp_board_check
 * tells from a board.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "board_internal.h"

#define BOARDS 64
static struct board_file *mapped[BOARDS];
static struct sigaction before;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool replace(const void *at)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), address = (uintptr_t)at;
    for (unsigned i = 0; i < BOARDS; i++) {
        uintptr_t begin = (uintptr_t)__atomic_load_n(&mapped[i], __ATOMIC_ACQUIRE);
        size_t size = (sizeof(struct board_file) + page - 1) / page * page;
        if (begin && address >= begin && address - begin < size)
            return mmap((void *)begin, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return false;
}

/* Not a board's: as if we were not here. */
static void on_bus_error(int number, siginfo_t *info, void *machine)
{
    int error = errno;
    if (replace(info->si_addr)) {
        errno = error;
        return;
    }
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, machine);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        sigaction(number, &before, NULL); /* and it comes again */
}

static void install(void)
{
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before);
}

static void change(struct board_file *from, struct board_file *to)
{
    for (unsigned i = 0; i < BOARDS; i++) {
        struct board_file *expected = from;
        if (__atomic_compare_exchange_n(&mapped[i], &expected, to, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return;
    }
}

void gp_board_guard(struct board_file *f)
{
    pthread_once(&once, install);
    change(NULL, f);
}

void gp_board_unguard(struct board_file *f)
{
    change(f, NULL);
}
