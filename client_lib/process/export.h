/* Marks the functions that applications see; everything else is hidden. */
#ifndef GPC_EXPORT_H
#define GPC_EXPORT_H

#include "gpc_exports.h" /* names that cuda.h lacks */
#include "gpc_bodies.h"  /* what is written under an exported name is its body */

#define GPC_EXPORT __attribute__((visibility("default")))

#endif
