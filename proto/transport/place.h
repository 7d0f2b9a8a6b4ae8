/*
 * Where somebody comes from, as limits see it: one machine on an IPv6 network has all of its
 * /64 to come from, so that counts as one place. On a link everybody shares fe80::/64: there
 * each address is one. hosts.py of gpupool_common has the same rule.
 */
#ifndef GP_TRANSPORT_PLACE_H
#define GP_TRANSPORT_PLACE_H

#include <stdbool.h>
#include <sys/socket.h>

bool gp_same_place(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

#endif
