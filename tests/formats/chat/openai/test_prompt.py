"""The prompt of a chat body: the usual one is read in one step, and comes to what it would come to in several."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.chat.openai.chat import measure_prompt
from tests.support.table_rows import table_rows

ROLES = st.sampled_from(["developer", "system", "user", "assistant", "tool", "function"])
TEXT = st.text(st.characters(codec="utf-8"))  # any text that JSON can carry: no lone surrogates
ODD = st.sampled_from([None, True, 0, 2, "", "robot", "ab", [], ["user"], {}, {"role": "user"}])
PLAIN = st.fixed_dictionaries({"role": ROLES, "content": TEXT})
OTHER = st.fixed_dictionaries(
    {},
    optional={
        "role": ROLES | ODD,
        "content": TEXT | ODD | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})),
        "name": TEXT,
        "tool_calls": st.just([{"id": "1"}]),
    },
)


def read_or_refuse(messages: Any, **more: Any) -> object:
    """What it comes to, or what is refused of it."""
    try:
        return measure_prompt({"model": "m", "messages": messages, **more})[:2]
    except InvalidRequest as refused:
        return refused.param, refused.message


def add_nothing(message: Any) -> Any:
    """The same message with a field more that says nothing, which is not plain any more."""
    return message | {"name": message.get("name"), "refusal": None} if isinstance(message, dict) else message


@given(st.lists(PLAIN, min_size=1) | st.lists(PLAIN | OTHER | ODD, max_size=4))
@example([{"role": "user", "name": "bob"}])
@example([{"content": "x", "name": "bob"}])
@example([{"role": "user", "content": "x"}, {"role": ["user"], "content": "x"}])
@example([{"role": "user", "content": "x"}, "ab"])
def test_plain_messages_come_to_what_others_would(messages: list[Any]) -> None:
    assert read_or_refuse(messages) == read_or_refuse(list(map(add_nothing, messages)))


@given(st.lists(PLAIN, min_size=1))
def test_plain_messages_come_to_their_characters_and_bytes(messages: list[dict[str, str]]) -> None:
    text = "".join(message["content"] for message in messages)
    assert measure_prompt({"messages": messages}) == (len(text), len(text.encode()) + 8 * (1 + len(messages)), True)


@table_rows("value", [None, True, 1, 0.5, "x" * 100])
@table_rows("name", ["temperature", "max_tokens", "stream", "user", "seed", "of_tomorrow"])
def test_a_field_beside_the_messages_that_is_no_container_comes_to_nothing(name: str, value: object) -> None:
    messages = [{"role": "user", "content": "x"}]
    assert read_or_refuse(messages, **{name: value}) == read_or_refuse(messages)


def test_a_container_counts_whatever_stands_beside_it() -> None:
    messages = [{"role": "user", "content": "x"}]
    bare = measure_prompt({"messages": messages})[1]
    assert (
        measure_prompt({"messages": messages, "temperature": 1, "seed": 1, "tools": [1], "stop": ["a"]})[1] == bare + 3
    )
