"""The settings of the webhook and the controller, which read one file: TOML, then flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gpupool.pool_address import check_plain, check_url
from gpupool_common.ask import split_tcp
from gpupool_common.errors import ConfigError
from gpupool_common.quantities import MemorySetting, ShareSetting
from gpupool_common.settings import Given
from gpupool_common.sizes import WHOLE_GPU
from gpupool_kubernetes import tenants
from gpupool_kubernetes.resources import FAMILIES, Defaults

Family = Literal["gpupool", "nvidia", "aliyun", "tencent"]

#: Settings that only a file can have.
TABLES = ("tenants",)


class Settings(BaseModel):
    """What an operator may choose. The description of a field says what is allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field("0.0.0.0:8443", description="ADDRESS:PORT, for https")
    tls_certificate: Path = Field(
        Path("/etc/gpupool/tls/tls.crt"),
        description="the path of a PEM file; it is read again when it changes",
    )
    tls_key: Path = Field(
        Path("/etc/gpupool/tls/tls.key"), description="the path of a PEM file, read again as well"
    )
    pool: str = Field(
        "https://gpupool-manager:7780", description="the manager: http[s]://HOST[:7780]"
    )
    pool_token_file: Path = Field(
        Path("/etc/gpupool/pool/token"),
        description="the path of a file with an admin's token; it is read again when it changes",
    )
    pool_ca: Path | None = Field(
        None, description="the path of a PEM file: who signs the manager's certificate"
    )
    pool_fingerprint_file: Path | None = Field(
        None, description="the path of a file with the fingerprint of the manager's certificate"
    )
    api_server: str | None = Field(
        None, description="the cluster's API server, http[s]://HOST:PORT; none: that of this pod"
    )
    api_token_file: Path | None = Field(
        None, description="with 'api_server': the path of a file with a token"
    )
    api_ca: Path | None = Field(None, description="with 'api_server': the path of a PEM file")
    tenants: dict[str, str] = Field(
        default_factory=dict,
        description='a table: a namespace, or "*" for all others, and the tenant whose quota its'
        ' pods use, or "*" for the one of its own name',
    )
    resource_names: tuple[Family, ...] = Field(
        ("gpupool",), description=f"a list of some of: {', '.join(FAMILIES)}"
    )
    default_compute: ShareSetting = Field(
        WHOLE_GPU,
        description="part of a GPU, for who asks for a part of its memory and no compute: 1000 is"
        ' all of it in thousandths; or "50%", or 0.5',
    )
    card_memory: MemorySetting | None = Field(
        None, description='a size, e.g. "80GiB": of which nvidia.com/gpumem-percentage is a part'
    )
    image: str = Field(
        "gpupool-kubernetes",
        min_length=1,
        max_length=512,
        description="the image with the client libraries that pods get",
    )
    image_volumes: bool = Field(
        False,
        description="true or false: mount the image with the libraries instead of copying them"
        " (the cluster needs its feature ImageVolume)",
    )
    image_libraries: str = Field(
        "/opt/gpupool/lib",
        pattern=r"^(/[A-Za-z0-9._-]+)+$",
        description="with 'image_volumes': the folder of the libraries in the image",
    )
    libraries: Literal["path", "preload"] = Field(
        "path",
        description="path (LD_LIBRARY_PATH) or preload (/etc/ld.so.preload, also for programs that"
        " have their own path)",
    )
    credential_url: str = Field(
        "https://gpupool-controller:8443",
        description="where pods fetch the token of their lease: https://HOST:PORT of the"
        " controller's service",
    )
    credential_ca: Path | None = Field(
        None, description="the path of a PEM file: who signs the controller's certificate"
    )
    controller_account: str = Field(
        "system:serviceaccount:gpupool-system:gpupool-controller",
        description="as whom the controller comes to the API server: only it may change what is"
        " ours of a pod",
    )
    namespace: str | None = Field(
        None, description="where controllers elect their leader; none: that of this pod"
    )
    lease_seconds: int = Field(
        900,
        ge=60,
        le=86400,
        description="how long a pod's lease outlasts the controller, 60..86400",
    )
    queue_seconds: int = Field(
        86400, ge=1, le=604800, description="how long a request waits before it is made anew"
    )
    delete_lost: bool = Field(
        True,
        description="true or false: delete a pod whose lease is lost, so that its owner may"
        " make another",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    log_json: bool = Field(False, description="true or false: one JSON object an event")

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        split_tcp(f"tcp://{value}")
        return value

    @field_validator("pool")
    @classmethod
    def _check_pool(cls, value: str) -> str:
        try:
            return check_url("pool", value)
        except ConfigError:
            raise ValueError("no such address") from None

    @field_validator("tenants")
    @classmethod
    def _check_tenants(cls, value: dict[str, str]) -> dict[str, str]:
        tenants.check(value)
        return value

    @property
    def address(self) -> tuple[str, int]:
        return split_tcp(f"tcp://{self.listen}")

    @property
    def defaults(self) -> Defaults:
        return Defaults(self.default_compute, self.card_memory)


def load_settings(
    config: Path | None, flags: Mapping[str, object], env: Mapping[str, str] | None = None
) -> Settings:
    """Gather and check everything; ConfigError names source, key and what is allowed."""
    given = Given.gather(config, flags, {}, env)
    names = given.values.get("resource_names")
    if isinstance(names, str):  # a flag
        given.values["resource_names"] = [name.strip() for name in names.split(",")]
    try:
        settings = Settings.model_validate(given.values)
    except ValidationError as error:
        raise given.explain(error, Settings, secret=()) from None
    check_plain("key 'pool'", settings.pool)
    return settings
