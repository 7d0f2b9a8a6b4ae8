"""Which pool is meant, and with what we come to it: options, variables, files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpupool_common import fingerprint
from gpupool_common.errors import ConfigError
from gpupool_common.hosts import is_loopback
from gpupool_common.protocol import one_line

POOL = "GPUPOOL_POOL"
TOKEN = "GPUPOOL_POOL_TOKEN"
SERVERS_TOKEN = "GPUPOOL_TOKEN"
CA = "GPUPOOL_POOL_CA"
FINGERPRINT = "GPUPOOL_POOL_FINGERPRINT"
PLAIN = "GPUPOOL_INSECURE_PLAIN"

PORT = 7780


@dataclass(frozen=True)
class Where:
    """A pool, and with what we come to it."""

    url: str
    token: str = field(repr=False)
    ca: Path | None = None
    #: Of its certificate: whoever has another one is not the pool.
    fingerprint: str | None = None


def choose(
    url: str | None, token_file: Path | None, ca: Path | None, token: str | None = None
) -> Where:
    """The pool that options and variables name; ConfigError says what is missing."""
    chosen = url or os.environ.get(POOL, "")
    if not chosen:
        raise ConfigError(f"name the pool with --pool or the variable {POOL}")
    source = "--pool" if url else POOL
    if ca is None and os.environ.get(CA):
        ca = Path(os.environ[CA])
    checked = check_url(source, chosen)
    check_plain(source, checked)
    return Where(checked, token or read_token(token_file), ca, _read_fingerprint())


def check_plain(source: str, url: str) -> None:
    """ConfigError where a token would travel in clear, and nobody said that it may."""
    parts = urlsplit(url)
    if parts.scheme == "https" or is_loopback(parts.hostname or "") or os.environ.get(PLAIN) == "1":
        return
    raise ConfigError(
        f"{source}: the token would travel in clear text to {url}; write https:// (a manager beyond"
        f" its own machine speaks it), or set {PLAIN}=1"
    )


def _read_fingerprint() -> str | None:
    """Of the variable, or of the file whose absolute path it holds."""
    text = os.environ.get(FINGERPRINT, "")
    if not text:
        return None
    try:
        if os.path.isabs(text):
            text = Path(text).read_text(encoding="ascii")[:4096]
        return fingerprint.parse(text)
    except OSError as error:
        raise ConfigError(f"{FINGERPRINT}: {text} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(
            f"{FINGERPRINT}: holds no fingerprint (sha256: and 64 hexadecimal digits); it is what"
            " this prints: gpupool-manager certificate fingerprint"
        ) from None


def check_url(source: str, text: str) -> str:
    """``http[s]://HOST:PORT`` as written, or with the default port."""
    wrong = ConfigError(f"{source}: {one_line(text)!r} is not http://HOST[:PORT] or https://…")
    try:
        parts = urlsplit(text.strip())
        port = parts.port or PORT
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise wrong
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def read_token(path: Path | None) -> str:
    """The token of a file, else of the environment."""
    if path is None:
        source, text = TOKEN, os.environ.get(TOKEN, "")
        if not text:
            other = f" ({SERVERS_TOKEN} is for a server)" if os.environ.get(SERVERS_TOKEN) else ""
            raise ConfigError(
                f"a pool wants a token: set {TOKEN}{other}, or name a file: --token-file"
            )
    else:
        source = f"--token-file {path}"
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(8192)
        except OSError as error:
            raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{source}: is not text") from None
    token = text.strip()
    if not token or not all("!" <= char <= "~" for char in token):
        raise ConfigError(f"{source}: holds no token (one word of printable ASCII)")
    return token
