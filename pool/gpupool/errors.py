"""Every error of the Python side. Each message is one line: what, where, what to do."""

from __future__ import annotations


class GpupoolError(Exception):
    """Something that a user or an operator can act upon."""


class ConfigError(GpupoolError):
    """A setting that is wrong; the message names its source and its key."""


class InstallError(GpupoolError):
    """A file of the installation (library, worker, driver) is missing or is not ours to use."""


class ProtocolError(GpupoolError):
    """A message of the front door that is not what the protocol allows."""


class UnreachableError(GpupoolError):
    """No gpupool server answers at an address."""


class RefusedError(GpupoolError):
    """A server answered no; ``code`` is one of :data:`gpupool.protocol.REFUSAL_CODES`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
