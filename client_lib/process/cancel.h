/*
 * A thread that holds one of our locks, or the right to read, must not be cancelled there:
 * nobody would ever give them back. Calls that wait for the GPU are cancellation points at
 * their end (gpc_leave).
 */
#ifndef GPC_CANCEL_H
#define GPC_CANCEL_H

#include <pthread.h>

static inline int gpc_cancel_off(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void gpc_cancel_back(int before)
{
    pthread_setcancelstate(before, NULL);
}

#endif
