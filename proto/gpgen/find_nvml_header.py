"""Print the include folder of nvml.h, API 13, as the PyPI wheel nvidia-nvml-dev ships it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

WANTED = re.compile(r"#define NVML_API_VERSION\s+13\b")
#: Of 13.0: a later header has functions that the spec does not name.
LATER = "nvmlDeviceGetRemappedRows_v2"


def find() -> Path | None:
    """The first folder with it among the installed nvidia wheels."""
    spec = importlib.util.find_spec("nvidia")
    for base in spec.submodule_search_locations or [] if spec else []:
        for folder in (Path(base) / "cu13" / "include", Path(base) / "nvml_dev" / "include"):
            header = folder / "nvml.h"
            if header.is_file():
                text = header.read_text(encoding="utf-8", errors="replace")
                if WANTED.search(text) and LATER not in text:
                    return folder
    return None


if __name__ == "__main__":
    found = find()
    if found is None:
        sys.exit(
            "gpgen: no nvml.h of CUDA 13.0 in this Python's packages;"
            " run: pip install 'nvidia-nvml-dev==13.0.*'"
        )
    print(found)
