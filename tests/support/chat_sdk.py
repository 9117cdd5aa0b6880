"""The real client library as the judge of what is written, and answers as events to be written."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import openai
from hypothesis import strategies as st

from gateway.domain.usage import Usage
from gateway.formats.chat import model as chat

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
COUNTS = st.integers(0, 1_000_000)


@contextmanager
def answering(raw: bytes) -> Iterator[openai.OpenAI]:
    """The library in its strict mode, towards a provider whose every answer is ``raw``."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=raw))
    with openai.OpenAI(
        api_key="k",
        base_url="http://provider/v1",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(transport=transport),
        _strict_response_validation=True,
    ) as client:
        yield client


def _used() -> st.SearchStrategy[chat.UsageReport]:
    return st.builds(
        lambda prompt, completion, cached, thought: chat.UsageReport(
            Usage(prompt + 1, completion, min(cached, prompt), "upstream"), min(thought, completion)
        ),
        *[COUNTS] * 4,
    )


@st.composite
def _choices(draw: st.DrawFn, choice: int) -> list[chat.Event]:
    """All that one choice says, its finish last."""
    events: list[chat.Event] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "refusal", "tool", "picture"]), max_size=6)):
        match kind:
            case "text":
                events.append(chat.TextDelta(draw(WORDS), choice))
            case "thought":
                events.append(chat.ReasoningDelta(draw(WORDS), choice))
            case "refusal":
                events.append(chat.RefusalDelta(draw(WORDS), choice))
            case "picture":
                events.append(chat.ImageOutput("image/png", draw(st.sampled_from(["AAAA", "iVBORw0KGgo="])), choice))
            case "tool":
                signature = draw(st.none() | st.just("sig=="))
                events.append(chat.ToolCallStart(calls, f"call-{choice}-{calls}", draw(NAMES), choice, signature))
                events += [chat.ToolCallDelta(calls, words, choice) for words in draw(st.lists(WORDS, max_size=3))]
                calls += 1
    reasons = ("tool_calls", "length") if calls else ("stop", "length", "content_filter")
    return [*events, chat.ChoiceFinished(draw(st.sampled_from(reasons)), choice)]


@st.composite
def answers(draw: st.DrawFn, most_choices: int = 3) -> list[chat.Event]:
    """A whole answer as a reader gives it; its choices take turns in any way."""
    lanes = [draw(_choices(choice)) for choice in range(draw(st.integers(1, most_choices)))]
    name, model = draw(st.tuples(st.from_regex(r"(chatcmpl-|msg_)[a-zA-Z0-9]{1,9}", fullmatch=True), NAMES))
    events: list[chat.Event] = [chat.MessageStart(name, model, draw(st.integers(1, 2**40)))]
    while lanes:
        lane = draw(st.sampled_from(lanes))
        events.append(lane.pop(0))
        lanes = [left for left in lanes if left]
    return [*events, *draw(st.lists(_used(), max_size=1)), chat.STREAM_END]
