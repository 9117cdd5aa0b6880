"""The hub's conversation -> the body of a request in Anthropic's language.

Shapes: Anthropic's API documentation, "Create a Message", and the type ``MessageCreateParams`` of its Python library.
What Anthropic's own layer for the convention passes over ("OpenAI SDK compatibility": ``seed``, penalties,
``logit_bias``) is passed over here too; what cannot be said is refused, so that another channel may be tried.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import orjson

from gateway.errors import InvalidRequest
from gateway.formats.anthropic.json_schema import narrow_schema
from gateway.formats.anthropic.media_blocks import build_matter
from gateway.formats.anthropic.model_features import ClaudeFeatures, build_dials, build_thinking, parse_generation
from gateway.formats.chat import (
    GEMINI_MARK,
    ChatRequest,
    ForcedTool,
    Json,
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    ResponseFormat,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)

Body = dict[str, Any]
Block = dict[str, Any]

OPENING = "."
"""What the user says before an assistant that speaks first: the first message has to be the user's."""
_MAX_DEPTH = 100
"""Of a tool's arguments; the whole body may go a little deeper before it cannot be written any more."""
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")
_KEPT_OF_ID = 40
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_JSON_ONLY = "Answer with a single JSON object and nothing else: no words around it, no code fence."


def build_body(conversation: ChatRequest, model: str, *, stream: bool) -> Body:
    """The body for ``POST /v1/messages`` under the provider's name of the model; fresh, but for what it quotes.

    Every system turn goes to ``system``, in order, wherever it stood; turns of one role that follow each other become
    one. "Any JSON object" has no word here and becomes a sentence in ``system``, as does a schema that is no promise
    (not strict) for a model that cannot be held to one.

    Raises:
        InvalidRequest: what this language, or this model in it, has no words for, naming the convention's field.
    """
    if conversation.choices > 1:
        raise InvalidRequest("'n' must be 1: this provider gives one answer", param="n")
    generation = parse_generation(model)
    system, messages = _build_turns(conversation, generation)
    _check_last(messages, model, generation)
    forced = _is_forced(conversation)
    if forced and not generation.forces:
        raise InvalidRequest(f"'{model}' cannot be made to use a tool", param="tool_choice")
    may_budget = not forced and not misses_thought(messages)
    thinking = build_thinking(conversation, generation, may_budget=may_budget)
    thinks = thinking.get("thinking", {}).get("type") in {"enabled", "adaptive"}
    body: Body = {"model": model, **thinking, "messages": messages}
    if system:
        body["system"] = system[0]["text"] if len(system) == 1 and "cache_control" not in system[0] else system
    if conversation.tools:
        body["tools"] = [_build_tool(tool, generation) for tool in conversation.tools]
    body |= _build_tool_choice(conversation)
    body |= _build_format(conversation.format, generation, thinking)
    body |= build_dials(conversation, generation, thinks=thinks)
    stop = [sequence for sequence in conversation.stop if sequence.strip()]  # others are refused
    if stop:
        body["stop_sequences"] = stop
    if conversation.user:
        body["metadata"] = {"user_id": conversation.user}
    if stream:
        body["stream"] = True
    return body


def _build_turns(conversation: ChatRequest, generation: ClaudeFeatures) -> tuple[list[Block], list[Body]]:
    """``system`` and ``messages``. Where nobody but the system speaks last, its last words are said by the user."""
    turns = [turn for turn in conversation.turns if _says(turn)]
    spoken = [turn for turn in turns if turn.role != "system"]
    if turns and turns[-1].role == "system" and (not spoken or spoken[-1].role != "user"):
        turns[-1] = Message("user", turns[-1].parts)
        spoken.append(turns[-1])
    if not spoken:
        raise InvalidRequest("'messages' has nothing in it to answer", param="messages")
    system = _build_system(turn for turn in turns if turn.role == "system")
    if conversation.format is not None and not _holds(conversation.format, generation):
        system.append(_write_text(TextPart(_describe(conversation.format))))
    return system, _build_messages(spoken)


def _says(turn: Message) -> bool:
    """Whether anything is left of a turn without its blank texts and its thoughts that nobody signed."""
    return any(_is_sayable(part) for part in turn.parts)


def _is_sayable(part: Part) -> bool:
    match part:
        case TextPart():
            return bool(part.text.strip())  # the API refuses a text that is empty or blank
        case ReasoningPart():
            own = part.signature and not part.signature.startswith(GEMINI_MARK)
            return bool(own or part.redacted)
        case _:
            return True


def _build_system(turns: Iterable[Message]) -> list[Block]:
    blocks = []
    for turn in turns:
        for part in filter(_is_sayable, turn.parts):
            if not isinstance(part, TextPart):
                raise InvalidRequest("A system message can only be text for this provider", param="messages")
            blocks.append(_write_text(part))
    return blocks


def _build_messages(turns: Sequence[Message]) -> list[Body]:
    messages: list[Body] = []
    if turns[0].role == "assistant":
        messages.append({"role": "user", "content": [_write_text(TextPart(OPENING))]})
    for turn in turns:
        blocks = [_build_part(part, turn.role) for part in turn.parts if _is_sayable(part)]
        if messages and messages[-1]["role"] == turn.role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": turn.role, "content": blocks})
    for message in messages:
        content = message["content"]
        content.sort(key=lambda block: block["type"] != "tool_result")  # results have to stand first; the rest stays
        message["content"] = _shorten(content)
    return messages


def _shorten(blocks: list[Block]) -> list[Block] | str:
    """A single text as a plain string."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        text: str = blocks[0]["text"]
        return text
    return blocks


def _build_thought(thought: ReasoningPart) -> Block:
    if thought.redacted is not None:
        return {"type": "redacted_thinking", "data": thought.redacted}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _build_part(part: Part, role: str) -> Block:
    match part:
        case TextPart():
            return _write_text(part)
        case MediaPart() if (
            role == "assistant"
        ):  # made by another model, and this one takes none back from an assistant
            return _write_text(TextPart(f"[{part.kind}]"))
        case MediaPart():
            return _mark(build_matter(part), part.cache)
        case ReasoningPart():
            return _build_thought(part)
        case ToolCallPart():
            block = {"type": "tool_use", "id": build_call_id(part.id), "name": _build_name(part.name)}
            return _mark(block | {"input": _build_arguments(part.arguments)}, part.cache)
        case ToolResultPart():
            return _build_result(part)


def _write_text(part: TextPart) -> Block:
    return _mark({"type": "text", "text": part.text}, part.cache)


def _mark(block: Block, cache: Json | None) -> Block:
    return block if cache is None else block | {"cache_control": cache}


def _build_result(result: ToolResultPart) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": build_call_id(result.id)}
    content = [_build_part(part, "user") for part in result.parts if _is_sayable(part)]
    if content:
        block["content"] = _shorten(content)
    if result.failed:
        block["is_error"] = True
    return _mark(block, result.cache)


def build_call_id(original: str) -> str:
    """An id of the letters the API takes: the same for the same, different for different."""
    if _ID.fullmatch(original):
        return original
    return f"{_OTHER.sub('_', original)[:_KEPT_OF_ID]}_{_digest(original)}"


def _build_name(original: str) -> str:
    """The name of a tool in the past. One that can be used now has its own name, or is refused."""
    return original if _NAME.fullmatch(original) else build_call_id(original)[:128] if original else "unnamed"


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _build_arguments(arguments: str) -> Json:
    """The arguments as the object they have to be. What is no object is kept whole under ``arguments``.

    A model that wrote broken JSON was told so by the next message; refusing the conversation would help nobody.
    """
    if not arguments.strip():
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {"arguments": arguments}
    return value if isinstance(value, dict) and _is_flat(value) else {"arguments": arguments}


def _is_flat(value: Any) -> bool:
    """Whether ``value`` is nested no deeper than can be written back."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            members = container.values() if isinstance(container, dict) else container
            below += [member for member in members if isinstance(member, dict | list)]
        if not below:
            return True
        level = below
    return False


def _check_last(messages: list[Body], model: str, generation: ClaudeFeatures) -> None:
    """An assistant's message at the end is continued, by models that still do; it cannot end in blanks."""
    last = messages[-1]
    if last["role"] != "assistant":
        return
    if not generation.prefills:
        raise InvalidRequest(
            f"'{model}' does not continue a message of the assistant: the last one must be the user's", param="messages"
        )
    content = last["content"]
    if isinstance(content, str):
        last["content"] = content.rstrip()
    elif content[-1]["type"] == "text":
        content[-1]["text"] = content[-1]["text"].rstrip()


def misses_thought(messages: list[Body]) -> bool:
    """Whether the assistant's turn in progress uses a tool without the thought it began with.

    Where thinking counts in tokens such a turn has to begin with a thought; most languages have none to send back.
    """
    for message in reversed(messages):
        content = message["content"]
        kinds = [block["type"] for block in content] if isinstance(content, list) else ["text"]
        if message["role"] == "assistant":
            return "tool_use" in kinds and kinds[0] not in {"thinking", "redacted_thinking"}
        if message["role"] == "user" and "tool_result" not in kinds:
            return False
    return False


def _build_tool(tool: Tool, generation: ClaudeFeatures) -> Body:
    if not _NAME.fullmatch(tool.name):
        raise InvalidRequest(
            "A tool's name must be 1 to 128 letters, digits, '_' or '-' for this provider", param="tools"
        )
    strict = bool(tool.strict) and generation.structures
    schema = {"type": "object", **(tool.schema or {"properties": {}})}
    written: Body = {"name": tool.name, "input_schema": narrow_schema(schema) if strict else schema}
    if tool.description:
        written["description"] = tool.description
    if strict:
        written["strict"] = True
    return _mark(written, tool.cache)


def _is_forced(conversation: ChatRequest) -> bool:
    choice = conversation.tool_choice
    return choice == "required" or isinstance(choice, ForcedTool)


def _build_tool_choice(conversation: ChatRequest) -> Body:
    choice = conversation.tool_choice
    if not conversation.tools:  # the API takes a choice only beside tools
        if _is_forced(conversation):
            raise InvalidRequest("'tool_choice' asks for a tool, and 'tools' has none", param="tool_choice")
        return {}
    written: Body = {"type": "auto"}
    if isinstance(choice, ForcedTool):
        written = {"type": "tool", "name": choice.name}
    elif choice is not None:
        written = {"type": _CHOICES[choice]}
    if conversation.parallel_tools is False and written["type"] != "none":
        written["disable_parallel_tool_use"] = True
    return {"tool_choice": written} if choice is not None or len(written) > 1 else {}


def _holds(form: ResponseFormat, generation: ClaudeFeatures) -> bool:
    """Whether the model is held to the format. Raises where it would have to be and cannot."""
    if form.kind == "json" or form.schema is None:
        return False
    if form.strict and not generation.structures:
        raise InvalidRequest("This model cannot be held to a JSON schema", param="response_format")
    return generation.structures


def _describe(form: ResponseFormat) -> str:
    if form.schema is None:
        return _JSON_ONLY
    return f"{_JSON_ONLY} It must satisfy this JSON schema: {orjson.dumps(form.schema).decode()}"


def _build_format(form: ResponseFormat | None, generation: ClaudeFeatures, thinking: Body) -> Body:
    """``output_config`` with the schema, beside what it says about thinking; nothing where there is none to keep to."""
    if form is None or not _holds(form, generation):
        return {}
    written = {"type": "json_schema", "schema": narrow_schema(form.schema or {})}
    return {"output_config": {**thinking.get("output_config", {}), "format": written}}
