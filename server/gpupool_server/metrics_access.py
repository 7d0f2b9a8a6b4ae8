"""Who may read a server's metrics: TLS with a certificate, and a token that opens nothing else.

Certificate and token are files that somebody may replace while the server runs; what they were is
in use until what they are can be.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path

from gpupool_common import certificate as certificates
from gpupool_common import logs
from gpupool_common.certificate import Certificate
from gpupool_common.errors import GpupoolError
from gpupool_common.secret_file import replace_secret
from gpupool_server.metrics_settings import MetricsSettings, split_listen
from gpupool_server.rundir import read_token

#: In the state directory: the token, and a folder for the certificate.
TOKEN, FOLDER = "metrics.token", "metrics"

_Seen = tuple[int, int] | None


class MetricsAccess:
    """Reads both files once, and again when they have changed."""

    def __init__(self, settings: MetricsSettings, state_dir: Path | None = None) -> None:
        """``state_dir`` is where what no setting names is made; GpupoolError."""
        self._log = logs.get("metrics")
        self._token_file = settings.metrics_token_file
        self._pair: Certificate | None = None
        self.context: ssl.SSLContext | None = None
        if settings.metrics_listen.startswith("https://"):
            assert state_dir is not None
            self._pair = _certificate(settings, state_dir)
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._load(self.context, self._pair)
            self._token_file = self._token_file or _own_token(state_dir)
        self._token = None if self._token_file is None else read_token(self._token_file)
        self._seen = self._look()

    @property
    def fingerprint(self) -> str:
        """What scrapers may know the certificate by; empty without one."""
        return "" if self._pair is None else self._pair.fingerprint

    @property
    def token_file(self) -> Path | None:
        return self._token_file

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request shows the token, if one is needed. Names are in lower case."""
        self.refresh()
        if self._token is None:
            return True
        kind, _, shown = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(shown.strip().encode("latin-1"), self._token.encode())
        return right and kind.lower() == "bearer"

    def refresh(self) -> None:
        """Take over what has changed since; new connections get the new certificate."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            if self._token_file is not None:
                self._token = read_token(self._token_file)
            if self.context is not None and self._pair is not None:
                self._load(self.context, self._pair)
        except GpupoolError as error:
            self._log.error("the old ones stay in use until this is mended", reason=str(error))
        else:
            self._log.info("the metrics' token or certificate was read again")

    def _look(self) -> list[_Seen]:
        pair = (self._pair.path, self._pair.key) if self._pair is not None else ()
        return [_stamp(path) for path in (self._token_file, *pair) if path is not None]

    @staticmethod
    def _load(context: ssl.SSLContext, pair: Certificate) -> None:
        try:
            context.load_cert_chain(pair.path, pair.key)
        except OSError as error:  # ssl.SSLError is one
            raise GpupoolError(
                f"the certificate {pair.path} or its key cannot be used: {error}"
            ) from None


def _stamp(path: Path) -> _Seen:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino)


def _certificate(settings: MetricsSettings, state_dir: Path) -> Certificate:
    if settings.metrics_certificate is not None and settings.metrics_key is not None:
        return certificates.read(settings.metrics_certificate, settings.metrics_key)
    folder = state_dir / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise GpupoolError(f"{folder}: cannot be made: {error.strerror}") from None
    host, _ = split_listen(settings.metrics_listen)
    return certificates.own_certificate(folder, host, "gpupool-server")


def _own_token(state_dir: Path) -> Path:
    path = state_dir / TOKEN
    if not path.exists():
        replace_secret(path, secrets.token_urlsafe(32))
    return path
