"""Conversations that go on at another provider: tools, images and ids arrive, over every convention and two formats.

Every convention asks a first provider, which thinks and calls two tools; a second one gets the results, and the first
one the next question. The providers refuse what the real ones refuse: an unknown id, a wrong signature, a lost result.
Every pair of providers, and other conversations, are in tests/formats/chat/test_conversations.py.
"""

import base64
from collections.abc import Callable
from typing import Any

import aiohttp
import attrs
import pytest

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import KEY, RunningGateway
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import ThinkingProvider
from tests.support.providers import Call, Fails, Heard, ReceivedImage, Says
from tests.support.sdk_clients import name_provider
from tests.support.started_gateways import StartGateway

Json = dict[str, Any]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
DATA = base64.b64encode(PNG).decode()
ASK, NEXT = "What is on it?", "And now?"
SCHEMA: Json = {"type": "object", "properties": {"place": {"type": "string"}}}
CALLS = (Call("get_time", {"place": "Åbo"}), Call("get_weather", {"place": 'Os"lo'}))
RESULTS = (("get_time", "noon"), ("get_weather", "rain"))


def answer(heard: Heard) -> Says:
    """Call the tools, repeat that there are results, or say the last word."""
    if f"user: {NEXT}" in heard.messages:
        return Says("Goodbye.")
    if heard.results:
        return Says("Noon, and rain.", thought="So it rains")
    return Says("Looking.", thought="I should look", calls=CALLS)


class Thinker(ThinkingProvider):
    def give(self) -> Says | Fails:
        return answer(self.heard[-1])


class Claude(AnthropicProvider):
    def give(self) -> Says | Fails:
        return answer(self.heard[-1])


class Gemini(GeminiProvider):
    def give(self) -> Says | Fails:
        return answer(self.heard[-1])


Calls = list[tuple[str, str]]
"""Id and name of each."""


@attrs.frozen
class Convention:
    """One API format of callers: each function adds to the history, or reads what is to be added.

    Attributes:
        path: where a model is asked.
        question: the first turn: a text and an image.
        body: the request with a history.
        read: what of an answer goes into the history, its tool calls, and its text.
        results: the turn with the results of calls.
        say: a turn of the user with a text.
    """

    name: str
    path: str
    question: list[Json]
    body: Callable[[str, list[Json]], Json]
    read: Callable[[Json], tuple[list[Json], Calls, str]]
    results: Callable[[Calls], list[Json]]
    say: Callable[[str], Json]


def read_chat(given: Json) -> tuple[list[Json], Calls, str]:
    message = given["choices"][0]["message"]
    calls = [(call["id"], call["function"]["name"]) for call in message.get("tool_calls") or ()]
    return [message], calls, message["content"]


def read_response(given: Json) -> tuple[list[Json], Calls, str]:
    calls = [(item["call_id"], item["name"]) for item in given["output"] if item["type"] == "function_call"]
    texts = [part["text"] for item in given["output"] if item["type"] == "message" for part in item["content"]]
    return given["output"], calls, "".join(texts)


def read_message(given: Json) -> tuple[list[Json], Calls, str]:
    calls = [(block["id"], block["name"]) for block in given["content"] if block["type"] == "tool_use"]
    texts = [block["text"] for block in given["content"] if block["type"] == "text"]
    return [{"role": "assistant", "content": given["content"]}], calls, "".join(texts)


def read_content(given: Json) -> tuple[list[Json], Calls, str]:
    content = given["candidates"][0]["content"]
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    texts = [part["text"] for part in content["parts"] if "text" in part and not part.get("thought")]
    return [content], [(call.get("id", ""), call["name"]) for call in calls], "".join(texts)


def respond_to_functions(calls: Calls) -> list[Json]:
    texts = dict(RESULTS)
    responses = [
        {"functionResponse": {"name": name, "response": {"output": texts[name]}} | ({"id": of} if of else {})}
        for of, name in calls
    ]
    return [{"role": "user", "parts": responses}]


TOOLS: list[Json] = [{"name": name, "description": "Finds it", "parameters": SCHEMA} for name, _ in RESULTS]
CONVENTIONS = (
    Convention(
        "chat",
        "/v1/chat/completions",
        [{"role": "user", "content": [
            {"type": "text", "text": ASK},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        ]}],
        lambda model, turns: {
            "model": model, "messages": turns, "tools": [{"type": "function", "function": tool} for tool in TOOLS],
        },
        read_chat,
        lambda calls: [{"role": "tool", "tool_call_id": of, "content": dict(RESULTS)[name]} for of, name in calls],
        lambda text: {"role": "user", "content": text},
    ),
    Convention(
        "responses",
        "/v1/responses",
        [{"role": "user", "content": [
            {"type": "input_text", "text": ASK},
            {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
        ]}],
        lambda model, turns: {
            "model": model, "input": turns, "store": False, "tools": [{"type": "function", **tool} for tool in TOOLS],
        },
        read_response,
        lambda calls: [
            {"type": "function_call_output", "call_id": of, "output": dict(RESULTS)[name]} for of, name in calls
        ],
        lambda text: {"role": "user", "content": text},
    ),
    Convention(
        "messages",
        "/v1/messages",
        [{"role": "user", "content": [
            {"type": "text", "text": ASK},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        ]}],
        lambda model, turns: {
            "model": model,
            "max_tokens": 8_000,
            "thinking": {"type": "enabled", "budget_tokens": 2_000},
            "messages": turns,
            "tools": [{"name": tool["name"], "description": "Finds it", "input_schema": SCHEMA} for tool in TOOLS],
        },
        read_message,
        lambda calls: [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": of, "content": dict(RESULTS)[name]} for of, name in calls
        ]}],
        lambda text: {"role": "user", "content": text},
    ),
    Convention(
        "gemini",
        "/v1beta/models/{model}:generateContent",
        [{"role": "user", "parts": [{"text": ASK}, {"inlineData": {"mimeType": "image/png", "data": DATA}}]}],
        lambda _model, turns: {"contents": turns, "tools": [{"functionDeclarations": TOOLS}]},
        read_content,
        respond_to_functions,
        lambda text: {"role": "user", "parts": [{"text": text}]},
    ),
)  # fmt: skip


async def ask(gateway: RunningGateway, convention: Convention, model: str, turns: list[Json]) -> Json:
    headers = {"Authorization": f"Bearer {KEY}"}
    url = gateway.url + convention.path.format(model=model)
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url, json=convention.body(model, turns)) as response,
    ):
        given: Json = await response.json()
        assert response.status == 200, (model, given)
        return given


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)
@pytest.mark.parametrize(
    ("first", "second"), [(Thinker, Claude), (Claude, Gemini), (Gemini, Thinker)], ids=name_provider
)
async def test_a_conversation_goes_on_at_another_provider(
    first: type[Thinker | Claude | Gemini],
    second: type[Thinker | Claude | Gemini],
    convention: Convention,
    standing_with: StartGateway,
) -> None:
    async with first() as one, second() as other:
        channels = [
            up.channel(name, models=[name], model_map={name: up.model}) for name, up in (("one", one), ("other", other))
        ]
        gateway = await standing_with({"channel": channels})
        turns = list(convention.question)
        added, calls, text = convention.read(await ask(gateway, convention, "one", turns))
        assert (text, [name for _, name in calls]) == ("Looking.", ["get_time", "get_weather"])
        turns += [*added, *convention.results(calls)]
        added, calls, text = convention.read(await ask(gateway, convention, "other", turns))
        assert (text, calls) == ("Noon, and rain.", [])
        heard = other.heard[-1]
        assert (heard.results, heard.images) == (RESULTS, (ReceivedImage("image/png", PNG),))
        assert heard.messages[0] == f"user: {ASK}"
        assert "assistant: Looking." in heard.messages
        turns += [*added, convention.say(NEXT)]
        _, _, text = convention.read(await ask(gateway, convention, "one", turns))
        assert text == "Goodbye."
        assert one.heard[-1].results == RESULTS
        assert one.heard[-1].messages[-2:] == ("assistant: Noon, and rain.", f"user: {NEXT}")
        assert {*one.refusals, *other.refusals} <= {"Not found"}, "a provider without the Responses API is asked for it"
