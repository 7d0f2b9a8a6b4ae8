/*
 * A file that processes with one memory have in common, whose locks say who is charged and who has
 * the memory (shareable.h). The locks are a process's: they go when it closes any descriptor of the
 * file, so it has one alone, and when it dies.
 */
#ifndef GPW_TICKET_H
#define GPW_TICKET_H

#include <stdbool.h>

/* Of which this process is owner and user; -1 without room for it. */
int gpw_ticket_new(void);
/* Be a user. False: it is no such file. */
bool gpw_ticket_use(int ticket);
/* Be one no longer. */
void gpw_ticket_leave(int ticket);
/* Whether another process is a user. */
bool gpw_ticket_used(int ticket);
/* Be the owner, if there is none; false: there is one. */
bool gpw_ticket_own(int ticket);
void gpw_ticket_disown(int ticket);

#endif
