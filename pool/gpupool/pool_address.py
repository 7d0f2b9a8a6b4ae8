"""Which pool is meant, and with what we come to it: options, variables, files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpupool import contexts
from gpupool_common import fingerprint
from gpupool_common.errors import ConfigError
from gpupool_common.hosts import is_loopback
from gpupool_common.protocol import one_line
from gpupool_common.text_file import read_text

POOL = "GPUPOOL_POOL"
TOKEN = "GPUPOOL_POOL_TOKEN"
SERVERS_TOKEN = "GPUPOOL_TOKEN"
CA = "GPUPOOL_POOL_CA"
FINGERPRINT = "GPUPOOL_POOL_FINGERPRINT"
PLAIN = "GPUPOOL_INSECURE_PLAIN"

PORT = 7780

#: Of one pool: one that leads, and who stands by.
MOST_MANAGERS = 8


@dataclass(frozen=True)
class Where:
    """A pool, and with what we come to it."""

    #: Of its managers, with commas between.
    url: str
    token: str = field(repr=False)
    ca: Path | None = None
    #: Of its certificate: whoever has another one is not the pool.
    fingerprint: str | None = None


def choose(
    url: str | None, token_file: Path | None, ca: Path | None, token: str | None = None
) -> Where:
    """The pool that options and variables name; ConfigError says what is missing."""
    source, chosen = ("--pool", url) if url else (POOL, os.environ.get(POOL, ""))
    saved = contexts.of_pool()
    if not chosen and saved is not None:
        source, chosen = "the context", saved.pool
    if not chosen:
        raise ConfigError(f"name the pool with --pool, the variable {POOL} or gpupool login")
    checked = check_url(source, chosen)
    check_plain(source, checked)
    if saved is None or check_url("the context", saved.pool) != checked:
        saved = contexts.Context()  # what it has is for its own pool
    ca = ca or _path(os.environ.get(CA) or saved.ca)
    found = token or read_token(token_file, saved.token)
    return Where(checked, found, ca, _read_fingerprint(saved.fingerprint))


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def check_plain(source: str, url: str) -> None:
    """ConfigError where a token would travel in clear, and nobody said that it may."""
    if os.environ.get(PLAIN) == "1":
        return
    for each in url.split(","):
        parts = urlsplit(each)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ConfigError(
                f"{source}: the token would travel in clear text to {each}; write https:// (a"
                f" manager beyond its own machine speaks it), or set {PLAIN}=1"
            )


def _read_fingerprint(saved: str) -> str | None:
    """Of the variable, or of the file whose absolute path it holds; else the context's."""
    text = os.environ.get(FINGERPRINT, "") or saved
    if not text:
        return None
    try:
        if os.path.isabs(text):
            text = read_text(Path(text))
        return fingerprint.parse(text)
    except OSError as error:
        raise ConfigError(f"{FINGERPRINT}: {text} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(
            f"{FINGERPRINT}: holds no fingerprint (sha256: and 64 hexadecimal digits); it is what"
            " this prints: gpupool-manager certificate fingerprint"
        ) from None


def check_url(source: str, text: str) -> str:
    """``http[s]://HOST:PORT`` as written, or with the default port; of two managers both."""
    found = [_check_one(source, each) for each in text.split(",")]
    if len(found) > MOST_MANAGERS or len({urlsplit(each).scheme for each in found}) > 1:
        raise ConfigError(
            f"{source}: name at most {MOST_MANAGERS} managers of one pool, all at https:// or all"
            " at http://"
        )
    return ",".join(found)


def _check_one(source: str, text: str) -> str:
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


def read_token(path: Path | None, saved: str = "") -> str:
    """The token of a file, else of the environment, else the context's."""
    if path is None:
        source, text = TOKEN, os.environ.get(TOKEN, "") or saved
        if not text:
            other = f" ({SERVERS_TOKEN} is for a server)" if os.environ.get(SERVERS_TOKEN) else ""
            raise ConfigError(
                f"a pool wants a token: set {TOKEN}{other}, or name a file: --token-file"
            )
    else:
        source = f"--token-file {path}"
        try:
            text = read_text(path)
        except OSError as error:
            raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{source}: is not text") from None
    token = text.strip()
    if not token or not all("!" <= char <= "~" for char in token):
        raise ConfigError(f"{source}: holds no token (one word of printable ASCII)")
    return token
