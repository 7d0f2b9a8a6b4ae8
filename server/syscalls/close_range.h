/* close_range as Linux has it since 5.9, for C libraries before glibc 2.34. */
#ifndef GP_CLOSE_RANGE_H
#define GP_CLOSE_RANGE_H

#include <sys/syscall.h>
#include <unistd.h>

static inline int gp_close_range(unsigned first, unsigned last)
{
    return (int)syscall(SYS_close_range, first, last, 0u);
}

#endif
