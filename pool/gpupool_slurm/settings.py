"""The settings of prolog and epilog: a TOML file that root alone can write."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gpupool.pool_address import Where, check_url
from gpupool_common import fingerprint
from gpupool_common.secret_file import read_secret
from gpupool_common.settings import Given
from gpupool_slurm.job import JobError

#: As an account: every one that is not named. As a tenant: the one of the account's own name.
ANY = "*"

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)


class Settings(BaseModel):
    """What an operator may choose. The description of a field says what is allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pool: str = Field(description="the manager: http[s]://HOST[:7780]")
    token_file: Path = Field(description="the path of a file with an admin's token, root's alone")
    ca: Path | None = Field(None, description="the path of a PEM file: who signs its certificate")
    fingerprint: str | None = Field(None, description="of the manager's certificate: sha256:…")
    run_dir: Path = Field(
        Path("/run/gpupool-slurm"), description="the path of a folder for what jobs have"
    )
    scontrol: Path = Field(Path("/usr/bin/scontrol"), description="the path of Slurm's scontrol")
    tenants: dict[str, str] = Field(
        default_factory=lambda: {ANY: ANY},
        description='a table: an account of Slurm, or "*" for all others, and its tenant, or "*"'
        " for the one of the account's name",
    )
    wait_seconds: int = Field(
        0, ge=0, le=3600, description="how long a job waits for room in the pool, 0..3600"
    )
    ttl_seconds: int = Field(
        3600, ge=60, le=86400, description="how long a lease lasts that nobody renews, 60..86400"
    )

    @field_validator("pool")
    @classmethod
    def _check_pool(cls, value: str) -> str:
        return check_url("pool", value)

    @field_validator("fingerprint")
    @classmethod
    def _check_fingerprint(cls, value: str | None) -> str | None:
        return None if value is None else fingerprint.parse(value)

    def where(self) -> Where:
        """The pool, and the token as it is now."""
        token = read_secret(self.token_file, "token file").strip()
        return Where(self.pool, token, self.ca, self.fingerprint)

    def tenant_of(self, account: str) -> str:
        """Whose quota a job of this account uses; JobError if nobody's."""
        tenant = self.tenants.get(account, self.tenants.get(ANY))
        tenant = account if tenant == ANY else tenant
        if tenant is None or not _TENANT.fullmatch(tenant):
            raise JobError(
                f"the account '{account}' has no tenant of the pool; an operator names one in the"
                " table 'tenants'"
            )
        return tenant


def load_settings(config: Path) -> Settings:
    """The file, checked; ConfigError names the key and what is allowed."""
    given = Given.gather(config, {}, {})
    try:
        return Settings.model_validate(given.values)
    except ValidationError as error:
        raise given.explain(error, Settings, secret=()) from None
