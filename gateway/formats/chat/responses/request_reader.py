"""Parse a Responses body into a ``ChatRequest``, for channels with another format.

Rejected, because the answer would not be what was requested: a tool executed by OpenAI that must be called, ``prompt``,
``moderation``, ``access_programs``, ``top_logprobs``, the logprobs among ``include``, ``background``, a response or a
conversation stored at OpenAI (``previous_response_id``, ``conversation``), uploaded files of this turn, and a
``service_tier`` other than the standard one. Left out and reported (``adapted``): OpenAI-executed tools that are only
offered, and ``context_management``. Dropped, because the answer is valid without them: ``metadata``,
``text.verbosity``, ``reasoning.summary`` (a model's reasoning is always shown), ``truncation``, ``max_tool_calls`` (of
OpenAI's own tools), ``store``, ``prompt_cache_*``, ``stream_options``, ``background_options``, ``image`` (of tools at
OpenAI), and every field that OpenAI does not document.
"""

from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import Adaptations
from gateway.formats.chat.openai.content_parts import expect_object, make_param_error
from gateway.formats.chat.openai.request_reader import (
    STANDARD_TIERS,
    check_tier,
    parse_effort,
    parse_parallel,
    parse_schema_name,
)
from gateway.formats.chat.responses.compaction import PROMPT, asks_for_summary
from gateway.formats.chat.responses.items import parse_items
from gateway.formats.chat.responses.tools import make_responses_only_error, parse_tools
from gateway.formats.wire import fields

_OPENAI_FIELDS = (
    "prompt", "moderation", "access_programs", "top_logprobs", "previous_response_id",
    "conversation",
)  # fmt: skip
_LOGPROBS_OPTION = "message.output_text.logprobs"


def parse_chat_request(body: fields.Body) -> chat.ChatRequest:
    """Parse a body checked by ``parse_responses_inference``. Raises ``InvalidRequest`` naming the field."""
    _reject_openai_only_fields(body)
    instructions = fields.read_text(body, "instructions")
    adaptations = Adaptations()
    messages = parse_items(body.get("input") or "", adaptations)
    if not messages:
        raise make_param_error("input", "'input' says nothing")
    if instructions:
        messages.insert(0, chat.Message("system", (chat.TextPart(instructions),)))
    tools, choice = parse_tools(body, adaptations)
    if body.get("context_management"):
        adaptations.add("context_management")
    is_compaction = asks_for_summary(body.get("input"))
    if is_compaction:
        messages.append(chat.Message("user", (chat.TextPart(PROMPT),)))
        choice = "none" if tools else None
    reasoning = fields.parse_object(body, "reasoning") or {}
    return chat.ChatRequest(
        messages=tuple(messages),
        max_tokens=body.get("max_output_tokens"),
        temperature=fields.parse_number(body, "temperature", 0, fields.MAX_TEMPERATURE),
        top_p=fields.parse_number(body, "top_p", 0, 1),
        tools=tools,
        tool_choice=choice,
        parallel_tools=parse_parallel(body),
        format=None if is_compaction else _parse_format(body),
        effort=parse_effort(reasoning.get("effort"), "reasoning.effort"),
        user=fields.read_text(body, "safety_identifier") or fields.read_text(body, "user") or None,
        adapted=tuple(adaptations.names),
    )


def _reject_openai_only_fields(body: fields.Body) -> None:
    for name in _OPENAI_FIELDS:
        if body.get(name):
            raise make_responses_only_error(name, f"'{name}'")
    check_tier(body, STANDARD_TIERS)
    if fields.parse_flag(body, "background"):
        raise make_responses_only_error("background", "'background'")
    if _LOGPROBS_OPTION in (fields.parse_list(body, "include") or ()):
        raise make_responses_only_error("include", f"'{_LOGPROBS_OPTION}' in 'include'")


def _parse_format(body: fields.Body) -> chat.ResponseFormat | None:
    text_settings = fields.parse_object(body, "text") or {}
    text_format = text_settings.get("format")
    if text_format is None:
        return None
    text_format = expect_object(text_format, "text.format")
    match text_format.get("type"):
        case "text":
            return None
        case "json_object":
            return chat.ResponseFormat("json")
        case "json_schema":
            json_schema = text_format.get("json_schema")  # the nested form of chat bodies
            text_format = json_schema if isinstance(json_schema, dict) else text_format
            strict = text_format.get("strict")
            return chat.ResponseFormat(
                "schema",
                expect_object(text_format.get("schema"), "text.format.schema"),
                parse_schema_name(text_format, "text.format"),
                strict if isinstance(strict, bool) else None,
            )
    raise make_param_error("text.format.type", "'text.format.type' must be text, json_object or json_schema")
