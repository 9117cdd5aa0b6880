"""Gemini, as a server that looks as closely as the real one.

Rules: ai.google.dev/api/generate-content, /api/caching (Content, Part, FunctionCall, FunctionResponse), /api/tokens,
/api/embeddings; ai.google.dev/gemini-api/docs/function-calling (a response for every call), /docs/thought-signatures
(Gemini 3 refuses a turn of calls whose first has none). Google reads JSON into messages: an unknown name is a 400.
"""

import base64
import re
from typing import Any

import orjson

from tests.support.providers import (
    KEY,
    Fails,
    Heard,
    Json,
    Provider,
    ReceivedImage,
    Refused,
    Says,
    decode,
    expect,
    expect_list,
    expect_number,
    expect_object,
    expect_text,
    split_words,
)
from tests.support.scripted_upstream import Received, Step, answer

FIELDS = {
    "contents", "tools", "toolConfig", "safetySettings", "systemInstruction", "generationConfig", "cachedContent",
}  # fmt: skip
PART = {"text", "inlineData", "fileData", "functionCall", "functionResponse", "thought", "thoughtSignature"}
CONFIG = {
    "stopSequences", "responseMimeType", "responseSchema", "responseJsonSchema", "responseModalities",
    "candidateCount", "maxOutputTokens", "temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty",
    "responseLogprobs", "logprobs", "speechConfig", "thinkingConfig", "mediaResolution",
}  # fmt: skip
LEVELS = {"MINIMAL", "LOW", "MEDIUM", "HIGH"}
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
PATH = re.compile(r"/v1beta/models/([^/:]+):(\w+)(\?alt=sse)?")
PREFILLS = re.compile(r"gemini-(2\.|3-|3\.1-)")
"""Models that continue a last turn of the model; later ones refuse it."""
SIGNATURE = base64.b64encode(b"what gemini thought").decode()
NO_SIGNATURE = "skip_thought_signature_validator"
STATUS = {
    400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL",
    503: "UNAVAILABLE",
}  # fmt: skip


class GeminiProvider(Provider):
    """``provider = "gemini"``, with a model that signs its calls."""

    slug = "gemini"
    model = "gemini-3-pro-preview"
    root = "/v1beta"

    def read(self, received: Received) -> list[Step]:
        expect(received.headers.get("x-goog-api-key") == KEY, "Method doesn't allow unregistered callers", 403)
        found = PATH.fullmatch(received.path)
        expect(found and received.method == "POST", "Not found", 404)
        assert found is not None
        model, method, sse = found.groups()
        expect((method == "streamGenerateContent") == (sse is not None), "a stream is asked for as events")
        match method:
            case "generateContent" | "streamGenerateContent":
                body = expect_object(received.json, "body", FIELDS)
                self.heard.append(
                    _hear(body, signed=model.startswith("gemini-3"), prefills=PREFILLS.match(model) is not None)
                )
                many = (body.get("generationConfig") or {}).get("candidateCount", 1)
                return self.speak(
                    sse is not None,
                    lambda says: _write_answer(says, model, many),
                    lambda says: _write_events(says, model, many),
                )
            case "countTokens":
                return [answer({"totalTokens": self._count(received.json, model)})]
            case "batchEmbedContents":
                return [answer(_embed(received.json, model))]
        raise Refused("Not found", 404)

    def _count(self, body: Json, model: str) -> int:
        body = expect_object(body, "body", {"contents", "generateContentRequest"})
        expect("contents" not in body, "contents and generateContentRequest exclude each other")
        asked = expect_object(body["generateContentRequest"], "generateContentRequest", {"model", *FIELDS})
        expect(asked.pop("model", None) == f"models/{model}", "generateContentRequest.model: wrong")
        self.heard.append(_hear(asked, signed=model.startswith("gemini-3")))
        return 42

    def write_error(self, fails: Fails) -> Json:
        status = STATUS.get(fails.status, "UNKNOWN")
        return {"error": {"code": fails.status, "message": fails.message, "status": status}}

    def write_late(self, fails: Fails) -> bytes:
        return b"data: " + orjson.dumps(self.write_error(fails)) + b"\r\n\r\n"


def _embed(body: Json, model: str) -> Json:
    requests = expect_list(expect_object(body, "body", {"requests"})["requests"], "requests")
    vectors = []
    for at, request in enumerate(requests):
        where = f"requests[{at}]"
        asked = expect_object(request, where, {"model", "content", "taskType", "title", "outputDimensionality"})
        expect(asked.get("model") == f"models/{model}", f"{where}.model: must be the model of the path")
        (part,) = expect_object(asked.get("content"), where, {"parts", "role"})["parts"]
        text = expect_text(part.get("text"), where)
        vectors.append({"values": [0.25, -0.5, len(text)][: asked.get("outputDimensionality", 3)]})
    return {"embeddings": vectors}


def _hear(body: Json, *, signed: bool, prefills: bool = True) -> Heard:
    contents = [
        _read_content(content, f"contents[{at}]")
        for at, content in enumerate(expect_list(body.get("contents"), "contents"))
    ]
    _check_turns(contents, signed=signed, prefills=prefills)
    instructions = body.get("systemInstruction")
    system = expect_object(instructions, "systemInstruction", {"role", "parts"})["parts"] if instructions else []
    declared = _read_tools(body.get("tools") or ())
    _check_choice(body.get("toolConfig"), declared)
    config = _read_config(body.get("generationConfig") or {})
    parts = [(content["role"], part) for content in contents for part in content["parts"]]
    responses = [part["functionResponse"] for _, part in parts if "functionResponse" in part]
    inside = [part for response in responses for part in response.get("parts", ())]
    blobs = [part for part in [*inside, *(part for _, part in parts)] if part.keys() & {"inlineData", "fileData"}]
    return Heard(
        "\n\n".join(part["text"] for part in system),
        tuple(
            f"{'assistant' if role == 'model' else role}: {part['text']}"
            for role, part in parts
            if "text" in part and not part.get("thought")
        ),
        tuple((response["name"], _read_response(response["response"])) for response in responses),
        tuple(_read_blob(part) for part in blobs),
        tuple(declared),
        tuple(part["text"] for _, part in parts if "text" in part and part.get("thought")),
        schema=config.get("responseJsonSchema"),
    )


def _read_response(response: Json) -> str:
    output = response.get("output", response.get("error"))
    return output if isinstance(output, str) else orjson.dumps(response).decode()


def _read_content(content: Any, where: str) -> Json:
    content = expect_object(content, where, {"role", "parts"})
    expect(content.get("role") in {"user", "model"}, "Please use a valid role: user, model.")
    for at, raw in enumerate(expect_list(content.get("parts"), f"{where}.parts")):
        here = f"{where}.parts[{at}]"
        part = expect_object(raw, here, PART)
        expect(len(part.keys() - {"thought", "thoughtSignature"}) == 1, f"{here}: data must have one initialized field")
        if "text" in part:
            expect(isinstance(part["text"], str), f"{here}.text: should be a string")
        if "functionCall" in part:
            expect_object(part["functionCall"], here, {"id", "name", "args"})
            expect(isinstance(part["functionCall"].get("args", {}), dict), f"{here}.functionCall.args: a struct")
        if "functionResponse" in part:
            response = expect_object(part["functionResponse"], here, {"id", "name", "response", "parts"})
            expect_text(response.get("name"), f"{here}.functionResponse.name")
            expect(isinstance(response.get("response"), dict), f"{here}.functionResponse.response: a struct")
    return content  # type: ignore[no-any-return]


def _check_turns(contents: list[Json], *, signed: bool, prefills: bool) -> None:
    waiting: list[str] = []
    for content in contents:
        calls = [part for part in content["parts"] if "functionCall" in part]
        answers = [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part]
        expect(
            sorted(answers) == sorted(waiting),
            "Please ensure that the number of function response parts is equal to the number of function call parts of"
            f" the function call turn: {waiting} and {answers}",
        )
        expect(not calls or content["role"] == "model", "function calls are the model's")
        waiting = [part["functionCall"]["name"] for part in calls]
        if signed and calls:
            found = calls[0].get("thoughtSignature")
            expect(found, f"Function call is missing a thought_signature in functionCall parts: {waiting[0]}")
            expect(found in {SIGNATURE, NO_SIGNATURE}, "Thought signature is not valid.")
    expect(not waiting, "a function call turn must be followed by its responses")
    expect(contents[0]["role"] == "user", "the first turn must be the user's")
    expect(prefills or contents[-1]["role"] == "user", "Requests ending with a model turn are not supported.")


def _read_blob(part: Json) -> ReceivedImage:
    if "fileData" in part:
        data = expect_object(part["fileData"], "fileData", {"mimeType", "fileUri"})
        return ReceivedImage(data.get("mimeType"), url=expect_text(data.get("fileUri"), "fileUri"))
    data = expect_object(part["inlineData"], "inlineData", {"mimeType", "data"})
    return ReceivedImage(expect_text(data.get("mimeType"), "mimeType"), decode(data.get("data"), "inlineData.data"))


def _read_tools(tools: Any) -> list[str]:
    names = []
    known = {"name", "description", "parameters", "parametersJsonSchema", "response", "responseJsonSchema", "behavior"}
    for tool in tools:
        listed = expect_object(tool, "tools", {"functionDeclarations", "googleSearch", "codeExecution", "urlContext"})
        for raw in listed.get("functionDeclarations") or ():
            declared = expect_object(raw, "functionDeclarations", known)
            expect(NAME.fullmatch(expect_text(declared.get("name"), "name")), "Invalid function name.")
            expect(not {"parameters", "parametersJsonSchema"} <= declared.keys(), "only one of parameters and …")
            names.append(declared["name"])
    return names


def _check_choice(config: Any, declared: list[str]) -> None:
    if config is None:
        return
    config = expect_object(config, "toolConfig", {"functionCallingConfig"})["functionCallingConfig"]
    config = expect_object(config, "functionCallingConfig", {"mode", "allowedFunctionNames"})
    expect(config.get("mode") in {"AUTO", "ANY", "NONE", "VALIDATED"}, "functionCallingConfig.mode: invalid value")
    allowed = config.get("allowedFunctionNames") or []
    expect(not allowed or config["mode"] == "ANY", "allowed_function_names should only be set with mode ANY")
    expect(set(allowed) <= set(declared), "allowed_function_names must be among the declared functions")


def _read_config(config: Any) -> Json:
    config = expect_object(config, "generationConfig", CONFIG)
    expect_number(config.get("temperature"), "temperature", 0, 2)
    expect_number(config.get("topP"), "topP", 0, 1)
    expect_number(config.get("maxOutputTokens"), "maxOutputTokens", 1, 2**31)
    expect_number(config.get("candidateCount"), "candidateCount", 1, 8)
    expect_number(config.get("seed"), "seed", -(2**31), 2**31 - 1)
    expect(len(config.get("stopSequences") or ()) <= 5, "stopSequences: at most 5")
    schema = config.get("responseJsonSchema")
    expect(schema is None or config.get("responseMimeType") == "application/json", "a schema needs application/json")
    thinking = expect_object(
        config.get("thinkingConfig") or {}, "thinkingConfig", {"includeThoughts", "thinkingBudget", "thinkingLevel"}
    )
    expect("thinkingBudget" not in thinking or "thinkingLevel" not in thinking, "only one of budget and level")
    expect(thinking.get("thinkingLevel", "LOW") in LEVELS, "thinkingLevel: invalid value")
    return config  # type: ignore[no-any-return]


# What it answers.


def _usage(says: Says) -> Json:
    return {
        "promptTokenCount": says.prompt,
        "cachedContentTokenCount": says.cached,
        "candidatesTokenCount": says.completion - says.reasoning,
        "thoughtsTokenCount": says.reasoning,
        "totalTokenCount": says.prompt + says.completion,
    }


def _list_calls(says: Says) -> list[Json]:
    """Parallel calls: only the first of them is signed. None has an id."""
    parts: list[Json] = [{"functionCall": {"name": call.name, "args": call.arguments}} for call in says.calls]
    if parts:
        parts[0]["thoughtSignature"] = SIGNATURE
    return parts


def _finish(says: Says) -> str:
    return "MAX_TOKENS" if says.cut else "STOP"


def _write_answer(says: Says, model: str, many: int) -> Json:
    thought = [{"text": says.thought, "thought": True}] if says.thought else []
    candidates = [
        {
            "content": {"role": "model", "parts": [*thought, *([{"text": text}] if text else []), *_list_calls(says)]},
            "finishReason": _finish(says),
            "index": at,
        }
        for at, text in enumerate((says.text, *says.more)[:many])
    ]
    return {"candidates": candidates, "usageMetadata": _usage(says), "modelVersion": model, "responseId": "rEsPoNsE-1"}


def _write_events(says: Says, model: str, many: int) -> list[bytes]:
    parts: list[tuple[int, Json]] = [(0, {"text": word, "thought": True}) for word in split_words(says.thought)]
    for at, text in enumerate((says.text, *says.more)[:many]):
        parts += [(at, {"text": word}) for word in split_words(text)]
    parts += [(0, part) for part in _list_calls(says)]
    counting = {"promptTokenCount": says.prompt, "totalTokenCount": says.prompt}
    chunks: list[Json] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": at}], "usageMetadata": counting}
        for at, part in parts
    ]
    ends = [
        {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": _finish(says), "index": at}
        for at in range(min(many, 1 + len(says.more)))
    ]
    chunks.append({"candidates": ends, "usageMetadata": _usage(says)})
    named = [{**each, "modelVersion": model, "responseId": "rEsPoNsE-1"} for each in chunks]
    return [b"data: " + orjson.dumps(each) + b"\r\n\r\n" for each in named]
