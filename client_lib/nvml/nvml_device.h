/*
 * What the functions of NVML are made of: is the library initialised, is this a device
 * of ours, what is known of it. All of it may be called from any thread.
 */
#ifndef GPC_NVML_DEVICE_H
#define GPC_NVML_DEVICE_H

#include <nvml.h>

#include "nvml_answer.h"

#define GPC_NVML_EXPORT __attribute__((visibility("default")))

/* NVML_ERROR_UNINITIALIZED, or success. */
nvmlReturn_t gpc_nvml_ready(void);
/* As above, and NVML_ERROR_INVALID_ARGUMENT for what is no device. */
nvmlReturn_t gpc_nvml_known(nvmlDevice_t device);
/* What to answer when an argument beside the device is wrong. */
nvmlReturn_t gpc_nvml_bad_argument(nvmlDevice_t device);

/* The values of `count` facts, fetched again if one of them is fresh and they are old;
 * NVML_ERROR_NOT_SUPPORTED if one is not known, with nothing given. */
nvmlReturn_t gpc_nvml_facts(nvmlDevice_t device, const enum gpc_nvml_fact *wanted, int count,
                            unsigned long long *got);
nvmlReturn_t gpc_nvml_fact(nvmlDevice_t device, enum gpc_nvml_fact wanted, unsigned long long *got);
/* As above; what is not known is `otherwise`. */
nvmlReturn_t gpc_nvml_fact_or(nvmlDevice_t device, enum gpc_nvml_fact wanted,
                              unsigned long long otherwise, unsigned long long *got);
/* A text with its NUL; NVML_ERROR_INSUFFICIENT_SIZE if there is no room. */
nvmlReturn_t gpc_nvml_text(nvmlDevice_t device, enum gpc_nvml_text wanted, char *text,
                           unsigned int length);
/* Its processes, at most GPC_NVML_PROCESSES. */
nvmlReturn_t gpc_nvml_processes(nvmlDevice_t device, struct gpc_nvml_process *processes,
                                unsigned int *count);

/* The handle of a device, NULL for what is none; its number, -1 for what is none. */
nvmlDevice_t gpc_nvml_handle(uint32_t index);
int gpc_nvml_index(nvmlDevice_t device);

/* What a program gets that was built before the structure had its last member: none of that. */
nvmlReturn_t gpc_nvml_pci_older(const nvmlPciInfo_t *found, nvmlPciInfo_t *pci);

/* What the functions that are not there answer; they are named in the log (debug). */
nvmlReturn_t gpc_nvml_refuse(const char *function);
nvmlReturn_t gpc_nvml_refuse_device(const char *function, nvmlDevice_t device);

/* Copy a text for a caller who gave `length` bytes. */
nvmlReturn_t gpc_nvml_give_text(const char *from, char *to, unsigned int length);

#endif
