/* Every public function of the board once, for boards that may be damaged. */
#ifndef BOARD_CALLS_H
#define BOARD_CALLS_H

#include "board.h"

/* A board with two tenants and three members, of which one waits and one works. */
int board_furnish(struct gp_board *b, int members[3]);
/* Call everything; what is answered means nothing. */
void board_call_all(struct gp_board *b, const int members[3]);

#endif
