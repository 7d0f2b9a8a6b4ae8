"""Files of users: with a mark at their beginning, and without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupool.options import need_token
from gpupool.pool_address import read_token
from gpupool_common.errors import ConfigError
from gpupool_common.secret_file import read_secret
from gpupool_common.toml_file import read_toml


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """What Windows' editors write."""
    path = tmp_path / "token"
    path.write_text("hunter2\r\n", encoding="utf-8-sig")
    path.chmod(0o600)
    return path


def test_a_mark_is_no_part_of_a_token(marked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUPOOL_TOKEN", raising=False)
    monkeypatch.setenv("GPUPOOL_TOKEN_FILE", str(marked))
    assert need_token(None, "tcp://host:1") == "hunter2"
    assert read_token(marked) == "hunter2"
    assert read_secret(marked, "token file").strip() == "hunter2"


def test_a_file_without_end_is_refused() -> None:
    """It was read until the machine's memory was used up."""
    with pytest.raises(ConfigError, match="/dev/zero: cannot be read: File too large"):
        read_toml(Path("/dev/zero"))
    with pytest.raises(ConfigError, match="/dev/zero: cannot be read: File too large"):
        read_token(Path("/dev/zero"))
