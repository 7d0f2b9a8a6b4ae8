"""Print the include folder of CUDA 13.0's cuda.h as the PyPI runtime wheel ships it.

The build calls this at configure time; a missing wheel is a one-line error
that names what to install.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

WANTED = "#define CUDA_VERSION 13000"


def find() -> Path | None:
    """The first folder with CUDA 13.0's cuda.h among the installed nvidia wheels."""
    spec = importlib.util.find_spec("nvidia")
    for base in spec.submodule_search_locations or [] if spec else []:
        for folder in (Path(base) / "cu13" / "include", Path(base) / "cuda_runtime" / "include"):
            header = folder / "cuda.h"
            if header.is_file() and WANTED in header.read_text(encoding="utf-8"):
                return folder
    return None


if __name__ == "__main__":
    found = find()
    if found is None:
        sys.exit(
            "gpgen: no cuda.h of CUDA 13.0 in this Python's packages;"
            " run: pip install 'nvidia-cuda-runtime==13.0.*'"
        )
    print(found)
