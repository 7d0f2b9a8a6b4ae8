/* Shared memory with somebody who accepts connections at a path and hands them over, as
 * gpupool-server does; every connection, whatever it begins with, if the url has no word. */
#ifndef GP_TEST_SHM_SERVER_H
#define GP_TEST_SHM_SERVER_H

#include "transport/transport.h"

/* As gp_transport_shm, but listens at shm:///PATH, too. */
extern struct gp_transport shm_served;
/* Fill it; returns it. */
const struct gp_transport *shm_served_make(void);

#endif
