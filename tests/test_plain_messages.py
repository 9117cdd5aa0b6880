"""No message that a user reads has a value in the spelling of Python, whatever was sent."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs

from gateway.billing.price_spec import GroupSpec, PriceSpec, SettingSpec
from gateway.cli.text import format_change, format_value
from gateway.config.schema import Config
from gateway.domain.account_spec import AccountSpec, CreditSpec, KeySpec, RotateSpec
from gateway.domain.member_spec import InviteSpec, LinkUseSpec, MemberSpec
from gateway.errors import InvalidRequest
from gateway.formats.audio.speech import parse_speech_inference
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.completions import parse_completions_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.images.openai import parse_images_inference
from gateway.formats.moderations import parse_moderations_inference
from gateway.formats.rerank import parse_rerank_inference
from gateway.formats.videos.openai_request import parse_videos_inference
from gateway.parsing import parse_spec
from gateway.routing.channel_spec import ChannelSpec
from tests.support.table_rows import table_rows

PYTHON = re.compile(r"None|True|False|\['|\{'|\[None|<class|Decimal\(|[0-9]e-[0-9]|datetime\.|object at 0x")
BAD: tuple[Any, ...] = (
    None, True, False, "", "x", -1, 0, 2**70, 1e-05, -1e-09, 1e30, Decimal("0.00001"), [], ["x"], ["x", None, True],
    [1e-05], [[]], [{}], [{"a": None}], {}, {"a": 1e-05}, {"a": None}, {"a": {"b": [True]}},
)  # fmt: skip
MESSAGES = [{"role": "user", "content": "hi"}]
PARSERS: dict[str, tuple[Callable[[dict[str, Any]], object], dict[str, Any]]] = {
    "chat": (parse_chat_inference, {"messages": MESSAGES}),
    "messages": (parse_messages_inference, {"messages": MESSAGES, "max_tokens": 9}),
    "responses": (parse_responses_inference, {"input": "hi"}),
    "completions": (parse_completions_inference, {"prompt": "hi"}),
    "embeddings": (parse_embeddings_inference, {"input": "hi"}),
    "moderations": (parse_moderations_inference, {"input": "hi"}),
    "rerank": (parse_rerank_inference, {"query": "hi", "documents": ["a"]}),
    "speech": (parse_speech_inference, {"input": "hi", "voice": "alloy"}),
    "images": (parse_images_inference, {"prompt": "a cat"}),
    "videos": (parse_videos_inference, {"prompt": "a cat"}),
}
FIELDS = (
    "model", "messages", "input", "prompt", "query", "documents", "voice", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "n", "best_of", "stream", "stream_options", "tools", "tool_choice", "temperature", "top_p",
    "top_n", "stop", "stop_sequences", "system", "metadata", "response_format", "encoding_format", "dimensions",
    "speed", "size", "seconds", "input_reference", "previous_response_id", "conversation", "thinking", "modalities",
)  # fmt: skip
SPECS: tuple[type[Any], ...] = (
    Config, ChannelSpec, AccountSpec, KeySpec, RotateSpec, CreditSpec, GroupSpec, PriceSpec, SettingSpec, MemberSpec,
    InviteSpec, LinkUseSpec,
)  # fmt: skip


def list_refusals(work: Callable[[Any], object], *values: Any) -> list[str]:
    found = []
    for value in values:
        try:
            work(value)
        except InvalidRequest as refused:
            found.append(refused.message)
    return found


@table_rows("operation", PARSERS)
def test_a_refused_request_is_told_in_the_words_of_json(operation: str) -> None:
    parse, body = PARSERS[operation]
    bodies = [{"model": "m", **body, name: value} for name in FIELDS for value in BAD]
    bodies += [{"model": "m", **body, "messages": [{"role": value, "content": value}]} for value in BAD]
    reported = list_refusals(parse, *bodies)
    assert reported
    assert [message for message in reported if PYTHON.search(message)] == []


@table_rows("kind", SPECS)
def test_a_refused_field_of_the_file_or_of_the_admin_api_is_told_in_the_words_of_json(kind: type[Any]) -> None:
    tables: list[Any] = [{field.name: value} for field in attrs.fields(kind) for value in BAD]
    for field in attrs.fields(kind):
        if isinstance(field.type, type) and attrs.has(field.type):
            tables += [{field.name: {part.name: value}} for part in attrs.fields(field.type) for value in BAD]
    reported = list_refusals(lambda table: parse_spec(table, kind), *tables, *BAD)
    assert reported
    assert [message for message in reported if PYTHON.search(message)] == []


@table_rows("value", BAD, ids=repr)
def test_a_value_in_the_command_line_has_no_exponent_and_no_brackets(value: Any) -> None:
    assert not PYTHON.search(format_value(value))
    assert not PYTHON.search(format_change("models", value, [value]))
