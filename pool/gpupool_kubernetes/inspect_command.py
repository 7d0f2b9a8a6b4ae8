"""``kubectl gpupool inspect``: a pool's GPUs and whose they are, from the objects of the cluster.

It is found by kubectl under the name ``kubectl-gpupool``, and asks kubectl in turn: so it has the
context, the credentials and the rights that its user has there.
"""

from __future__ import annotations

import json
import subprocess
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gpupool.options import JsonOption
from gpupool.pool_client import Params
from gpupool.pool_inspect import inspect_pool
from gpupool_common.errors import GpupoolError
from gpupool_common.protocol import one_line
from gpupool_kubernetes import names
from gpupool_kubernetes.command import ended
from gpupool_kubernetes.crds import LeaseStatus, NodeStatus

ANSWER_SECONDS = 60


class Mirrored:
    """The lists that ``gpupool inspect`` asks a manager for, of the cluster's objects."""

    def __init__(self, kubectl: list[str]) -> None:
        self._kubectl = kubectl
        self._nodes = [
            NodeStatus.model_validate(each.get("status") or {})
            for each in self._list(names.NODE_MIRROR[1])
        ]

    def all(self, path: str, params: Params | None = None) -> list[Any]:
        if path == "/nodes":
            return [node.model_dump(exclude={"gpus"}) for node in self._nodes]
        if path == "/gpus":
            return [
                {**gpu.model_dump(), "node": node.name} for node in self._nodes for gpu in node.gpus
            ]
        found = []
        for each in self._list(names.LEASE_MIRROR[1]):
            lease = LeaseStatus.model_validate(each.get("status") or {})
            name = lease.pod or each["metadata"]["name"]
            found.append({**lease.model_dump(), "id": name})
        return found

    def _list(self, plural: str) -> list[dict[str, Any]]:
        words = [*self._kubectl, "get", f"{plural}.{names.GROUP}", "--output", "json"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
            )
        except OSError as error:
            raise GpupoolError(f"kubectl cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise GpupoolError(f"kubectl was not done after {ANSWER_SECONDS} s") from None
        if done.returncode:
            raise GpupoolError(f"kubectl get {plural}.{names.GROUP}: {one_line(done.stderr)[:400]}")
        try:
            items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
        except (ValueError, KeyError, TypeError):
            raise GpupoolError(f"kubectl get {plural}.{names.GROUP} gave no list") from None
        return items


def inspect(
    details: Annotated[bool, typer.Option("-d", "--details", help="a line per lease")] = False,
    context: Annotated[str | None, typer.Option(help="a context of the kubeconfig")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how much of each GPU's memory is allocated; -d: to whom."""
    with ended():
        kubectl = ["kubectl", *(["--context", context] if context else [])]
        try:
            inspect_pool(Mirrored(kubectl), details, as_json)
        except ValidationError as error:
            raise GpupoolError(f"an object is none of ours: {one_line(str(error))}") from None


def make_app() -> typer.Typer:
    """The command kubectl-gpupool."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        help="GPUs of a pool, as the cluster shows them.",
    )
    app.callback()(lambda: None)
    app.command("inspect")(inspect)
    return app


def main() -> None:
    """The entry point of kubectl's plug-in."""
    make_app()(prog_name="kubectl gpupool")


def add_to(app: typer.Typer) -> None:
    app.command("inspect")(inspect)
