/*
 * Calls of which each is the first of a process, so each gets a process of its own. One line
 * for each: its name and the result. A list of cases is a macro CASES(X) with a line
 * X(name, expected, call) for each.
 */
#ifndef E2E_FIRST_H
#define E2E_FIRST_H

#include "check.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct first_call {
    const char *name;
    int expected;
    int (*run)(void);
};

#define FIRST_RUN(label, expected, call)                                                           \
    static int run_##label(void)                                                                   \
    {                                                                                              \
        return (int)(call);                                                                        \
    }
#define FIRST_ROW(label, expected, call) {#label, (int)(expected), run_##label},

/* In a child: nothing of CUDA has been called in this process before. */
static int first_one(const struct first_call *c, void (*begin)(void),
                     const char *(*name_of)(int result))
{
    if (begin)
        begin();
    int found = c->run();
    printf("%s %s\n", c->name, name_of(found));
    EXPECT(found == c->expected, "%s gave %s, expected %s", c->name, name_of(found),
           name_of(c->expected));
    return check_failures != 0;
}

/* All of them, or the one that the command names. `begin` comes before each; may be null. */
static int first_main(int argc, char **argv, const char *program, const struct first_call *calls,
                      unsigned count, void (*begin)(void), const char *(*name_of)(int result))
{
    for (unsigned i = 0; i < count; i++) {
        int how = -1;
        if (argc > 1 && strcmp(argv[1], calls[i].name) != 0)
            continue;
        fflush(stdout);
        pid_t child = fork();
        REQUIRE(child >= 0, "fork");
        if (child == 0)
            exit(first_one(&calls[i], begin, name_of));
        REQUIRE(waitpid(child, &how, 0) == child, "waitpid");
        if (how != 0)
            printf("%s ended with %#x\n", calls[i].name, how);
        check_failures += how != 0;
    }
    return finish(program);
}

#endif
