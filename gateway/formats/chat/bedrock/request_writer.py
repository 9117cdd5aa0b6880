"""Build a request in Bedrock's Converse format from the common chat model.

Shapes: docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html. The format resembles Anthropic's, so
the writer of Anthropic's format first builds the message, with its rules for turns, tools and reasoning. This module
converts the result. Fields that only some models support go to ``additionalModelRequestFields``: those of Claude
(docs.aws.amazon.com/bedrock/latest/userguide/claude-messages-adaptive-thinking.html), Nova
(docs.aws.amazon.com/nova/latest/nova2-userguide/extended-thinking.html) and gpt-oss
(docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-openai.html).
"""

import re
from typing import Any

import attrs
import orjson

from gateway.domain import exact_json
from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.anthropic.model_features import parse_claude_features
from gateway.formats.chat.anthropic.request_writer import build_body as build_message
from gateway.formats.chat.anthropic.request_writer import find_rules as find_message_rules
from gateway.formats.chat.bedrock.blocks import MAX_NAME_CHARS, BlockWriter, Body, build_cache_point
from gateway.formats.chat.valid_chat import ChatRules
from gateway.formats.wire.json_values import as_list, as_object

_SAMPLING_NAMES = {"temperature": "temperature", "top_p": "topP", "stop_sequences": "stopSequences"}
_EFFORTS: dict[str, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high",
                            "max": "high"}  # fmt: skip
"""The efforts of Nova and gpt-oss, by the common model's efforts."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_TOOLS_TEXT = "Call no tools in this turn: answer in words."


def find_rules(model: str) -> ChatRules:
    """Return the rules for ``model``, a provider's model name.

    The rule for tool names is that of ``ToolSpecification``
    (docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html).
    """
    return attrs.evolve(find_message_rules(model), name=_TOOL_NAME, max_name_chars=MAX_NAME_CHARS)


def build_body(request: chat.ChatRequest, model: str) -> Body:
    """Build the body for ``/converse`` and ``/converse-stream``. Raises ``InvalidRequest`` for an unsupported field."""
    is_claude = parse_claude_features(model).is_claude
    message = build_message(request if is_claude else _strip_reasoning(request), model, stream=False)
    writer = BlockWriter(takes_cache_points=is_claude or "nova" in model)
    body: Body = {"messages": [writer.build_turn(turn) for turn in message["messages"]]}
    system = writer.build_blocks(message.get("system", []))
    if request.tool_choice == "none" and writer.called_names:
        system.append({"text": _NO_TOOLS_TEXT})
    if system:
        body["system"] = system
    inference_config = {vendor_name: message[name] for name, vendor_name in _SAMPLING_NAMES.items() if name in message}
    if (
        is_claude or request.max_tokens is not None
    ):  # other models have a default; Anthropic's writer always sets a number
        inference_config["maxTokens"] = message["max_tokens"]
    extra_fields = (
        _build_claude_fields(message) if is_claude else _build_reasoning_fields(request, model, inference_config)
    )
    if (top_k := message.get("top_k")) is not None:
        extra_fields |= _build_top_k_fields(top_k, model)
    if inference_config:
        body["inferenceConfig"] = inference_config
    if extra_fields:
        body["additionalModelRequestFields"] = extra_fields
    return body | _build_tools(request, message, writer) | _build_format(request, message)


def _strip_reasoning(request: chat.ChatRequest) -> chat.ChatRequest:
    """Return the request without what Anthropic's format expresses for Claude only.

    These are the reasoning of earlier turns, the reasoning budget and the effort.
    """
    messages = tuple(
        attrs.evolve(message, parts=tuple(part for part in message.parts if not isinstance(part, chat.ReasoningPart)))
        for message in request.messages
    )
    return attrs.evolve(request, messages=messages, thinking_tokens=None, effort=None)


def _build_claude_fields(message: Body) -> Body:
    extra_fields: Body = {"thinking": message["thinking"]} if "thinking" in message else {}
    effort = as_object(message.get("output_config")).get("effort")
    return extra_fields | ({"output_config": {"effort": effort}} if effort else {})


def _build_reasoning_fields(request: chat.ChatRequest, model: str, inference_config: Body) -> Body:
    """Build the reasoning effort for Nova 2 and gpt-oss; an empty dict for other models, or if none is requested.

    Nova accepts neither ``maxTokens`` nor sampling parameters with its highest effort. If ``maxTokens`` is set, the
    effort is lowered. Otherwise the sampling parameters are removed from ``inference_config``.
    """
    effort = request.effort or _find_effort(request.thinking_tokens)
    if effort is None:
        return {}
    if "gpt-oss" in model:
        return {"reasoning_effort": _EFFORTS.get(effort, "low")}
    if "nova-2" not in model:
        return {}
    if effort == "none":
        return {"reasoningConfig": {"type": "disabled"}}
    level = _EFFORTS[effort]
    if level == "high" and "maxTokens" in inference_config:
        level = "medium"
    elif level == "high":
        inference_config.pop("temperature", None)
        inference_config.pop("topP", None)
    return {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": level}}


def _find_effort(tokens: int | None) -> chat.Effort | None:
    if tokens is None:
        return None
    efforts: tuple[chat.Effort, ...] = ("none", "low", "medium", "high")
    return next((effort for effort in reversed(efforts) if chat.EFFORT_TOKENS[effort] <= tokens), "none")


def _build_top_k_fields(top_k: int, model: str) -> Body:
    """Build ``top_k`` for models that support it. It only tunes the answer, so it is dropped for other models."""
    if "nova" in model:
        return {"inferenceConfig": {"topK": top_k}}
    return {"top_k": top_k} if "claude" in model or "mistral" in model else {}


def _build_tools(request: chat.ChatRequest, message: Body, writer: BlockWriter) -> Body:
    """Build ``toolConfig``, which the API also requires if only earlier turns used tools; empty without tools."""
    tools: list[Body] = []
    for tool in as_list(message.get("tools")):
        tools += [_build_tool(tool), *build_cache_point(tool, is_allowed=writer.takes_cache_points)]
    choice = as_object(message.get("tool_choice"))
    if choice.get("type") == "none":
        if not writer.called_names:
            return {}
        choice = {}  # the format cannot forbid tools, so a system text (``_NO_TOOLS_TEXT``) does
    if not tools:
        tools = [_build_tool({"name": name, "input_schema": {"type": "object"}}) for name in writer.called_names]
    if not tools:
        return {}
    is_forced = "type" in choice and request.tool_choice is not None
    return {"toolConfig": {"tools": tools} | ({"toolChoice": _build_choice(choice)} if is_forced else {})}


def _build_tool(tool: Body) -> Body:
    spec: Body = {"name": tool["name"], "inputSchema": {"json": tool["input_schema"]}}
    spec |= {name: tool[name] for name in ("description", "strict") if name in tool}
    return {"toolSpec": spec}


def _build_choice(choice: Body) -> Body:
    if choice["type"] == "tool":
        return {"tool": {"name": choice["name"]}}
    return {choice["type"]: {}}


def _build_format(request: chat.ChatRequest, message: Body) -> Body:
    response_format = as_object(as_object(message.get("output_config")).get("format"))
    if not response_format:
        return {}
    try:
        schema: dict[str, Any] = {"schema": exact_json.dumps(response_format.get("schema")).decode()}
    except orjson.JSONEncodeError:
        raise InvalidRequest("The schema is nested too deeply to be passed on", param="response_format") from None
    if request.format is not None and request.format.name:
        schema["name"] = request.format.name
    return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}}
