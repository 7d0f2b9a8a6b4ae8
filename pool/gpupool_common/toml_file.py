"""Settings from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from gpupool_common.errors import ConfigError
from gpupool_common.protocol import one_line
from gpupool_common.text_file import read_text


def read_toml(path: Path) -> dict[str, Any]:
    """All of a file; ConfigError names it and says what is wrong with it."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {one_line(str(error))}") from None
