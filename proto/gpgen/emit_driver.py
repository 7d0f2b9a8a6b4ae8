"""gpw_driver.[ch]: the table of the driver's functions that a worker asks."""

from __future__ import annotations

from .emit_wire import NOTE
from .spec import Function, Spec


def driver_functions(spec: Spec) -> list[Function]:
    """Every function of cuda.h that a worker may ask of its driver."""
    return [f for f in spec.cuda if f.header == "cuda.h"]


def driver_header(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GPW_DRIVER_H\n#define GPW_DRIVER_H\n\n#include <cuda.h>\n"]
    lines.append("/* The driver that the worker opened; a name it lacks answers NOT_SUPPORTED. */")
    lines.append("struct gpw_driver {\n    void *library;")
    lines += [f"    __typeof__(&{f.name}) {f.name};" for f in driver_functions(spec)]
    lines.append("};\n\n/* 0, or -1 with one line in `error`. */")
    lines.append("int gpw_driver_open(struct gpw_driver *driver, const char *path,")
    lines.append("                    char *error, unsigned long error_size);\n\n#endif\n")
    return "\n".join(lines)


def driver_source(spec: Spec) -> str:
    lines = [NOTE, '#include "gpw_driver.h"\n\n#include <dlfcn.h>\n#include <stdio.h>\n']
    for f in driver_functions(spec):
        lines.append(f"static CUresult no_{f.name}({f.prototype})\n{{")
        lines += [f"    (void){p.name};" for p in f.params]
        lines.append("    return CUDA_ERROR_NOT_SUPPORTED;\n}")
    lines.append("""
int gpw_driver_open(struct gpw_driver *driver, const char *path, char *error,
                    unsigned long error_size)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(error, error_size, "cannot open the driver %s: %s", path, dlerror());
        return -1;
    }
    driver->library = library;""")
    for f in driver_functions(spec):
        lines.append(f'    driver->{f.name} = (__typeof__(&{f.name}))dlsym(library, "{f.name}");')
        lines.append(f"    if (!driver->{f.name})\n        driver->{f.name} = no_{f.name};")
    lines.append("    return 0;\n}\n")
    return "\n".join(lines)
