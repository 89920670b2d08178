"""The OpenAPI document against the running service: whatever it allows to send, the answer is one that it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from statem_api.reference import document
from statem_dist.run_ids import NAME_PATTERN, RUN_ID_LENGTH_MAX
from tests.support.programs import Site
from tests.support.service import Caller, serve

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

RUNBOOK = """
name: known
initial: a
nodes: {a: {before_transfer: [{type: manual, text: sure?}], dynamic_before_transfer: {}}, b: {}}
edges: [{from: a, to: b}, {from: b, to: a}]
"""

schema = schemathesis.openapi.from_dict(document())


@schemathesis.serializer("application/x-ndjson")
def lines(context: object, value: object) -> bytes:
    """Send a text as lines of JSON, whatever is in it."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    """An admin of a service without a worker: what is started stays where it is. There is a sweep ``known``."""
    site = Site()
    try:
        admin = serve(site).caller("admin")
        site.write("ends.yaml", "nodes: {a: {next: end}, end: {}}\n")
        file = "runbook: ends.yaml\nmatrix: {model: [a, b]}\nagent: {run: 'true'}\n"
        admin.post("/v1/sweeps", {"file": file, "folder": str(site.folder), "id": "known"}, expect=201)
        yield admin
    finally:
        site.close()


def is_stream(case: Case[Any]) -> bool:
    """Return whether a request would be answered by a stream that goes on."""
    return case.path in (
        "/v1/events",
        "/v1/runs/{run_id}/agui",
        "/v1/agui/runs",
        "/v1/sweeps/{sweep_id}/events",
    ) or ("event-stream" in str(case.headers))


@schema.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_described(case: Case[Any], caller: Caller) -> None:
    """No answer is a failure of the service, and each has a status, a type and a shape that the document names."""
    if is_stream(case):
        pytest.skip("a stream goes on; the tests of streams read them")
    if case.path_parameters and "run_id" in case.path_parameters and case.operation.label.endswith("}/goto"):
        case.path_parameters["run_id"] = "known"
    sweep_id = str((case.path_parameters or {}).get("sweep_id", ""))
    if re.fullmatch(NAME_PATTERN, sweep_id) and len(sweep_id) <= RUN_ID_LENGTH_MAX and case.method != "DELETE":
        case.path_parameters["sweep_id"] = "known"
    response = case.call(base_url=caller.url, headers=dict(caller.http.headers), timeout=60)
    case.validate_response(response, checks=CHECKS)
