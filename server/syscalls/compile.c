#include "compile.h"

#include <linux/filter.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static FILE *out;
static const char *out_path;

static void fail(const char *where, const char *what, int error)
{
    fprintf(stderr, "%s: %s: %s\n", where, what, strerror(error));
    exit(1);
}

void gp_compile_open(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s OUT.c\n", argv[0]);
        exit(2);
    }
    /* what is known here, not what the machine of the build can do */
    seccomp_api_set(5);
    out_path = argv[1];
    out = fopen(out_path, "w");
    if (!out)
        fail(out_path, "cannot be written", errno);
    fprintf(out, "/* Written by the program of gen_filter.py. */\n#include \"filter.h\"\n");
}

void gp_compile_rule(scmp_filter_ctx filter, const char *where, uint32_t action, const char *call,
                     unsigned count, ...)
{
    struct scmp_arg_cmp conditions[6];
    va_list given;
    va_start(given, count);
    for (unsigned i = 0; i < count && i < 6; i++)
        conditions[i] = va_arg(given, struct scmp_arg_cmp);
    va_end(given);
    int number = seccomp_syscall_resolve_name(call);
    if (number == __NR_SCMP_ERROR)
        fail(where, call, ENOSYS);
    if (number < 0)
        return; /* not of this architecture */
    int r = seccomp_rule_add_array(filter, action, number, count, conditions);
    if (r != 0)
        fail(where, call, -r);
}

/* The filter's instructions, by way of a file: that is how libseccomp gives them. */
static struct sock_filter *instructions(scmp_filter_ctx filter, size_t *count)
{
    FILE *file = tmpfile();
    int r = file ? seccomp_export_bpf(filter, fileno(file)) : -errno;
    if (r != 0)
        fail("the filter", "cannot be compiled", -r);
    off_t size = lseek(fileno(file), 0, SEEK_END);
    struct sock_filter *code = size > 0 ? malloc((size_t)size) : NULL;
    if (!code || pread(fileno(file), code, (size_t)size, 0) != size)
        fail("the filter", "cannot be read", errno);
    fclose(file);
    *count = (size_t)size / sizeof *code;
    return code;
}

static void compile_one(const char *driver, const char *mode, uint32_t action,
                        void (*rules)(scmp_filter_ctx))
{
    scmp_filter_ctx filter = seccomp_init(action);
    if (!filter)
        fail(driver, "no filter can be made", ENOMEM);
    /* 32 bits and x32 */
    int r = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (r == 0)
        r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a tree, not a list */
    if (r != 0)
        fail(driver, "an option of libseccomp", -r);
    rules(filter);
    size_t count;
    struct sock_filter *code = instructions(filter, &count);
    seccomp_release(filter);
    fprintf(out, "\nstatic const struct sock_filter %s_%s[] = {\n", driver, mode);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "    {0x%x, %u, %u, 0x%x},\n", code[i].code, code[i].jt, code[i].jf,
                code[i].k);
    fprintf(out, "};\n");
    free(code);
}

void gp_compile(const char *driver, void (*rules)(scmp_filter_ctx))
{
    compile_one(driver, "enforce", SCMP_ACT_TRAP, rules);
    compile_one(driver, "log", SCMP_ACT_LOG, rules);
}

int gp_compile_close(void)
{
    static const char *const drivers[] = {"soft", "cuda"}, *const modes[] = {"log", "enforce"};
    fprintf(out, "\nconst struct gp_filter gp_filters[2][2] = {\n");
    for (unsigned i = 0; i < 2; i++)
        for (unsigned j = 0; j < 2; j++)
            fprintf(out, "    [%u][%u] = {%s_%s, sizeof %s_%s / sizeof(struct sock_filter)},\n", i,
                    j, drivers[i], modes[j], drivers[i], modes[j]);
    fprintf(out, "};\n");
    if (fclose(out) != 0)
        fail(out_path, "cannot be written", errno);
    return 0;
}
