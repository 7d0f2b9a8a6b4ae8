/*
 * The device's time. A kernel runs only while its process has its device; processes
 * share one where GPUPOOL_SOFT_TIME names a folder (runlist.h), else each has its own.
 * A thread keeps its process's place between kernels that follow one another.
 */
#ifndef SG_TIMESLICE_H
#define SG_TIMESLICE_H

#include "softgpu.h"

/* The process has so many bytes more of the device, or fewer: others see it, as NVML shows what
 * a process has of real ones. sg.lock is held. */
void sg_time_memory(struct sg_device *device, int64_t change);
/* Before a kernel of this thread: waits for the device. False: *cancel was set meanwhile,
 * and the thread has not got it. No lock is held. */
bool sg_time_enter(const struct sg_device *device, volatile int *cancel);
/* Now and then while the kernel runs: lets others have the device when the slice is over.
 * What a launch takes as its `breathe`. */
void sg_time_breathe(void *unused);
/* Whether that may wait: what a launch takes as its `due`. */
bool sg_time_due(void *unused);
/* The thread has nothing more for the device, if it had it at all. */
void sg_time_leave(void);

/* What a worker calls where there is no kernel driver to ask: the time slice of this
 * process on the device; 0: the default again. */
__attribute__((visibility("default"))) CUresult sgSetTimeSlice(CUdevice device,
                                                               unsigned long long us);
/* The accounts in a runlist's file, as JSON (runlist.h): what NVML is for real devices. The
 * length as snprintf has it, or a negative errno. Needs no cuInit, takes no lock. */
__attribute__((visibility("default"))) int sgTimeDescribe(const char *path, char *out, int size);

#endif
