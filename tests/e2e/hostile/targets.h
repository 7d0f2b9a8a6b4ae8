/* Where to aim: what stands here aims at nothing, so that the files compile by themselves. The
 * test puts its own before it (-include). */
#ifndef TARGETS_H
#define TARGETS_H
#ifndef TARGET_VERSION
#define TARGET_VERSION "gpupool-worker"
#define TARGET_SERVER 999999
#define TARGET_NEIGHBOUR 999999
#define TARGET_NEIGHBOUR_SESSION "nobody"
#define TARGET_RUN "/nowhere"
#define TARGET_LOG "/nowhere/log"
#define TARGET_DRIVER "/nowhere/driver"
#define TARGET_SECRETS "/nowhere/secret"
#define TARGET_TOKEN "no-token"
#define TARGET_IMAGES "/nowhere"
#define TARGET_OTHERS_IMAGES "/nowhere"
#define TARGET_IMAGE "none"
#define TARGET_SHARED "nothing"
#define TARGET_PORT 1
#define TARGET_OTHER_PORT 1
#define TARGET_ADMIN "/nowhere/admin"
#define TARGET_ABSTRACT "nobody"
#endif
#endif
