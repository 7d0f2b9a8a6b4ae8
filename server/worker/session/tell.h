/*
 * Words for the server that started this worker, on what was its stdout: `joined` when the
 * client has greeted, `leaving` when the session is over.
 */
#ifndef GPW_TELL_H
#define GPW_TELL_H

/* Before stdout becomes the kernels'. */
int gpw_tell_open(void);
void gpw_tell(const char *word);

#endif
