"""Every error of the Python side. Each message is one line: what, where, what to do."""

from __future__ import annotations

#: What a command exits with (docs/pool.md); the last two as sysexits.h has them.
FAILED = 1
WRONG_COMMAND = 2
TRY_LATER = 75
NOT_ALLOWED = 77


class GpupoolError(Exception):
    """Something that a user or an operator can act upon."""

    exit_code = FAILED


class ConfigError(GpupoolError):
    """A setting that is wrong; the message names its source and its key."""

    exit_code = WRONG_COMMAND


class InstallError(GpupoolError):
    """A file of the installation (library, worker, driver) is missing or is not ours to use."""


class ProtocolError(GpupoolError):
    """A message of the front end that is not what the protocol allows."""


class UnreachableError(GpupoolError):
    """No gpupool server answers at an address, and none will before somebody changes it."""


class ServerAwayError(UnreachableError):
    """No gpupool server answers at an address now; one may soon."""

    exit_code = TRY_LATER


class ServerClosedError(UnreachableError):
    """This user may not speak to the server at an address."""

    exit_code = NOT_ALLOWED


#: What a program that is refused may do about it, where that is not to change something.
_REFUSED_EXITS = {
    "bad-token": NOT_ALLOWED,
    "over-quota": NOT_ALLOWED,
    "full": TRY_LATER,
    "busy": TRY_LATER,
    "draining": TRY_LATER,
    "no-worker": TRY_LATER,
}


class RefusedError(GpupoolError):
    """A server answered no; ``code`` is one of :data:`gpupool_common.protocol.REFUSAL_CODES`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = _REFUSED_EXITS.get(code, FAILED)


class PoolAwayError(GpupoolError):
    """A pool's manager gave no answer; ``unsure``: it may have heard and done it all the same."""

    exit_code = TRY_LATER

    def __init__(self, message: str, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class PoolAddressError(GpupoolError):
    """What is at a pool's address is not that pool, or not to be trusted; waiting does not help."""


class PoolRefusedError(GpupoolError):
    """A pool's manager answered no; ``code`` is the last word of the problem's type."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        if status in (401, 403):
            self.exit_code = NOT_ALLOWED
        elif status == 503 or code == "full":
            self.exit_code = TRY_LATER
        elif status == 422:
            self.exit_code = WRONG_COMMAND
