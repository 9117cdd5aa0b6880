"""Streamed conversations over a route that fall from OpenAI to Anthropic to a local server, and back.

Each SDK keeps the history as it returns it: calls and their results, images, reasoning with its signatures. Whoever
answers must get all of that in a form that it takes: the providers refuse what the real ones refuse, and every body
that they receive must fit the types of the vendor's library.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter, ValidationError

from gateway.domain.request_log import parse_attempts
from tests.support.gateway import RunningGateway
from tests.support.providers import Call, Fails, Provider, ReceivedImage, Says
from tests.support.sdk_clients import MakeClaude, MakeClient
from tests.support.started_gateways import StartGateway
from tests.support.strict_providers.agent_task import NOT_FOUND
from tests.support.strict_providers.chat_vendors import Custom, OpenAI
from tests.support.strict_providers.own_formats import Anthropic

Json = dict[str, Any]
Calls = list[tuple[str, str]]
"""Id and name of each call."""
Turns = list[Any]

SYSTEM = "You are careful."
PNG = b"\x89PNG\r\n\x1a\n"
SCHEMA: Json = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = [{"name": name, "description": "Finds it", "parameters": SCHEMA} for name in ("get_time", "get_weather")]
TIME, WEATHER = Call("get_time", {"place": "Åbo"}), Call("get_weather", {"place": 'Os"lo'})


@attrs.frozen
class Turn:
    """A request of the conversation: who answers it, with what, and the question of the user.

    Attributes:
        question: empty: the results of the calls before are sent.
        image: the last byte of the image that the question or the first result has; 0 without one.
    """

    provider: str
    says: Says
    question: str = ""
    image: int = 0


TALK = (
    Turn("openai", Says("Looking.", calls=(TIME, WEATHER)), "What is on it?", 1),
    Turn("anthropic", Says("Once more.", thought="Both at once?", calls=(WEATHER,)), image=3),
    Turn("anthropic", Says("Noon, and rain.", thought="So it rains")),
    Turn("local", Says("I look again.", thought="Two of them", calls=(TIME, WEATHER)), "And on this one?", 2),
    Turn("local", Says("The same.", thought="Nothing new")),
    Turn("openai", Says("", calls=(TIME,)), "Are you sure?"),
    Turn("anthropic", Says("I ask again.", thought="Is it?", calls=(TIME, WEATHER))),
    Turn("local", Says("Quite.", thought="It is", calls=(WEATHER,)), image=4),
    Turn("anthropic", Says("Sure.", thought="Yes")),
)


class Place:
    """The turn in which the conversation is; all providers share it."""

    def __init__(self) -> None:
        self.turn = 0


class Scripted(Provider):
    """Answers the turns of ``TALK`` that are its own, and is down in all others."""

    name = ""
    bodies: TypeAdapter[Any]

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def give(self) -> Says | Fails:
        turn = TALK[self.place.turn]
        return turn.says if turn.provider == self.name else Fails(500, "Down")

    def check_bodies(self) -> None:
        """Fail unless every body fits the library's type. Nested iterables are checked when they are read."""
        for received in self.received:
            if received.json and not received.path.endswith("/responses"):
                exhaust(self.bodies.validate_python(received.json, strict=True))


class FirstOpenAI(Scripted, OpenAI):
    name = "openai"
    bodies = TypeAdapter(CompletionCreateParamsStreaming)


class SecondAnthropic(Scripted, Anthropic):
    name = "anthropic"
    bodies = TypeAdapter(MessageCreateParamsStreaming)


class LocalServer(Scripted, Custom):
    """Passes over fields of a call that it does not know, as such servers do: the SDK adds ``index`` to calls."""

    name = "local"
    call_fields = Custom.call_fields | {"index"}
    bodies = TypeAdapter(CompletionCreateParamsStreaming)


KINDS: tuple[type[Scripted], ...] = (FirstOpenAI, SecondAnthropic, LocalServer)


def exhaust(value: Any) -> None:
    """Read all iterables in a validated value."""
    if isinstance(value, Mapping):
        for item in value.values():
            exhaust(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            exhaust(item)


def encode_image(last: int) -> str:
    return base64.b64encode(PNG + bytes([last])).decode()


@attrs.frozen
class Format:
    """An API format of clients, by its SDK.

    Attributes:
        ask: streams an answer to a history; returns what goes into the history, the calls and the text.
        write_question: the turn of a user with a text, and an image by its last byte.
        write_results: the turns with a result for each call, the first with an image.
        signs: it has a place for the signature of reasoning.
        shows_results: results may have images.
    """

    ask: Callable[[Any, Turns], Awaitable[tuple[Turns, Calls, str]]]
    write_question: Callable[[str, int], Json]
    write_results: Callable[[Calls, int], Turns]
    signs: bool = True
    shows_results: bool = True


async def ask_chat(client: Any, turns: Turns) -> tuple[Turns, Calls, str]:
    messages = [{"role": "system", "content": SYSTEM}, *turns]
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    async with client.chat.completions.stream(
        model="chain", messages=messages, tools=tools, reasoning_effort="high", max_completion_tokens=4_000
    ) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    calls = [(call.id, call.function.name) for call in message.tool_calls or ()]
    return [message.model_dump(exclude_none=True)], calls, message.content or ""


def write_chat_question(text: str, image: int) -> Json:
    images = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encode_image(image)}"}}]
    return {"role": "user", "content": [{"type": "text", "text": text}, *images[: 1 if image else 0]]}


async def ask_responses(client: Any, turns: Turns) -> tuple[Turns, Calls, str]:
    async with client.responses.stream(
        model="chain", input=turns, instructions=SYSTEM, tools=[{"type": "function", **tool} for tool in TOOLS],
        store=False, include=["reasoning.encrypted_content"], reasoning={"effort": "high"}, max_output_tokens=4_000,
    ) as stream:  # fmt: skip
        response = await stream.get_final_response()
    calls = [(item.call_id, item.name) for item in response.output if item.type == "function_call"]
    return [item.model_dump(exclude_none=True) for item in response.output], calls, response.output_text


def write_responses_question(text: str, image: int) -> Json:
    images = [{"type": "input_image", "image_url": f"data:image/png;base64,{encode_image(image)}"}]
    return {"role": "user", "content": [{"type": "input_text", "text": text}, *images[: 1 if image else 0]]}


async def ask_messages(client: Any, turns: Turns) -> tuple[Turns, Calls, str]:
    tools = [{"name": tool["name"], "description": "Finds it", "input_schema": SCHEMA} for tool in TOOLS]
    async with client.messages.stream(
        model="chain", system=SYSTEM, messages=turns, tools=tools, max_tokens=8_000, thinking={"type": "adaptive"},
        output_config={"effort": "high"},
    ) as stream:  # fmt: skip
        message = await stream.get_final_message()
    calls = [(block.id, block.name) for block in message.content if block.type == "tool_use"]
    text = "".join(block.text for block in message.content if block.type == "text")
    return [{"role": "assistant", "content": [block.to_dict() for block in message.content]}], calls, text


def write_messages_question(text: str, image: int) -> Json:
    source = {"type": "base64", "media_type": "image/png", "data": encode_image(image)}
    images = [{"type": "image", "source": source}]
    return {"role": "user", "content": [{"type": "text", "text": text}, *images[: 1 if image else 0]]}


def write_responses_results(calls: Calls, image: int) -> Turns:
    turns: Turns = [{"type": "function_call_output", "call_id": of, "output": f"of {name}"} for of, name in calls]
    if image:
        part = {"type": "input_image", "image_url": f"data:image/png;base64,{encode_image(image)}"}
        turns[0]["output"] = [{"type": "input_text", "text": turns[0]["output"]}, part]
    return turns


def write_messages_results(calls: Calls, image: int) -> Turns:
    source = {"type": "base64", "media_type": "image/png", "data": encode_image(image)}
    blocks: Turns = [{"type": "tool_result", "tool_use_id": of, "content": f"of {name}"} for of, name in calls]
    if image:
        text = {"type": "text", "text": blocks[0]["content"]}
        blocks[0]["content"] = [text, {"type": "image", "source": source}]
    return [{"role": "user", "content": blocks}]


FORMATS: Mapping[str, Format] = {
    "chat": Format(
        ask_chat,
        write_chat_question,
        lambda calls, _: [{"role": "tool", "tool_call_id": of, "content": f"of {name}"} for of, name in calls],
        signs=False,
        shows_results=False,
    ),
    "responses": Format(ask_responses, write_responses_question, write_responses_results),
    "messages": Format(ask_messages, write_messages_question, write_messages_results),
}


@pytest.mark.parametrize("name", FORMATS)
async def test_a_conversation_falls_from_provider_to_provider_and_back(
    name: str, standing_with: StartGateway, sdk: MakeClient, claude: MakeClaude
) -> None:
    place, form = Place(), FORMATS[name]
    async with FirstOpenAI(place) as first, SecondAnthropic(place) as second, LocalServer(place) as local:
        ups: dict[str, Scripted] = {"openai": first, "anthropic": second, "local": local}
        gateway = await standing_with(
            {
                "channel": [up.channel(name, models=[up.model], model_map={}) for name, up in ups.items()],
                "route": [{"name": "chain", "step": [{"models": [up.model]} for up in ups.values()]}],
            }
        )
        client = claude(gateway) if name == "messages" else sdk(gateway)
        turns: Turns = []
        calls: Calls = []
        results: list[tuple[str, str]] = []
        for place.turn, turn in enumerate(TALK):
            turns += (
                [form.write_question(turn.question, turn.image)]
                if turn.question
                else form.write_results(calls, turn.image)
            )
            results += [] if turn.question else [(called, f"of {called}") for _, called in calls]
            answer, calls, text = await form.ask(client, turns)
            assert (text, [called for _, called in calls]) == (turn.says.text, [one.name for one in turn.says.calls])
            check_heard(ups[turn.provider], place.turn, results, form)
            turns += answer
        await check_rows(gateway, ups)
        for up in ups.values():
            assert {*up.refusals} <= {NOT_FOUND}
            up.check_bodies()


def check_heard(up: Scripted, number: int, results: list[tuple[str, str]], form: Format) -> None:
    """The provider has the whole history, and of the reasoning at least its own."""
    heard, before = up.heard[-1], TALK[: number + 1]
    assert heard.system == SYSTEM
    # A format without images in results has them in the next message of the user, and the result says so.
    assert [(name, text.partition("\n")[0]) for name, text in heard.results] == results
    with_images = [turn.image for turn in before if turn.image and (turn.question or form.shows_results)]
    assert heard.images == tuple(ReceivedImage("image/png", PNG + bytes([last])) for last in with_images)
    answers = [f"assistant: {turn.says.text}" for turn in before[:-1] if turn.says.text]
    questions = [f"user: {turn.question}" for turn in before if turn.question]
    assert [message for message in heard.messages if message.startswith("assistant: ")] == answers
    asked = [message for message in heard.messages if message.startswith("user: ") and not message.endswith(":")]
    assert asked == questions
    own = [turn.says.thought for turn in before[:-1] if turn.provider == up.name and turn.says.thought]
    kept = own if form.signs or up.name != "anthropic" else []
    assert [thought for thought in heard.thoughts if thought in own] == kept


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (FirstOpenAI, {"role": "tool", "content": "noon"}),
        (
            LocalServer,
            {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}]},
        ),
        (SecondAnthropic, {"role": "user", "content": [{"type": "tool_result", "content": "noon"}]}),
    ],
)
def test_the_types_of_the_libraries_refuse_what_lacks_a_field(kind: type[Scripted], message: Json) -> None:
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [message]}
    with pytest.raises(ValidationError, match="Field required"):
        exhaust(kind.bodies.validate_python(body, strict=True))


async def check_rows(gateway: RunningGateway, ups: Mapping[str, Scripted]) -> None:
    """Each request was answered by the model of its turn, and the one before it on record was down."""
    rows = await gateway.rows(len(TALK))
    assert [row.channel for row in rows] == [turn.provider for turn in TALK]
    for row in rows:
        *failed, last = parse_attempts(row.tried)
        assert (last.channel, last.model, last.code) == (row.channel, ups[str(row.channel)].model, "ok")
        assert {attempt.cause for attempt in failed} <= {"unavailable", "unsupported"}
        assert row.route == "chain"
