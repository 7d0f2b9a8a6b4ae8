"""AdmissionReview v1: what the API server asks a webhook, and how it is answered.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpupool_common import json_text
from gpupool_common.protocol import one_line

#: An object is 1.5 MiB at most; an update brings two.
MOST_BYTES = 8 << 20

REVIEW_VERSION = "admission.k8s.io/v1"


class ReviewError(ValueError):
    """What came is no AdmissionReview."""


class _Part(BaseModel):
    """Fields that we read; there are others."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Resource(_Part):
    group: str = ""
    version: str = ""
    resource: str


class User(_Part):
    username: str = ""
    groups: tuple[str, ...] = ()


class Request(_Part):
    uid: Annotated[str, Field(min_length=1, max_length=128)]
    resource: Resource
    subresource: str = Field("", alias="subResource")
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    namespace: str = ""
    name: str = ""
    user: User = Field(User(), alias="userInfo")
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = Field(None, alias="oldObject")
    dry_run: bool | None = Field(False, alias="dryRun")


class Review(_Part):
    api_version: Literal["admission.k8s.io/v1"] = Field(alias="apiVersion")
    kind: Literal["AdmissionReview"]
    request: Request


def read(content: bytes) -> Request:
    """The request of a review; ReviewError says what is wrong with it."""
    try:
        return Review.model_validate(json_text.parse(content)).request
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the review"
        raise ReviewError(f"{where}: {one_line(first['msg'])}") from None
    except ValueError as error:
        raise ReviewError(f"it is no JSON: {one_line(str(error))}") from None


@dataclass(frozen=True)
class Verdict:
    """What the API server is told."""

    #: Why not; None: it is allowed.
    refused: str | None = None
    code: int = 403
    patch: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


def answer(uid: str, verdict: Verdict) -> dict[str, Any]:
    """The review that answers the one with this id."""
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.refused is None}
    if verdict.refused is not None:
        reason = "Forbidden" if verdict.code == 403 else "Invalid"
        response["status"] = {
            "status": "Failure",
            "message": f"gpupool: {verdict.refused}",
            "reason": reason,
            "code": verdict.code,
        }
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(list(verdict.patch)).encode()).decode()
    if verdict.warnings:
        # Longer ones may be cut by the API server.
        response["warnings"] = [warning[:256] for warning in verdict.warnings]
    return {"apiVersion": REVIEW_VERSION, "kind": "AdmissionReview", "response": response}
