/* What is done when, for whoever records it (cupti.c). */
#ifndef SG_ACTIVITY_H
#define SG_ACTIVITY_H

#include "softgpu.h"

/* The operation goes to a stream, from the calling thread. */
void sg_activity_submitted(struct sg_op *op);
/* This thread runs it, with what is in it. */
void sg_activity_enter(const struct sg_op *op, CUstream stream);
/* When something begins; 0: nobody records. */
uint64_t sg_activity_now(void);
/* It has run. No lock is held. */
void sg_activity_ran(const struct sg_op *op, uint64_t start);

#endif
