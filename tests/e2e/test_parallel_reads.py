"""Twenty callers at once on a limit of $1, with requests of which each makes the provider read a whole context window.

They spend at most the limit and one overrun, which is on record, whatever names what the provider reads.
"""

import asyncio
from typing import Any

import attrs
import pytest

from gateway.domain.context_windows import find_context_window
from tests.support.gateway import RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

CALLERS, RUNS = 20, 3
LIMIT_NANOS = 1_000_000_000
PRICE = 10
"""USD per million tokens: a context window costs more than the limit."""
B64 = "QUJD"
PDF = "data:application/pdf;base64," + B64
USER = {"role": "user", "content": "hi"}


@attrs.frozen
class Api:
    """An API format: the provider, its model, its path, and an answer with as much usage as is possible."""

    provider: str
    model: str
    path: str
    body: dict[str, Any]
    answer: dict[str, Any]


CODEX, HAIKU, PRO = "gpt-5.1-codex", "claude-haiku-4-5", "gemini-2.5-pro"
CHAT = Api(
    "openai", CODEX, "/v1/chat/completions", {"model": CODEX, "messages": [USER]},
    {"id": "c", "object": "chat.completion", "created": 1, "model": CODEX,
     "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
     "usage": {"prompt_tokens": find_context_window(CODEX), "completion_tokens": 9}},
)  # fmt: skip
RESPONSES = Api(
    "openai", CODEX, "/v1/responses", {"model": CODEX, "input": [USER]},
    {"id": "resp_1", "object": "response", "created_at": 1, "model": CODEX, "status": "completed",
     "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                 "content": [{"type": "output_text", "text": "x", "annotations": []}]}],
     "usage": {"input_tokens": find_context_window(CODEX), "output_tokens": 9}},
)  # fmt: skip
MESSAGES = Api(
    "anthropic", HAIKU, "/v1/messages", {"model": HAIKU, "max_tokens": 100, "messages": [USER]},
    {"id": "msg_1", "type": "message", "role": "assistant", "model": HAIKU, "stop_reason": "end_turn",
     "content": [{"type": "text", "text": "x"}],
     "usage": {"input_tokens": find_context_window(HAIKU), "output_tokens": 9}},
)  # fmt: skip
GEMINI = Api(
    "gemini", PRO, f"/v1beta/models/{PRO}:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "x"}]}, "finishReason": "STOP"}],
     "usageMetadata": {"promptTokenCount": find_context_window(PRO), "candidatesTokenCount": 9}},
)  # fmt: skip


def chat(part: dict[str, Any]) -> tuple[Api, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": [part]}]}


def items(*parts: dict[str, Any]) -> tuple[Api, dict[str, Any]]:
    return RESPONSES, {"input": [*parts, USER]}


def messages(part: dict[str, Any]) -> tuple[Api, dict[str, Any]]:
    return MESSAGES, {"messages": [{"role": "user", "content": [part]}]}


def gemini(part: dict[str, Any]) -> tuple[Api, dict[str, Any]]:
    return GEMINI, {"contents": [{"role": "user", "parts": [part]}]}


WAYS = {
    "an image by address": chat({"type": "image_url", "image_url": {"url": "https://up/x.png"}}),
    "a PDF": chat({"type": "file", "file": {"filename": "x.pdf", "file_data": PDF}}),
    "a recording": chat({"type": "input_audio", "input_audio": {"data": B64, "format": "wav"}}),
    "a response before": (RESPONSES, {"previous_response_id": "resp_1"}),
    "an item": items({"type": "item_reference", "id": "msg_1"}),
    "an item without a type": items({"id": "msg_1"}),
    "a file by address": items(
        {"role": "user", "content": [{"type": "input_file", "file_url": "https://up/x.pdf"}]}
    ),
    "a search": (RESPONSES, {"tools": [{"type": "web_search"}]}),
    "a server of tools": (RESPONSES, {"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://up"}]}),
    "a document by address": messages({"type": "document", "source": {"type": "url", "url": "https://up/x.pdf"}}),
    "a document": messages(
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": B64}}
    ),
    "a video by address": gemini({"fileData": {"fileUri": "https://www.youtube.com/watch?v=x"}}),
    "a recording in snake case": gemini({"inline_data": {"mime_type": "audio/mp3", "data": B64}}),
}  # fmt: skip


def make_site(api: Api, base_url: str) -> dict[str, Any]:
    numbers = range(RUNS + 1)
    return {
        "channel": [
            channel(base_url, provider=api.provider, models=[api.model], allow_fields=["tools.web_search"],
                    total_timeout_s=60, first_byte_timeout_s=60)
        ],
        "account": [{"name": "acme", "rpm": 1_000_000}],
        "key": [
            {"name": f"k{number}", "account": "acme", "secret": f"sk-of-the-caller-in-run-{number}",
             **({"quota_usd": 1} if number < RUNS else {})}
            for number in numbers
        ],
        "price": [{"model": api.model, "input_usd_per_million": PRICE, "output_usd_per_million": PRICE}],
    }  # fmt: skip


async def ask(gateway: RunningGateway, run: int, api: Api, more: dict[str, Any]) -> tuple[int, str]:
    headers = {"authorization": f"Bearer sk-of-the-caller-in-run-{run}"}
    async with gateway.post({**api.body, **more}, api.path, headers=headers) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("way", WAYS)
async def test_twenty_callers_spend_the_limit_and_at_most_one_overrun(gateway_with: StartGateway, way: str) -> None:
    api, more = WAYS[way]
    full = asyncio.Event()

    async def wait(_received: object) -> None:
        await full.wait()

    async with ScriptedUpstream([answer(api.answer)], [wait, answer(api.answer)]) as up:
        gateway = await gateway_with(make_site(api, up.base_url))
        assert (await ask(gateway, RUNS, api, {}))[0] == 200  # keeps ``resp_1`` and ``msg_1``
        for run in range(RUNS):
            full.clear()
            before = len(up.received)
            calls = [asyncio.create_task(ask(gateway, run, api, more)) for _ in range(CALLERS)]
            async with asyncio.timeout(30):
                while len(up.received) - before + sum(call.done() for call in calls) < CALLERS:  # noqa: ASYNC110 - a provider and its callers
                    await asyncio.sleep(0)
            full.set()
            answers = await asyncio.gather(*calls)
            refused = [text for status, text in answers if status != 200]
            assert len(refused) == CALLERS - 1, answers
            assert all("$1 is left, $1 of it held for running requests" in text for text in refused), refused
            assert (await ask(gateway, run, api, more))[0] in {403, 429}  # the limit is used up
        rows = await gateway.rows(1 + RUNS * (CALLERS + 1))
        for run in range(RUNS):
            charged = [row for row in rows if row.key_name == f"k{run}" and row.cost_nanos]
            (row,) = charged
            assert row.usage_source == "upstream"
            assert row.cost_nanos == PRICE * 1_000 * (row.prompt_tokens + row.completion_tokens)
            assert row.prompt_tokens == find_context_window(api.model)
            assert row.reserved_nanos == LIMIT_NANOS
            assert row.overrun_nanos == row.cost_nanos - LIMIT_NANOS
