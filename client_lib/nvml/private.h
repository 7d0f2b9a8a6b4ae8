/* The one exported function that nvml.h does not declare. */
#ifndef GPC_NVML_PRIVATE_TABLE_H
#define GPC_NVML_PRIVATE_TABLE_H

#include <nvml.h>

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);

#endif
