/*
 * LeakSanitizer, in builds that have it, looks through a process from one that it starts for that.
 * Behind the starter's change of namespaces that would be the first of the lease's, which cannot
 * see who started it: the starter would wait for it for ever. What it has taken ends with it.
 */
int __lsan_is_turned_off(void);

int __lsan_is_turned_off(void)
{
    return 1;
}
