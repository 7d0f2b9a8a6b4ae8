/*
 * What of a device's memory this session may have. Every way to take device memory
 * reserves it on the board first and gives it back if the driver has none; what the
 * driver takes by itself (contexts, modules, local memory) is found by asking NVML
 * what this process holds. Without boards there is no limit.
 */
#ifndef GPW_QUOTA_H
#define GPW_QUOTA_H

#include "session.h"

/* Reserve on the session's device `ordinal`; false: over the limit, also after what the
 * driver's pools keep without using it has been given back. */
bool gpw_quota_take(struct gpw_session *s, uint32_t ordinal, uint64_t bytes);
void gpw_quota_give(struct gpw_session *s, uint32_t ordinal, uint64_t bytes);
/* Whether so much may still be taken. */
bool gpw_quota_fits(struct gpw_session *s, uint32_t ordinal, uint64_t bytes);
/* What cuMemGetInfo says: the smaller of what is physically free and what is left, and
 * the limit for the total. */
void gpw_quota_info(struct gpw_session *s, uint32_t ordinal, size_t *free_bytes, size_t *total);
/* The limit of a device, `physical` where there is none. */
uint64_t gpw_quota_limit(struct gpw_session *s, uint32_t ordinal, uint64_t physical);
/* Charge what the process holds beyond what was counted. False: that is more than the
 * limit (and is charged all the same). Slow: asks NVML. */
bool gpw_quota_reconcile(struct gpw_session *s, uint32_t ordinal);
/* Now and then: a session that has made its tenant hold more than the limit, in ways that
 * nothing here could refuse, and that cannot be made to fit, is ended. */
void gpw_quota_enforce(struct gpw_session *s, uint32_t ordinal);
/* Whether that should be soon: something was charged by an estimate, which another session of the
 * tenant can make too low, or one look has found too much. */
bool gpw_quota_is_doubtful(const struct gpw_session *s, uint32_t ordinal);
/* Charge what the driver has just taken, without asking anybody. False: it has to be found out, as
 * that is much, or little is left. */
bool gpw_quota_estimate(struct gpw_session *s, uint32_t ordinal, uint64_t bytes);
/* The same as gpw_quota_reconcile, and by how many bytes. */
bool gpw_quota_settle(struct gpw_session *s, uint32_t ordinal, uint64_t *over);

/* The client's number of a device for the driver's and back, in locations and properties;
 * false or CUDA_ERROR_INVALID_DEVICE: the session has no such device, whatever the driver
 * has. */
bool gpw_location_take(struct gpw_session *s, CUmemLocation *location);
CUresult gpw_location_check(struct gpw_session *s, CUmemLocation *location);
CUresult gpw_device_take(struct gpw_session *s, CUdevice ordinal, CUdevice *device);
/* The same of a list, into `to`, which has room for so many. */
#define GPW_ACCESS_MAX 64
CUresult gpw_access_take(struct gpw_session *s, const CUmemAccessDesc *from, size_t count,
                         CUmemAccessDesc *to, size_t room);
void gpw_location_give(struct gpw_session *s, CUmemLocation *location);
/* Of the current context's device; -1 without a context. */
int gpw_current_ordinal(struct gpw_session *s);

#endif
