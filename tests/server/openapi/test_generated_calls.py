"""Calls that schemathesis makes from the document, well-formed and not: each answer is one that the document has."""

import asyncio
import contextlib
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.transport import Response

from gateway.server.openapi.document import get_document
from tests.support.gateway import KEY
from tests.support.openapi_provider import MODEL, Everything
from tests.support.started_gateways import StartGateway

MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
TWINS = "/v1/models/{model}:"
"""Paths that lead where those of /v1beta lead."""
END = b"data: [DONE]\n\n"
NOT_IMPLEMENTED = 501
load_all_checks()
JUDGED = CHECKS.get_by_names(
    ["status_code_conformance", "content_type_conformance", "response_headers_conformance",
     "response_schema_conformance"]
)  # fmt: skip


def list_operations() -> list[Any]:
    document = get_document()
    paths = {path: item for path, item in document["paths"].items() if not path.startswith(("/admin/", TWINS))}
    return [found.ok() for found in schemathesis.openapi.from_dict({**document, "paths": paths}).get_all_operations()]  # type: ignore[union-attr]


def name_model(case: Case[Any]) -> None:
    """Ask for a model that there is: of a name made up the gateway only says that there is none."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL
    if "model" in case.path_parameters:
        case.path_parameters["model"] = MODEL


def judge(case: Case[Any], response: Response) -> list[str]:
    found = f"{case.method} {case.path}: {response.status_code} {response.text[:300]}"
    if response.status_code >= 500 and response.status_code != NOT_IMPLEMENTED:
        return [f"{found} to {case.as_curl_command()[:1_000]}"]
    # The document has the end mark in words: no schema says "JSON, or this at the end".
    response.content = response.content.removesuffix(END)
    try:
        case.validate_response(response, checks=JUDGED)  # type: ignore[arg-type]
    except (Failure, FailureGroup) as failure:
        return [f"{found}: {failure}"]
    return []


def call_all(url: str, session: requests.Session) -> list[str]:
    """Call every operation, and return what is wrong with the answers."""
    problems: list[str] = []
    for operation in list_operations():
        for mode in MODES:

            @settings(
                max_examples=1,
                database=None,
                deadline=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(operation.as_strategy(generation_mode=mode))
            def call(case: Case[Any]) -> None:
                name_model(case)
                headers = {"Authorization": f"Bearer {KEY}"}
                response = case.call(base_url=url, headers=headers, session=session, timeout=20)
                problems.extend(judge(case, response))

            with contextlib.suppress(Unsatisfiable):  # nothing about such a call can be wrong
                call()
    return problems


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_whatever_is_sent_is_answered_as_the_document_says(gateway_with: StartGateway) -> None:
    async with Everything() as up:
        gateway = await gateway_with({"channel": up.list_channels(), "egress": {"allow": ["127.0.0.1"]}})
        with requests.Session() as session:
            problems = await asyncio.to_thread(call_all, gateway.url, session)
    assert not problems, "\n\n".join(problems)
