"""What an operator gives a server so that it joins a pool, and trusts its manager."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from gpupool_common.errors import ConfigError
from gpupool_server.config import join_token_given
from gpupool_server.rundir import read_token

_TOKEN = re.compile(r"(gpn_[A-Za-z0-9_-]{20,100})\.([0-9a-f]{64})(?:\.([0-9a-f]{64}))?")


@dataclass(frozen=True)
class JoinToken:
    """What an operator was given for this node."""

    secret: str
    #: The manager's public key when the token was made, in hexadecimal.
    key: str
    #: The one that it was about to have then; empty: none.
    next_key: str = ""

    @classmethod
    def read(cls, given: SecretStr) -> JoinToken:
        """From the setting, or the file that it names; ConfigError."""
        text = given.get_secret_value()
        source = "GPUPOOL_JOIN_TOKEN or key 'join_token'"
        if not join_token_given(given):
            source = f"the file {text}"
            text = read_token(Path(text))
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"{source}: holds no token for servers; they look like gpn_TEXT.KEY, and the"
                " manager gives them: gpupool node join --name NAME"
            )
        return cls(match[1], match[2], match[3] or "")
