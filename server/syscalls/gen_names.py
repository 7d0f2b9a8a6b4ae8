"""Write the names of this architecture's system calls as C, read from the system's header.

python gen_names.py OUT COMPILER...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HEADER = "#include <sys/syscall.h>\n"
BITS = 0x40000000  # x32's numbers have this bit; they are no calls of ours


def names(macros: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", macros, re.MULTILINE):
        if int(number) < BITS:
            found.setdefault(int(number), name)
    return found


def main() -> int:
    command = [*sys.argv[2:], "-E", "-dM", "-"]
    done = subprocess.run(command, input=HEADER, capture_output=True, text=True, check=True)
    found = names(done.stdout)
    if found.get(0) is None and len(found) < 200:
        print(f"gen_names.py: no system calls in the header: {command}", file=sys.stderr)
        return 1
    lines = ["/* Written by gen_names.py. */", '#include "counts.h"', ""]
    lines.append("static const char *const names[] = {")
    lines += [f'    [{number}] = "{name}",' for number, name in sorted(found.items())]
    lines += ["};", "", "const char *gp_syscall_name(uint32_t nr)", "{"]
    lines += ["    return nr < sizeof names / sizeof names[0] ? names[nr] : NULL;", "}", ""]
    Path(sys.argv[1]).write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
