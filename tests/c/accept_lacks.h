/* accept4 of a process that has no descriptor left. */
#ifndef GP_ACCEPT_LACKS_H
#define GP_ACCEPT_LACKS_H

#include <stdbool.h>

/* From now on, until it is told otherwise; calls are counted from here. */
void accept_lacks(bool lacks);
int accept_calls(void);

#endif
