"""Make a chat request valid for a provider's API format, before a writer builds the body.

A chat may come from any client, and any provider may have answered its earlier turns. The gateway therefore
adapts a history: parts that the format does not allow are moved, renamed or written as text.
Requirements of one vendor or model are quirks (``providers/``).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

import attrs

from gateway.domain import exact_json
from gateway.domain.output_limits import find_longest_answer
from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.call_ids import find_unused_id
from gateway.formats.chat.openai.strict_schema import is_strict
from gateway.frozen import frozen

OPENING_TEXT = "."
"""The shortest text, for a user turn that a format requires and the client's chat lacks."""
ANSWER_TOOL = "answer_in_json"
"""Name of the tool through which a model without structured output gives its answer."""
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_CHARS = 8
_MAX_DEPTH = 100
"""Maximum nesting of a tool's arguments; the body that contains them must still be serializable."""
_JSON_ONLY_INSTRUCTION = "Answer with a single JSON object and nothing else: no words around it, no code fence."


@frozen
class ChatRules:
    """The rules of an API format for one model.

    Attributes:
        name: pattern of a valid tool name.
        schemas: how a schema for the answer is enforced: by the format's own field; by that field, unless tools are
            offered; or by a tool that the model is forced to call.
        requires_json_word: whether "any JSON object" requires the word JSON in a message.
        checks_strict: whether a strict schema must list every property as required and allow no others.
        allows_blank_stops: whether a stop sequence may consist of white space.
        thinks_when_forced: whether the model may think before a forced tool call.
        requires_leading_system: whether system messages must precede all others.
        takes_media: returns whether the format accepts a file of an earlier turn; None if it accepts all files.
        takes_prefill: whether the model continues a final assistant message.
    """

    name: re.Pattern[str]
    max_name_chars: int
    schemas: Literal["native", "without_tools", "tool"] = "native"
    requires_json_word: bool = False
    checks_strict: bool = False
    gives_logprobs: bool = True
    allows_blank_stops: bool = True
    thinks_when_forced: bool = True
    requires_leading_system: bool = False
    takes_media: Callable[[chat.MediaPart], bool] | None = None
    takes_prefill: bool = True


CHAT_RULES = ChatRules(re.compile(r"[A-Za-z0-9_-]{1,64}"), 64, requires_json_word=True, checks_strict=True)
"""Rules of OpenAI's OpenAPI document (``FunctionObject``, ``ResponseFormatJsonObject``); other vendors follow them."""
_SYSTEM_FIRST_RULES = attrs.evolve(CHAT_RULES, requires_leading_system=True)
_OPENAI_MODELS = re.compile(r"(openai/)?(gpt-(?!oss)|chatgpt-|o\d).*")


def find_chat_rules(model: str) -> ChatRules:
    """Return the rules for ``model`` in OpenAI's format.

    The chat templates of Qwen and Mistral reject a system message that does not come first; OpenAI's models accept it.
    """
    return CHAT_RULES if _OPENAI_MODELS.fullmatch(model) else _SYSTEM_FIRST_RULES


@frozen
class ValidChat:
    """A request that is valid in the provider's format.

    Attributes:
        names: the client's names of renamed tools, by the names in ``request``.
        answer_tool: name of the tool through which the model gives its answer; empty if there is none.
    """

    request: chat.ChatRequest
    names: Mapping[str, str] = attrs.Factory(dict)
    answer_tool: str = ""


def make_valid(request: chat.ChatRequest, rules: ChatRules, model: str, longest_answer: int = 0) -> ValidChat:
    """Convert ``request`` into one that ``rules`` allow.

    Raises ``InvalidRequest`` for a blank stop sequence or a final assistant message if ``rules`` do not allow it.

    ``longest_answer`` is the configured limit of the model's answers, in tokens; if it is 0, the gateway's own table
    gives the limit.
    """
    if not rules.allows_blank_stops and any(not sequence.strip() for sequence in request.stop):
        raise InvalidRequest("'stop' must not be blank: this provider stops at no white space", param="stop")
    changed_parts = dict.fromkeys(request.adapted)
    sent_messages = _lead_with_system(request.messages) if rules.requires_leading_system else request.messages
    messages = _end_with_user(
        _join_messages(_pair_results(_join_messages(sent_messages), changed_parts)), request.messages
    )
    if not rules.takes_prefill and messages and messages[-1].role == "assistant":
        raise InvalidRequest(
            f"'{model}' does not continue a message of the assistant: the last one must be the user's", param="messages"
        )
    if rules.takes_media is not None:
        messages = _replace_media(messages, rules.takes_media, changed_parts)
    new_names = _fit_names(request, messages, rules)
    changed_parts.update(dict.fromkeys(_list_lost_features(request, rules)))
    model_limit = longest_answer or find_longest_answer(model)
    max_tokens = request.max_tokens
    if max_tokens is not None and 0 < model_limit < max_tokens:
        max_tokens = model_limit
        changed_parts["max_tokens"] = None
    fitted_request = attrs.evolve(
        request,
        messages=tuple(messages),
        tools=tuple(_fit_tools(request.tools, rules)),
        max_tokens=max_tokens,
        top_logprobs=request.top_logprobs if rules.gives_logprobs else None,
        adapted=tuple(changed_parts),
    )
    answer_tool = _find_answer_tool(fitted_request, rules)
    return attrs.evolve(
        _rename_tools(_fit_format(fitted_request, rules, answer_tool), new_names), answer_tool=answer_tool
    )


def find_losses(request: chat.ChatRequest, rules: ChatRules) -> int:
    """Count the requested features that ``rules`` drop, or replace by a tool or by a sentence to the model."""
    response_format = request.format
    is_worded = response_format is not None and response_format.kind == "schema" and rules.schemas != "native"
    has_free_schema = rules.schemas == "without_tools" and not request.tools
    return sum(1 for _ in _list_lost_features(request, rules)) + (is_worded and not has_free_schema)


def _list_lost_features(request: chat.ChatRequest, rules: ChatRules) -> Iterator[str]:
    if request.top_logprobs is not None and not rules.gives_logprobs:
        yield "logprobs"
    is_forced = request.tool_choice == "required" or isinstance(request.tool_choice, chat.ForcedTool)
    if is_forced and not rules.thinks_when_forced and (request.thinking_tokens or request.effort not in {None, "none"}):
        yield "thinking"
    if len({tool.name for tool in request.tools}) < len(request.tools):
        yield "tools"
    if rules.checks_strict and any(tool.strict and not is_strict(tool.schema or {}) for tool in request.tools):
        yield "tools.strict"


# History


def _join_messages(messages: Iterable[chat.Message]) -> list[chat.Message]:
    """Join consecutive messages of the user or the assistant, and drop empty ones.

    A system message stays separate; one that follows a tool call is moved before the call.
    """
    joint_messages: list[chat.Message] = []
    for message in messages:
        if not message.parts:
            continue
        last_message = joint_messages[-1] if joint_messages else None
        if last_message is None or message.role not in {last_message.role, "system"}:
            joint_messages.append(message)
        elif message.role == "system":
            joint_messages.insert(len(joint_messages) - _calls_tools(last_message), message)
        else:
            joint_messages[-1] = chat.Message(last_message.role, last_message.parts + message.parts)
    return joint_messages


def _replace_media(
    messages: list[chat.Message], is_accepted: Callable[[chat.MediaPart], bool], changed_parts: dict[str, None]
) -> list[chat.Message]:
    """Replace files that the format does not accept, up to the last answer, by placeholder texts.

    The kinds of the replaced files are added to ``changed_parts``. Files after the last answer stay.
    """
    last_answer_index = max(
        (index for index, message in enumerate(messages) if message.role == "assistant"), default=-1
    )

    def replace(part: Any) -> Any:
        if isinstance(part, chat.ToolResultPart):
            return attrs.evolve(part, parts=tuple(map(replace, part.parts)))
        if not isinstance(part, chat.MediaPart) or is_accepted(part):
            return part
        changed_parts[part.kind] = None
        return chat.TextPart(f"[{part.kind}: a file that this model cannot read]")

    return [
        attrs.evolve(message, parts=tuple(map(replace, message.parts))) if index <= last_answer_index else message
        for index, message in enumerate(messages)
    ]


def _end_with_user(messages: list[chat.Message], original_messages: Sequence[chat.Message]) -> list[chat.Message]:
    """Make the user's turn the last one, except after a system message or an answer that the client wants continued.

    A blank last user message after an answer is replaced, because formats drop blank texts. A last tool call without a
    result has already become text, and no model should continue that text.
    """
    if not messages:
        return messages
    last_message, opening_turn = messages[-1], chat.Message("user", (chat.TextPart(OPENING_TEXT),))
    if last_message.role == "user":
        has_answer = any(message.role == "assistant" for message in messages)
        return [*messages[:-1], opening_turn] if has_answer and all(map(_is_blank, last_message.parts)) else messages
    is_continued = original_messages[-1].role == "assistant" and not _calls_tools(original_messages[-1])
    return messages if is_continued or last_message.role == "system" else [*messages, opening_turn]


def _is_blank(part: chat.Part) -> bool:
    return isinstance(part, chat.TextPart) and not part.text.strip()


def _lead_with_system(messages: Sequence[chat.Message]) -> Sequence[chat.Message]:
    """Move system messages to the front, but only those before the first user message that follows an answer.

    Agents insert later ones while they work. Moving these would invalidate the prompt cache each time, so they stay in
    place as user messages.
    """
    roles = [message.role for message in messages]
    if "system" not in roles[1:]:
        return messages
    first_answer_index = roles.index("assistant") if "assistant" in roles else len(roles)
    end_index = roles.index("user", first_answer_index) if "user" in roles[first_answer_index:] else len(roles)
    leading_messages = sorted(messages[:end_index], key=_is_not_system)
    return [
        *leading_messages,
        *(
            attrs.evolve(later_message, role="user") if later_message.role == "system" else later_message
            for later_message in messages[end_index:]
        ),
    ]


def _is_not_system(message: chat.Message) -> bool:
    return message.role != "system"


def _calls_tools(message: chat.Message) -> bool:
    return any(isinstance(part, chat.ToolCallPart) for part in message.parts)


def _pair_results(messages: Sequence[chat.Message], changed_parts: dict[str, None]) -> Iterator[chat.Message]:
    """Yield the messages with each tool result in the user message after its call, and with unique call ids.

    Calls and results without a partner become text and are noted in ``changed_parts``.
    """
    call_ids, results = _find_pairs(messages)
    moved_results: dict[PartLocation, chat.ToolResultPart] = {}
    for message_index, message in enumerate(messages):
        parts: list[chat.Part] = [moved_results[part_index] for part_index in sorted(moved_results)]
        moved_results = {}
        for part_index, part in enumerate(message.parts):
            location = (message_index, part_index)
            if isinstance(part, chat.ToolCallPart):
                if location in results:
                    call = _fit_call(part, call_ids[location], changed_parts)
                    parts.append(call)
                    call_id, result = results[location]
                    moved_results[call_id] = attrs.evolve(result, id=call.id)
                else:
                    parts.append(_write_call(part))
                    changed_parts["tool_call"] = None
            elif not isinstance(part, chat.ToolResultPart):
                parts.append(part)
            elif location not in call_ids:
                parts += _write_result(part)
                changed_parts["tool_result"] = None
        yield chat.Message(message.role, tuple(parts))
        if moved_results and (message_index + 1 == len(messages) or messages[message_index + 1].role != "user"):
            yield chat.Message("user", tuple(moved_results[part_index] for part_index in sorted(moved_results)))
            moved_results = {}


PartLocation = tuple[int, int]
"""The index of a message and of a part in the message."""
MatchedResult = tuple[PartLocation, chat.ToolResultPart]


def _find_pairs(messages: Sequence[chat.Message]) -> tuple[dict[PartLocation, str], dict[PartLocation, MatchedResult]]:
    """Return a unique id for each call and each matched result, by location, and the result of each answered call.

    A result belongs to the last earlier message with a call of its id.
    """
    call_ids: dict[PartLocation, str] = {}
    results: dict[PartLocation, MatchedResult] = {}
    open_calls: dict[str, list[PartLocation]] = {}
    used_ids: set[str] = set()
    for message_index, message in enumerate(messages):
        for part_index, part in enumerate(message.parts):
            if isinstance(part, chat.ToolCallPart):
                candidates = [
                    call_index for call_index in open_calls.get(part.id, ()) if call_index[0] == message_index
                ]
                open_calls[part.id] = [*candidates, (message_index, part_index)]
                call_ids[message_index, part_index] = find_unused_id(part.id or "call", used_ids)
                used_ids.add(call_ids[message_index, part_index])
            elif isinstance(part, chat.ToolResultPart) and open_calls.get(part.id):
                call_location = open_calls[part.id].pop(0)
                call_ids[message_index, part_index] = call_ids[call_location]
                results[call_location] = ((message_index, part_index), part)
    return call_ids, results


def _fit_call(call: chat.ToolCallPart, call_id: str, changed_parts: dict[str, None]) -> chat.ToolCallPart:
    arguments = fit_arguments(call.arguments)
    if arguments == call.arguments and call_id == call.id:
        return call
    if arguments != call.arguments and call.arguments.strip():
        changed_parts["arguments"] = None
    return attrs.evolve(call, id=call_id, arguments=arguments)


def fit_arguments(arguments: str) -> str:
    """Return ``arguments`` if they are a JSON object, else an object with the text under the key ``arguments``.

    Blank arguments become an empty object. An object that is nested too deeply counts as text.
    """
    if not arguments.strip():
        return "{}"
    try:
        value = exact_json.load_arguments(arguments)
    except ValueError:
        value = None
    return arguments if isinstance(value, dict) and _is_shallow(value) else json.dumps({"arguments": arguments})


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Parse arguments into an object. Blank ones become an empty object; others are wrapped as in ``fit_arguments``."""
    try:
        value = exact_json.load_arguments(arguments if arguments.strip() else "{}")
    except ValueError:
        return {"arguments": arguments}
    return value if isinstance(value, dict) and _is_shallow(value) else {"arguments": arguments}


def _is_shallow(value: Any) -> bool:
    containers = [value]
    for _ in range(_MAX_DEPTH):
        inner_containers: list[Any] = []
        for container in containers:
            members = container.values() if isinstance(container, dict) else container
            inner_containers += [member for member in members if isinstance(member, dict | list)]
        if not inner_containers:
            return True
        containers = inner_containers
    return False


def _write_call(call: chat.ToolCallPart) -> chat.TextPart:
    return chat.TextPart(f"[Called the tool {call.name} with {call.arguments or '{}'}; there is no result.]")


def _write_result(result: chat.ToolResultPart) -> list[chat.Part]:
    text = "\n".join([part.text for part in result.parts if isinstance(part, chat.TextPart)])
    media_parts = [part for part in result.parts if isinstance(part, chat.MediaPart)]
    return [chat.TextPart(f"[{'Error' if result.failed else 'Result'} of an earlier tool call: {text}]"), *media_parts]


# Tools


def _fit_names(request: chat.ChatRequest, messages: Iterable[chat.Message], rules: ChatRules) -> dict[str, str]:
    call_names = (part.name for message in messages for part in message.parts if isinstance(part, chat.ToolCallPart))
    chosen_names = (request.tool_choice.name,) if isinstance(request.tool_choice, chat.ForcedTool) else ()
    names = dict.fromkeys((*(tool.name for tool in request.tools), *call_names, *chosen_names))
    return {name: _fit_name(name, rules) for name in names if not rules.name.fullmatch(name)}


def _fit_name(name: str, rules: ChatRules) -> str:
    """Return a valid tool name with a digest; a long name is cut at its start, because its end is more specific."""
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    plain_name = _INVALID_NAME_CHARS.sub("_", name)[_DIGEST_CHARS + 2 - rules.max_name_chars :]
    return f"{'' if plain_name[:1].isalpha() else '_'}{plain_name}_{digest}"


def _rename_tools(request: chat.ChatRequest, new_names: Mapping[str, str]) -> ValidChat:
    if not new_names:
        return ValidChat(request)

    def rename_call(part: chat.Part) -> chat.Part:
        if isinstance(part, chat.ToolCallPart) and part.name in new_names:
            return attrs.evolve(part, name=new_names[part.name])
        return part

    choice = request.tool_choice
    if isinstance(choice, chat.ForcedTool):
        choice = chat.ForcedTool(new_names.get(choice.name, choice.name))
    renamed_request = attrs.evolve(
        request,
        messages=tuple(
            chat.Message(message.role, tuple(map(rename_call, message.parts))) for message in request.messages
        ),
        tools=tuple(attrs.evolve(tool, name=new_names.get(tool.name, tool.name)) for tool in request.tools),
        tool_choice=choice,
    )
    return ValidChat(renamed_request, {new_name: old_name for old_name, new_name in new_names.items()})


def _fit_tools(tools: Iterable[chat.Tool], rules: ChatRules) -> Iterator[chat.Tool]:
    """Yield the first tool of each name. An object's schema gets ``type`` and ``properties`` where they are missing.

    ``strict`` is left out if the provider would refuse the schema because of it.
    """
    for tool in {tool.name: tool for tool in reversed([*tools])}.values().__reversed__():
        schema = tool.schema
        if schema is not None and schema.get("type", "object") == "object":
            added_fields: dict[str, Any] = (
                {} if schema.keys() & {"properties", "$ref", "anyOf", "oneOf", "allOf"} else {"properties": {}}
            )
            schema = {"type": "object", **schema, **added_fields}
        is_dropped = tool.strict and rules.checks_strict and not is_strict(schema or {})
        yield attrs.evolve(tool, schema=schema, strict=None if is_dropped else tool.strict)


# Form of the answer


def _find_answer_tool(request: chat.ChatRequest, rules: ChatRules) -> str:
    """Return an unused name for the tool through which the model answers; empty if no such tool is needed."""
    response_format = request.format
    # If the client forces a tool call, that call is the answer of this turn.
    is_forced = isinstance(request.tool_choice, chat.ForcedTool)
    if (
        rules.schemas != "tool"
        or response_format is None
        or response_format.kind == "json"
        or response_format.schema is None
        or not response_format.strict
        or is_forced
    ):
        return ""
    return find_unused_id(ANSWER_TOOL, {tool.name for tool in request.tools})


def _fit_format(request: chat.ChatRequest, rules: ChatRules, answer_tool: str) -> chat.ChatRequest:
    response_format = request.format
    if response_format is None:
        return request
    if response_format.schema is None or response_format.kind == "json":
        is_mentioned = not rules.requires_json_word or any(map(_mentions_json, request.messages))
        return request if is_mentioned else _add_instruction(request, _JSON_ONLY_INSTRUCTION)
    if rules.schemas == "native" or (rules.schemas == "without_tools" and not request.tools):
        return request
    textual_request = attrs.evolve(
        request, format=None, adapted=tuple(dict.fromkeys((*request.adapted, "response_format")))
    )
    if not answer_tool:
        return (
            textual_request
            if rules.schemas == "tool" and response_format.strict
            else _add_instruction(textual_request, describe_format(response_format))
        )
    # The model must call this tool, or one of the client's tools if it may call those.
    has_free_choice = request.tools and request.tool_choice != "none"
    tool = chat.Tool(answer_tool, "Give the answer to the user.", response_format.schema)
    tools = (*request.tools, tool)
    return attrs.evolve(
        textual_request, tools=tools, tool_choice="required" if has_free_choice else chat.ForcedTool(answer_tool)
    )


def _mentions_json(message: chat.Message) -> bool:
    return any(isinstance(part, chat.TextPart) and "json" in part.text.lower() for part in message.parts)


def _add_instruction(request: chat.ChatRequest, sentence: str) -> chat.ChatRequest:
    first_message, *other_messages = request.messages or (chat.Message("system", ()),)
    if first_message.role == "system":
        return attrs.evolve(
            request, messages=(chat.Message("system", (*first_message.parts, chat.TextPart(sentence))), *other_messages)
        )
    return attrs.evolve(request, messages=(chat.Message("system", (chat.TextPart(sentence),)), *request.messages))


def describe_format(response_format: chat.ResponseFormat) -> str:
    """Return the sentence that instructs the model to answer in the format ``response_format``."""
    if response_format.schema is None:
        return _JSON_ONLY_INSTRUCTION
    schema = exact_json.dumps(response_format.schema).decode()
    return f"{_JSON_ONLY_INSTRUCTION} It must satisfy this JSON schema: {schema}"
