"""Random requests over the whole OpenAPI document: no failure, and answers as it says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.config import load_settings
from gpupool_manager.service import TOKEN_FILE, Manager
from manager_node import join
from manager_rest import bearer
from manager_world import report

T = TypeVar("T")

pytestmark = pytest.mark.timeout(300)

#: For each operation, so that all of it stays within a minute.
EXAMPLES = 30

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class FilledManager:
    """A manager in a thread of its own: the requests of this test block."""

    def __init__(self, state: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        flags: dict[str, object] = {"state_dir": str(state), "listen": "http://127.0.0.1:0"}
        nodes = "tcp://127.0.0.1:*"
        self._manager = Manager(load_settings(None, {**flags, "nodes": nodes}, {}))
        self._run(self._manager.start())
        self.url = f"{self._manager.url}/v1"
        self.admin = (state / TOKEN_FILE).read_text().strip()
        self.headers = bearer(self.admin)
        #: Something that is there, for each kind of path.
        self.known = {"nodes": "n1", "gpus": "GPU-n1-0", "tenants": "a"}

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60)

    def fill(self) -> None:
        """A node, a tenant, its token and its lease."""
        self.node = join(self._manager.url, self.admin, "n1", report("n1"))
        token = {"scope": "tenant", "tenant": "a"}
        with httpx.Client(headers=self.headers, trust_env=False) as client:
            client.post(f"{self.url}/tenants", json={"name": "a"}).raise_for_status()
            made = client.post(f"{self.url}/tokens", json=token).raise_for_status()
            lease = {
                "tenant": "a",
                "memory_bytes": 5 * MIB,
                "share_permille": 50,
                "ttl_seconds": 3600,
            }
            got = client.post(f"{self.url}/leases", json=lease).raise_for_status()
        self.known |= {"tokens": made.json()["id"], "leases": got.json()["id"]}

    def close(self) -> None:
        self.node.close()
        self._run(self._manager.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledManager]:
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    manager = FilledManager(state)
    manager.fill()
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def api(manager: FilledManager) -> Any:
    return schemathesis.openapi.from_url(f"{manager.url}/openapi.json")


#: What watches never ends by itself; test_manager_events.py has it.
SKIPPED = {"/v1/events"}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_every_operation_answers_as_documented(
    api: Any, manager: FilledManager, mode: GenerationMode
) -> None:
    asked = set()
    for result in api.get_all_operations():
        operation = result.ok()
        if operation.path in SKIPPED or (mode is GenerationMode.NEGATIVE and _bare(operation)):
            continue
        asked.add(operation.label)
        _ask(operation, manager, mode)
    assert len(asked) > 30
    answer = httpx.get(f"{manager.url}/ready", trust_env=False)
    assert answer.is_success, "it is as well as before"


def _bare(operation: Any) -> bool:
    """Whether there is nothing in it that could be wrong."""
    parts = (operation.path_parameters, operation.query, operation.headers, operation.body)
    return not any(len(list(part)) for part in parts)


def _ask(operation: Any, manager: FilledManager, mode: GenerationMode) -> None:
    kind = operation.path.split("/")[2]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers(case: Any) -> None:
        case.call_and_validate(headers=manager.headers, checks=CHECKS, timeout=30)
        if case.path_parameters and kind in manager.known:
            for name in case.path_parameters:
                case.path_parameters[name] = manager.known[kind]
            case.call_and_validate(headers=manager.headers, checks=CHECKS, timeout=30)

    answers()
