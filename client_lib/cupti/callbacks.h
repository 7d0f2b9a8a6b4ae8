/* The callbacks that an application has subscribed to: of calls of the driver, and of contexts. */
#ifndef GPC_CALLBACKS_H
#define GPC_CALLBACKS_H

/* Nobody is subscribed any more. */
void gpc_callbacks_end(void);

#endif
