/*
 * The arbiter of one GPU: the board, the pages of its members, and the server's commands. It
 * is the only one that writes the board. A process of its own (main.c), one thread: it sleeps
 * until a bell rings, a turn is over, a worker has died, or the server says something.
 */
#ifndef GP_ARBITER_H
#define GP_ARBITER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "board.h"

struct gp_arbiter;

/* `listener`: a listening socket (SOCK_SEQPACKET, AF_UNIX) at which servers come, -1: none.
 * 0 or a negative errno. */
int gp_arbiter_new(int listener, struct gp_arbiter **arbiter);
void gp_arbiter_free(struct gp_arbiter *a);
/* Sleep for at most `timeout_ms` (-1: for any time), then do all that there is to do. */
void gp_arbiter_step(struct gp_arbiter *a, int timeout_ms);
/* Whether it is of use to nobody: no server, no worker. */
bool gp_arbiter_done(const struct gp_arbiter *a);

/* --- what the server commands (command.c) -------------------------------------------- */

struct gp_board *gp_arbiter_board(struct gp_arbiter *a);
/* A seat for a worker to come: its index, and descriptors that stay the arbiter's. -ENOENT:
 * no such tenant; -ENOSPC. */
int gp_arbiter_join(struct gp_arbiter *a, const char *tenant, int *page_fd, int *bell_fd);
/* A seat that another arbiter had given to a worker that lives; takes the descriptors also
 * where it fails. */
int gp_arbiter_adopt(struct gp_arbiter *a, const char *tenant, pid_t pid, int page_fd, int bell_fd);
/* The worker of a seat has been started. -ENOENT; -ESRCH: it has ended (and has no seat). */
int gp_arbiter_started(struct gp_arbiter *a, int member, pid_t pid);
void gp_arbiter_leave(struct gp_arbiter *a, int member);
/* The seat of a process, or -ENOENT. */
int gp_arbiter_find(struct gp_arbiter *a, pid_t pid);
/* The descriptors of a seat; -ENOENT. */
int gp_arbiter_seat(struct gp_arbiter *a, int member, int *page_fd, int *bell_fd);
/* One command, as its line says; returns the length of the answer in `out`. Descriptors that
 * come with it are taken; `send` gets those that go with the answer, -1: none. */
int gp_arbiter_command(struct gp_arbiter *a, const char *line, int fds[2], char *out, int size,
                       int send[2]);

#endif
