"""Fingerprints of certificates: how a client knows a manager that made its certificate itself."""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from typing import Any

_TEXT = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.IGNORECASE)


def of_certificate(der: bytes) -> str:
    """As it is shown: sha256: and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def parse(text: str) -> str:
    """The same from what somebody wrote, colons between digits or not; ValueError if it is none."""
    plain = text.strip()
    head = plain[:7] if plain.lower().startswith("sha256:") else ""
    match = _TEXT.fullmatch(head + plain[len(head) :].replace(":", ""))
    if match is None:
        raise ValueError("no fingerprint")
    return f"sha256:{match[1].lower()}"


def pinned_context(fingerprint: str) -> ssl.SSLContext:
    """TLS to whom has exactly this certificate; who signed it and whom it names do not matter.

    Anybody else fails in the handshake (SSLCertVerificationError), before anything is said.
    """

    class Pinned(ssl.SSLSocket):
        def do_handshake(self, *args: Any, **more: Any) -> None:
            super().do_handshake(*args, **more)
            found = of_certificate(self.getpeercert(binary_form=True) or b"")
            if not hmac.compare_digest(found, fingerprint):
                raise ssl.SSLCertVerificationError(f"CERTIFICATE has the fingerprint {found}")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.sslsocket_class = Pinned
    return context
