"""Conversations that change convention and provider between two turns keep tools, images, reasoning and ids.

Whatever was said, in whichever convention and to whom, and wherever the network cuts the bytes of the answers. The
providers are servers without sockets, which refuse what the real ones refuse: an id that they do not know, a signature
that is not theirs, a lost result.
"""

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.api_format import Wire
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.providers.registry import PROVIDERS
from tests.support.anthropic_provider import AnthropicProvider
from tests.support.conversations import CLIENTS, TOOLS, Answer, Client, Question, Results, ToolCall, Turn
from tests.support.gemini_provider import SIGNATURE, GeminiProvider
from tests.support.openai_provider import OpenAIProvider, ThinkingProvider
from tests.support.providers import KEY, Call, Heard, Provider, ReceivedImage, Says
from tests.support.scripted_upstream import Received

PNG = b"\x89PNG\r\n\x1a\n"
WORDS = st.text('aZ\u00e5\u540d\U0001f600"\\\\{}<&:\u2028\n ', min_size=1, max_size=20).filter(str.strip)
IDS = st.text('aZ09_-.:/ \u00e5\u540d\U0001f600"', min_size=1, max_size=70).filter(str.strip)
NAMES = st.sampled_from([tool["name"] for tool in TOOLS])
CALLS = st.lists(st.builds(Call, NAMES, st.fixed_dictionaries({}, optional={"place": WORDS})), max_size=3)


class Served(Provider):
    """A provider without a socket: its answer is bytes."""

    says = Says()

    def give(self) -> Says:
        return self.says

    def speak(self, stream: bool, whole: Callable[[Says], Any], events: Callable[[Says], list[bytes]]) -> Any:
        return b"".join(events(self.says)) if stream else orjson.dumps(whole(self.says))


class OpenAI(Served, OpenAIProvider):
    pass


class Thinker(Served, ThinkingProvider):
    pass


class Claude(Served, AnthropicProvider):
    pass


class Gemini(Served, GeminiProvider):
    pass


KINDS: dict[type[Served], Wire] = {
    OpenAI: "openai_chat", Thinker: "openai_chat", Claude: "anthropic_messages", Gemini: "gemini_generate",
}  # fmt: skip
PATHS: dict[Wire, str] = {
    "openai_chat": "/v1/chat/completions",
    "anthropic_messages": "/v1/messages",
    "gemini_generate": "/v1beta/models/{model}:{method}",
}
HEADERS = {
    "authorization": f"Bearer {KEY}", "x-api-key": KEY, "x-goog-api-key": KEY, "anthropic-version": "2023-06-01"
}  # fmt: skip


@attrs.frozen
class Step:
    """One request: in which convention, to whom, and what the model answers."""

    client: Client
    kind: type[Served]
    says: Says
    stream: bool
    thinks: bool
    cuts: tuple[int, ...]
    question: Question
    results: tuple[str, ...]


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(CLIENTS),
        st.sampled_from(list(KINDS)),
        st.builds(lambda text, calls, thought: Says(text, tuple(calls), thought), WORDS, CALLS, st.just("") | WORDS),
        st.booleans(),
        st.booleans(),
        st.lists(st.integers(0, 4_000), max_size=6).map(tuple),
        st.builds(Question, WORDS, st.lists(st.binary(max_size=8).map(lambda rest: PNG + rest), max_size=2).map(tuple)),
        st.tuples(WORDS, WORDS, WORDS),
    ),
    min_size=2,
    max_size=5,
)


MESSAGES = next(client for client in CLIENTS if client.name == "messages")


def step(kind: type[Served], *, thought: str = "", stream: bool = True) -> Step:
    """A request by messages, which asks for reasoning, and is answered with a call."""
    says = Says("So", (Call("get_time"),), thought)
    return Step(MESSAGES, kind, says, stream, True, (), Question("Hi"), ("noon", "one", "two"))


@example(steps=[step(Gemini), step(Claude, thought="Hm")], ids=[])
@example(steps=[step(Gemini, thought="Hm"), step(Gemini, thought="Hm", stream=False), step(Gemini)], ids=[])
@pytest.mark.timeout(600)  # `make soak` has hundreds of examples
@given(steps=STEPS, ids=st.lists(IDS, unique=True, max_size=3))
def test_a_conversation_keeps_tools_images_and_reasoning_wherever_it_goes_on(steps: list[Step], ids: list[str]) -> None:
    turns: list[Turn] = list(begin(ids))
    providers = {kind: kind() for kind in KINDS}
    for number, step in enumerate(steps):
        last = turns[-1] if turns else None
        if isinstance(last, Answer) and last.calls:
            turns.append(Results(last.calls, tuple(itertools.islice(itertools.cycle(step.results), len(last.calls)))))
        else:
            turns.append(step.question)
        provider = providers[step.kind]
        answer = ask(provider, step, turns, number)
        check_heard(provider, step, turns)
        check_reasoning(provider, step, turns)
        check_answer(step, answer)
        turns.append(attrs.evolve(answer, provider=step.kind.__name__, calls=tuple(name_calls(answer, number))))


def begin(ids: list[str]) -> list[Turn]:
    """What was said before, elsewhere."""
    if not ids:
        return []
    calls = tuple(ToolCall(name, "get_time", {"place": name}) for name in ids)
    return [Question("Before"), Answer("So", calls=calls)]


def name_calls(answer: Answer, number: int) -> list[ToolCall]:
    """The calls, with an id of the application's for each that has none."""
    return [call if call.id else attrs.evolve(call, id=f"app_{number}_{at}") for at, call in enumerate(answer.calls)]


def ask(provider: Served, step: Step, turns: list[Turn], number: int) -> Answer:
    """The answer to the last turn."""
    inference = step.client.ask(turns, thinks=step.thinks, stream=step.stream)
    wire = KINDS[step.kind]
    translator = make_translator(inference, wire, ResponseIdentity(f"{number:024x}", provider.model, 1_750_000_000))
    body = translator.write_body()
    endpoint = PROVIDERS[provider.slug].find_endpoint((wire,), provider.model)
    assert endpoint is not None
    assert isinstance(body, dict)
    endpoint.apply_quirks(body, provider.model)
    method = "streamGenerateContent?alt=sse" if step.stream else "generateContent"
    path = PATHS[wire].format(model=provider.model, method=method)
    provider.received.append(Received("POST", path, HEADERS, orjson.dumps(body), 1))
    provider.says = step.says
    raw: Any = provider.read(provider.received[-1])
    if not step.stream:
        return step.client.hear(translator.parse_answer(raw, ())[0], stream=False)
    transform = translator.open_transform(())
    marks = [0, *sorted({cut % len(raw) for cut in step.cuts}), len(raw)]
    written = [transform.feed(raw[start:end]) for start, end in itertools.pairwise(marks)]
    written.append(transform.finish())
    assert transform.error is None
    return step.client.hear(b"".join(written), stream=True)


def check_heard(provider: Provider, step: Step, turns: list[Turn]) -> None:
    heard: Heard = provider.heard[-1]
    images = [image for turn in turns if isinstance(turn, Question) for image in turn.images]
    assert heard.images == tuple(ReceivedImage("image/png", image) for image in images)
    results = [
        (call.name, text)
        for turn in turns
        if isinstance(turn, Results)
        for call, text in zip(turn.of, turn.texts, strict=True)
    ]
    assert heard.results == tuple(results)
    answers = [
        (role, turn.text)
        for turn in turns
        for role, kind in (("user", Question), ("assistant", Answer))
        if isinstance(turn, kind)
    ]
    assert join(answers) == join([(role, text) for role, _, text in (one.partition(": ") for one in heard.messages)])


def check_reasoning(provider: Provider, step: Step, turns: list[Turn]) -> None:
    """What a provider thought comes back to it, with its signature, if the convention has a place for it."""
    heard = provider.heard[-1]
    own = [
        turn
        for turn in turns
        if isinstance(turn, Answer) and (turn.api_format, turn.provider) == (step.client.name, step.kind.__name__)
    ]
    thoughts = [turn.thought for turn in own if turn.thought]
    if step.kind is Claude:
        assert heard.thoughts == (tuple(thoughts) if step.client.name != "chat" else ())
    if step.kind is Thinker:  # and it may get what another one left unsigned
        rest = iter(heard.thoughts)
        assert all(thought in rest for thought in thoughts)
    if step.kind is Gemini:
        # Messages have no place for the signature of a call if there was no reasoning.
        signed = [turn for turn in own if turn.calls and (turn.thought or step.client.name != "messages")]
        parts = [part for content in provider.received[-1].json["contents"] for part in content["parts"]]
        found = [part.get("thoughtSignature") for part in parts if "functionCall" in part]
        assert found.count(SIGNATURE) == len(signed)


def join(answers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Texts of one side after another, as one."""
    grouped = itertools.groupby(answers, key=lambda one: one[0])
    return [(role, "".join(text for _, text in texts)) for role, texts in grouped]


def check_answer(step: Step, answer: Answer) -> None:
    assert answer.text == step.says.text
    assert [(call.name, call.arguments) for call in answer.calls] == [
        (call.name, call.arguments) for call in step.says.calls
    ]
    if step.kind is not OpenAI:
        assert answer.thought == step.says.thought
