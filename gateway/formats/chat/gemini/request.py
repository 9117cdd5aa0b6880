"""Requests in Gemini's format: checks of a body, and an upper bound of its prompt's tokens.

Unknown fields and parts are allowed: a provider of the same format may support them. The model is in the path.
"""

from collections.abc import Iterable
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import GENERATION_CONFIG as CONFIG
from gateway.domain.usage import MAX_TOKENS
from gateway.errors import InvalidRequest
from gateway.formats.chat.anthropic.request import REMOTE_DOCUMENT_TOKENS, TOOLS_TOKENS, Size, measure_document
from gateway.formats.chat.gemini.field_names import unify_names
from gateway.formats.usage.token_bounds import MAX_RESERVED_OUTPUT, MESSAGE_TOKENS, PART_TOKENS, bound_json, bound_text
from gateway.formats.wire.fields import (
    MAX_TEMPERATURE,
    Body,
    name_json_type,
    parse_integer,
    parse_list,
    parse_model,
    parse_number,
    parse_object,
    read_text,
)

MAX_CANDIDATES = 8
_MAX_AFFINITY_CHARS = 256
_SEED_LIMIT = 2**31
_CONTENT_ROLES = (None, "", "user", "model", "function", "tool")
_INTEGER_FIELDS = (
    ("maxOutputTokens", 1, MAX_TOKENS),
    ("candidateCount", 1, MAX_CANDIDATES),
    ("topK", 0, MAX_TOKENS),
    ("seed", -_SEED_LIMIT, _SEED_LIMIT - 1),
)
_NUMBER_FIELDS = (
    ("temperature", 0.0, MAX_TEMPERATURE),
    ("topP", 0.0, 1.0),
    ("presencePenalty", -2.0, 2.0),
    ("frequencyPenalty", -2.0, 2.0),
)
_MISPLACED_FIELDS = frozenset({"maxOutputTokens", "candidateCount", "responseModalities"})
"""Fields of ``generationConfig`` that bound a request, and are therefore rejected at the top level of the body."""
_PROMPT_SCHEMAS = ("responseSchema", "responseJsonSchema")


def parse_generate_inference(body: Body, *, model: str, stream: bool = False) -> InferenceRequest:
    """Check a body for ``:generateContent`` and return the request. Raises ``InvalidRequest`` naming the field."""
    model = parse_model({"model": model})
    body = unify_names(body)
    config = check_body(body)
    chars, tokens = measure_prompt(body)
    max_output_tokens: int = config.get("maxOutputTokens") or MAX_RESERVED_OUTPUT
    cached_content = read_text(body, "cachedContent")
    return InferenceRequest(
        operation="generate_content",
        model=model,
        body=body,
        stream=stream,
        choices=config.get("candidateCount") or 1,
        include_usage=True,
        prompt_chars=chars,
        max_prompt_tokens=tokens,
        max_output_tokens=min(max_output_tokens, MAX_RESERVED_OUTPUT),
        affinity_key=cached_content if cached_content and len(cached_content) <= _MAX_AFFINITY_CHARS else None,
    )


def check_body(body: Body) -> Body:
    """Check a body with unified names, and drop ``model`` and empty instructions. Raises ``InvalidRequest``.

    Returns the ``generationConfig``, which is empty if there is none. Integers that came as floats are converted.
    """
    body.pop("model", None)  # the path names it
    misplaced_field = next((name for name in body if name in _MISPLACED_FIELDS), None)
    if misplaced_field is not None:
        raise InvalidRequest(f"'{misplaced_field}' belongs in '{CONFIG}'", param=misplaced_field)
    contents = parse_list(body, "contents")
    if not contents:
        raise InvalidRequest("Missing required field 'contents': at least one content", param="contents")
    for index, content in enumerate(contents):
        check_content(content, f"contents[{index}]")
    if isinstance(instructions := body.get("systemInstruction"), dict) and instructions.get("parts") in (None, []):
        del body["systemInstruction"]  # some clients send an empty system instruction
    if body.get("systemInstruction") is not None:
        check_content(body["systemInstruction"], "systemInstruction", checks_role=False)
    for index, tool in enumerate(parse_list(body, "tools") or ()):
        _check_tool(tool, f"tools[{index}]")
    calling_param = "toolConfig.functionCallingConfig"
    parse_object({calling_param: (parse_object(body, "toolConfig") or {}).get("functionCallingConfig")}, calling_param)
    parse_list(body, "safetySettings")
    return _check_config(parse_object(body, CONFIG) or {})


def _check_config(config: Body) -> Body:
    _unify_integers(config, "topK", "maxOutputTokens", "candidateCount", "seed")
    config_fields = {f"{CONFIG}.{name}": value for name, value in config.items()}
    for name, low, high in _INTEGER_FIELDS:
        parse_integer(config_fields, f"{CONFIG}.{name}", low, high)
    for name, minimum, maximum in _NUMBER_FIELDS:
        parse_number(config_fields, f"{CONFIG}.{name}", minimum, maximum)
    for name in ("stopSequences", "responseModalities"):
        param = f"{CONFIG}.{name}"
        for index, item in enumerate(parse_list(config_fields, param) or ()):
            _check_text(item, f"{param}[{index}]")
    for name in ("responseSchema", "responseJsonSchema", "thinkingConfig"):
        parse_object(config_fields, f"{CONFIG}.{name}")
    read_text(config_fields, f"{CONFIG}.responseMimeType")
    thinking_config: Body = config.get("thinkingConfig") or {}
    _unify_integers(thinking_config, "thinkingBudget")
    thinking_fields = {f"{CONFIG}.thinkingConfig.{name}": value for name, value in thinking_config.items()}
    parse_integer(thinking_fields, f"{CONFIG}.thinkingConfig.thinkingBudget", -1, MAX_TOKENS)
    read_text(thinking_fields, f"{CONFIG}.thinkingConfig.thinkingLevel")
    return config


def _unify_integers(fields: Body, *names: str) -> None:
    """Convert floats without a fraction into integers in place, because Google's SDK sends ``topK`` as a float."""
    for name in names:
        value = fields.get(name)
        if type(value) is float and value.is_integer():
            fields[name] = int(value)


def check_content(content: object, param: str, *, checks_role: bool = True) -> None:
    """Raise ``InvalidRequest`` unless ``content``, found at ``param``, is valid.

    ``checks_role`` says whether the role of the content is checked, too. An empty answer of the model gets an empty
    list of parts.
    """
    fields = check_object(content, param)
    role = fields.get("role")
    if checks_role and role not in _CONTENT_ROLES:
        raise InvalidRequest(f"'{param}.role' must be user or model", param=f"{param}.role")
    parts = fields.get("parts")
    if not parts and parts in (None, []) and fields.get("role") == "model":  # the client sends an empty answer back
        fields["parts"] = []
        return
    if not isinstance(parts, list) or not parts:
        raise InvalidRequest(f"'{param}.parts' must be an array of at least one part", param=f"{param}.parts")
    for index, part in enumerate(parts):
        _check_part(part, f"{param}.parts[{index}]")


def _check_part(part: object, param: str) -> None:
    fields = check_object(part, param)
    if fields.get("text") is not None:
        _check_text(fields["text"], f"{param}.text")
    for name, text_names, object_names in (
        ("inlineData", ("mimeType", "data"), ()),
        ("fileData", ("fileUri",), ()),
        ("functionCall", ("name",), ("args",)),
        ("functionResponse", ("name",), ("response",)),
    ):
        if fields.get(name) is None:
            continue
        part_fields = check_object(fields[name], f"{param}.{name}")
        for text_name in text_names:
            _check_text(part_fields.get(text_name), f"{param}.{name}.{text_name}")
        for object_name in object_names:
            if part_fields.get(object_name) is not None:
                check_object(part_fields[object_name], f"{param}.{name}.{object_name}")
        if name == "functionResponse":
            _check_result_parts(part_fields, f"{param}.{name}")


def _check_result_parts(response: Body, param: str) -> None:
    parts = response.get("parts")
    if parts is not None and not isinstance(parts, list):
        raise InvalidRequest(f"'{param}.parts' must be an array, not {name_json_type(parts)}", param=f"{param}.parts")
    for index, part in enumerate(parts or ()):
        _check_part(part, f"{param}.parts[{index}]")


def _check_tool(tool: object, param: str) -> None:
    fields = check_object(tool, param)
    declarations = fields.get("functionDeclarations")
    if declarations is not None and not isinstance(declarations, list):
        list_param = f"{param}.functionDeclarations"
        raise InvalidRequest(f"'{list_param}' must be an array, not {name_json_type(declarations)}", param=list_param)
    for index, declaration in enumerate(declarations or ()):
        declaration_param = f"{param}.functionDeclarations[{index}]"
        declaration_fields = check_object(declaration, declaration_param)
        _check_text(declaration_fields.get("name"), f"{declaration_param}.name")
        for name in ("parameters", "parametersJsonSchema"):
            if declaration_fields.get(name) is not None:
                check_object(declaration_fields[name], f"{declaration_param}.{name}")


def check_object(value: object, param: str) -> Body:
    """Return ``value`` if it is an object. Raises ``InvalidRequest`` naming ``param`` otherwise."""
    if isinstance(value, dict):
        return value
    raise InvalidRequest(f"'{param}' must be an object, not {name_json_type(value)}", param=param)


def _check_text(value: object, param: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"'{param}' must be a string, not {name_json_type(value)}", param=param)


def measure_prompt(body: Body) -> Size:
    """Return the size of the prompt of a checked body."""
    sizes = [measure_parts(content["parts"]) for content in body["contents"]]
    system = body.get("systemInstruction")
    if system is not None:
        sizes.append(measure_parts(system["parts"]))
    chars, tokens = _add_sizes(sizes)
    config = body.get(CONFIG) or {}
    tokens += sum(bound_json(schema) for name in _PROMPT_SCHEMAS if (schema := config.get(name)))
    if body.get("tools"):
        tokens += bound_json(body["tools"]) + TOOLS_TOKENS
    return chars, tokens + MESSAGE_TOKENS * (len(sizes) + 1)


def measure_parts(parts: list[Any]) -> Size:
    """Return the size of checked parts."""
    return _add_sizes(map(_measure_part, parts))


def _add_sizes(sizes: Iterable[Size]) -> Size:
    chars = tokens = 0
    for part_chars, part_tokens in sizes:
        chars += part_chars
        tokens += part_tokens
    return chars, tokens


def _measure_part(part: Body) -> Size:
    chars = tokens = 0
    for name, value in part.items():
        if name == "text" and value is not None:
            chars += len(value)
            tokens += bound_text(value)
        elif name == "inlineData" and value is not None:
            is_pdf = value["mimeType"] == "application/pdf"
            source = {"source": {"type": "base64", "data": value["data"]}}
            tokens += measure_document(source)[1] if is_pdf else PART_TOKENS
        elif name == "fileData" and value is not None:
            tokens += REMOTE_DOCUMENT_TOKENS
        elif value:
            tokens += bound_json(value)
    return chars, tokens
