/*
 * Images that earlier sessions of this tenant have sent. They are files of the server's in a folder
 * that this worker may read: one for each hash, named by it. What is read is held against its hash
 * as what a client sends is, so a file that was damaged is an image that is missing.
 *
 * No worker writes there. An image that was loaded is offered to the server by its hash and size;
 * that fetches the file it lies in over the control socket, hashes it, and keeps it or does not.
 * Until then it counts against the session.
 */
#ifndef GPW_IMAGE_STORE_H
#define GPW_IMAGE_STORE_H

#include "session.h"

/* `folder` stays; NULL: there is none, and nothing is found or offered. 0 or -1. */
int gpw_image_store_open(struct gpw_session *s, const char *folder);
/* Whether an image of so many bytes is worth a file. */
bool gpw_image_store_wants(const struct gpw_session *s, uint64_t total);
/* A file for an image on its way, that ends with the last of its descriptors; -1: none. */
int gpw_image_store_file(uint64_t size);

/* A descriptor of the image's file and its size, or -1. It may be mapped, and is
 * to be read by pread. */
int gpw_image_store_find(struct gpw_session *s, const uint8_t *hash, uint64_t *total);
/* It was loaded: the server is to keep it for longer. */
void gpw_image_store_used(struct gpw_session *s, const uint8_t *hash);
/* An image whose bytes are charged (GPW_USE_IMAGES): descriptor and charge are taken over. */
void gpw_image_store_offer(struct gpw_session *s, const uint8_t *hash, uint64_t total, int file);
/* Offer no more what was not fetched, as the room is needed: behind it nothing is charged for. */
void gpw_image_store_forget(struct gpw_session *s);
/* The session is over: a server that is busy has a moment to fetch what is offered. */
void gpw_image_store_leave(struct gpw_session *s);
/* On the control thread: a server has come. It is offered what was not fetched yet. */
void gpw_image_store_server(struct gpw_session *s);

/* For the control thread: hand over an image that was offered, to a connection; "none" without. */
void gpw_image_store_tell(struct gpw_session *s, const char *hash, int connection);

#endif
