/*
 * Memory of this process that lies at device addresses, mapped twice: once in the device's
 * window, where the application touches it under page protection, and once where only this
 * library does (the alias), which is always open. Both are one file, sparse, as large as the
 * window: what lies side by side with the same protection is one mapping of the kernel's.
 */
#ifndef GPC_AREA_H
#define GPC_AREA_H

#include <stdbool.h>
#include <stdint.h>

struct gp_device_info;
struct gpc_area;

/* How the application's side is open. */
enum gpc_open { GPC_OPEN_NOT, GPC_OPEN_READ, GPC_OPEN_WRITE };

/* The area of a device's window, made on first use; NULL with a line in the log. Addresses are
 * whole pages and lie in it in everything below. */
struct gpc_area *gpc_area_of(const struct gp_device_info *device);
/* Open addresses to the application, for writing: they read as zeros. 0, or -errno. */
int gpc_area_map(const struct gpc_area *a, uint64_t at, uint64_t bytes);
/* Close them, and give their memory back. */
void gpc_area_unmap(const struct gpc_area *a, uint64_t at, uint64_t bytes);
/* An area of its own, of zeros that are open for writing, which lies in no window. NULL: something is
 * there. */
struct gpc_area *gpc_area_at(uint64_t at, uint64_t bytes);
/* An area of one allocation, of private pages that are there already: they keep what they hold, and
 * a thread that writes meanwhile faults and is served when this is done. NULL: they are as before.
 * The caller has a lock that serving needs. */
struct gpc_area *gpc_area_over(uint64_t at, uint64_t bytes);
/* Unmap such an area: the pages are gone. */
void gpc_area_end(struct gpc_area *a);
/* Or have private pages in their place again, which hold what they held. */
void gpc_area_give_back(struct gpc_area *a);
/* 0, or -errno: the process may have too many mappings. */
int gpc_area_protect(uint64_t at, uint64_t bytes, enum gpc_open open);
/* This library's address for it. */
void *gpc_area_alias(const struct gpc_area *a, uint64_t at);
/* The first bytes of [at, end) that somebody has touched, as they lie in it; false: none. What
 * nobody has touched is zeros. */
bool gpc_area_touched(const struct gpc_area *a, uint64_t at, uint64_t end, uint64_t *from,
                      uint64_t *to);

#endif
