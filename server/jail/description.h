/*
 * What the jail is to be, as the server says it: lines `KEY VALUE`, at most 64 KiB of them. An
 * unknown key, one that comes twice where it may not, a path that is not absolute and plain, or a
 * number that cannot be ends the start: nothing is guessed.
 *
 *   uid N, gid N             who the worker is to be; both or none
 *   root PATH                an empty folder on which the lease's and the worker's roots are made
 *   holder FD                a pidfd of the process that holds the lease's namespaces
 *   off LAYER REASON         the server wants it so; said on as the layer's reason
 *   require LAYER            without it the worker is not started
 *   library PATH             a file or folder of the host, read-only, at the same path
 *   read PATH                likewise, and nothing in it may be executed
 *   write PATH               likewise, and writable
 *   device PATH              a node below /dev
 *   tmpfs PATH BYTES         empty memory, the worker's own
 *   env NAME=VALUE           of the worker's environment, which has nothing else
 *   link NAME KIND ADDRESS   the lease's part of an interface of the host's (links.h)
 *   peer NAME ADDRESS        whom it reaches by it, at least one for each
 *   keep FD                  a descriptor that the worker gets, besides 0, 1 and 2
 *   hostname NAME            which the worker sees
 *   with-server 1            the worker ends when the server does
 *   seccomp MODE             off, log, enforce or learn (server/syscalls)
 *   seccomp-profile NAME     soft or cuda: the driver whose calls are allowed
 *   learn FD                 a file open for appending, for what is learned
 *   cgroup PATH              a control group, which the server has made
 *   limit NAME VALUE         a resource limit (limits.h)
 */
#ifndef GPJ_DESCRIPTION_H
#define GPJ_DESCRIPTION_H

#include "jail.h"
#include "limits.h"
#include "links.h"
#include "seccomp.h"

#define GPJ_TEXT_MAX 65536
#define GPJ_PLACES_MAX 512
#define GPJ_KEEP_MAX 64
#define GPJ_ENV_MAX 128

enum gpj_place_kind { GPJ_LIBRARY, GPJ_READ, GPJ_WRITE, GPJ_DEVICE, GPJ_TMPFS };

struct gpj_place {
    enum gpj_place_kind kind;
    const char *path;
    uint64_t bytes; /* of a tmpfs */
};

struct gpj_description {
    bool has_uid, has_gid;
    uid_t uid;
    gid_t gid;
    const char *root, *hostname, *cgroup;
    int holder; /* -1: none yet */
    bool with_server;
    const char *off[GPJ_LAYER_COUNT]; /* why; NULL: it is wanted */
    bool required[GPJ_LAYER_COUNT];
    struct gpj_place places[GPJ_PLACES_MAX];
    unsigned place_count;
    int keep[GPJ_KEEP_MAX];
    unsigned keep_count;
    char *env[GPJ_ENV_MAX + 1]; /* ends with NULL */
    unsigned env_count;
    enum gpj_seccomp_mode seccomp;
    enum gpj_profile profile;
    int learn; /* -1: none */
    struct gpj_limits limits;
    struct gpj_links links;
};

/* Take `text` (ends with NUL, is changed, must stay) apart. 0, or -1 with what is wrong in
 * `why`. */
int gpj_description_parse(char *text, struct gpj_description *d, char *why, size_t size);
/* Read it from a descriptor up to its end. NULL with `why`; the text lives on. */
char *gpj_description_read(int fd, char *why, size_t size);

#endif
