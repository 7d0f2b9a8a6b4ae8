"""The certificate that a manager or a server makes itself where it is given none.

Nobody has signed it, so clients know it by its fingerprint, or by the file as their CA.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpupool_common import fingerprint
from gpupool_common.errors import GpupoolError
from gpupool_common.secret_file import replace_secret

#: In the state folder: the certificate, its key (mode 0600), and the fingerprint, for scripts.
CERTIFICATE, KEY, FINGERPRINT = "tls.crt", "tls.key", "tls.fingerprint"

#: Nothing but a new fingerprint at every client would come of a shorter time.
YEARS = 10


@dataclass(frozen=True)
class Certificate:
    """Two PEM files and what clients know the first by."""

    path: Path
    key: Path
    fingerprint: str


def own_certificate(folder: Path, host: str, whose: str) -> Certificate:
    """The certificate of a state folder, made there at the first start; GpupoolError.

    ``whose``: the command that it is made for.
    """
    path, key = folder / CERTIFICATE, folder / KEY
    if path.exists() != key.exists():
        raise GpupoolError(
            f"{folder}: has only one of {CERTIFICATE} and {KEY}; restore the other, or remove this"
            " one for a new pair, whose fingerprint clients must be told"
        )
    if not path.exists():
        _make(path, key, host, whose)
    found = read(path, key)
    replace_secret(folder / FINGERPRINT, found.fingerprint)
    return found


def read(path: Path, key: Path) -> Certificate:
    """A certificate that is there, whoever made it; GpupoolError if it cannot be read."""
    try:
        pem = path.read_text(encoding="ascii")
        first = pem[pem.index("-----BEGIN CERTIFICATE") :]
        end = first.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(first[:end])
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificate"
        raise GpupoolError(f"the certificate {path} cannot be used: {reason}") from None
    return Certificate(path, key, fingerprint.of_certificate(der))


def pair(whose: str, names: Sequence[x509.GeneralName]) -> tuple[bytes, bytes]:
    """A new certificate and its key, in PEM; nobody signs it but itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return _certify(private, whose, names).public_bytes(serialization.Encoding.PEM), text


def _make(path: Path, key: Path, host: str, whose: str) -> None:
    made, text = pair(whose, _names(host))
    try:
        replace_secret(key, text.decode().rstrip("\n"))
        draft = path.with_suffix(".new")
        draft.write_bytes(made)
        os.replace(draft, path)
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}") from None


def _certify(
    private: ec.EllipticCurvePrivateKey, whose: str, names: Sequence[x509.GeneralName]
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, whose)])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=False)
        .sign(private, hashes.SHA256())
    )


def _names(host: str) -> list[x509.GeneralName]:
    """As what clients may reach us; a proxy's or an alias' name is an operator's to certify."""
    names = {"localhost", socket.gethostname(), socket.getfqdn()}
    addresses = {"127.0.0.1", "::1"}
    if host not in ("*", "0.0.0.0", "::"):
        try:
            addresses.add(str(ipaddress.ip_address(host.partition("%")[0])))
        except ValueError:
            names.add(host)
    found: list[x509.GeneralName] = [
        x509.DNSName(each) for each in sorted(names) if each and each.isascii()
    ]
    return found + [x509.IPAddress(ipaddress.ip_address(each)) for each in sorted(addresses)]
