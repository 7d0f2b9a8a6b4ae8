/* What applications see of libcupti.so; everything else is hidden. */
#ifndef GPC_CUPTI_EXPORT_H
#define GPC_CUPTI_EXPORT_H

#include "cupti.h"

#define GPC_CUPTI_EXPORT __attribute__((visibility("default")))

/* Keeps what cuptiGetLastError gives, and returns it. */
uint32_t gpc_cupti_said(uint32_t result);

#endif
