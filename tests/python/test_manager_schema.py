"""Random requests over the whole OpenAPI document: no failure, and answers as it says."""

from __future__ import annotations

import os
from typing import Any

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

from filled_manager import FilledManager

pytestmark = pytest.mark.timeout(300)

#: For each operation; they are the same in every run, so more of them show more once.
EXAMPLES = int(os.environ.get("GPUPOOL_EXAMPLES", "12"))

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


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
