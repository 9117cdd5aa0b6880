"""Vendors of OpenAI's chat format that refuse more than the format does.

- OpenAI (developers.openai.com/api/docs/guides/reasoning, .../models/gpt-4o): fields and effort words by model, the
  limit of an answer, ids of 40 characters, schemas with properties.
- Mistral (docs.mistral.ai/api, mistral-common's validator): fields, ids of nine characters, order of roles.
- Moonshot (platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model): reasoning beside calls, no forced tool while it
  thinks.
- DashScope (alibabacloud.com/help/en/model-studio/deep-thinking, .../error-code): roles, limits, thinking only in
  streams.
- DeepSeek (api-docs.deepseek.com/api/create-chat-completion, .../guides/thinking_mode): roles, effort words, reasoning
  beside calls.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import orjson

from tests.support.anthropic_provider import sign
from tests.support.openai_provider import FIELDS, OpenAIProvider
from tests.support.providers import KEY, Json, Refused, expect
from tests.support.scripted_upstream import Received, Step
from tests.support.strict_providers.agent_task import Agent
from tests.support.strict_providers.own_formats import Anthropic, list_blocks

MAX_ID = 40
_LIMITS = ("max_tokens", "max_completion_tokens")
_SAMPLING = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"}
_ROLES = {"system", "user", "assistant", "tool"}


class ChatVendor(OpenAIProvider, Agent):
    """Rules that a table can hold.

    Attributes:
        most: the limit of an answer in tokens.
        too_much: what it says of a higher limit.
        efforts: words of ``reasoning_effort``; none: the field is not known.
        roles: the roles of messages.
        after: the roles that may follow a role; a role that is missing may be followed by any.
    """

    most: ClassVar[int] = 10**6
    too_much = (
        "{name} is too large: {asked}. This model supports at most {most} completion tokens, whereas you gave more"
    )
    efforts: ClassVar[frozenset[str]] = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
    roles: ClassVar[frozenset[str]] = frozenset({"developer", *_ROLES})
    after: ClassVar[Mapping[str, frozenset[str]]] = {}
    longest_user = 1_000

    def check(self, body: Json) -> None:
        effort = body.get("reasoning_effort")
        if effort is not None:
            expect(self.efforts, "Unrecognized request argument supplied: reasoning_effort")
            expect(effort in self.efforts, f"Unsupported value: 'reasoning_effort' does not support '{effort}'")
        for name in _LIMITS:
            asked = body.get(name) or 0
            expect(asked <= self.most, self.too_much.format(name=name, asked=asked, most=self.most))
        before = None
        for message in body["messages"]:
            role = message.get("role")
            expect(role in self.roles, f"{role} is not one of {sorted(self.roles)}")
            allowed = self.after.get(str(before), self.roles)
            expect(role in allowed, f"Unexpected role '{role}' after role '{before}'")
            before = role
        for tool in body.get("tools") or ():
            check_schema(tool["function"].get("parameters"), tool["function"].get("name"))
        self.check_more(body)

    def check_more(self, body: Json) -> None:
        """Refuse by rules that no table holds."""


def check_schema(schema: Any, name: object) -> None:
    """Refuse an object without properties at the top."""
    if schema is not None:
        expect("properties" in schema, f"Invalid schema for function '{name}': object schema missing properties")


def list_call_messages(body: Json) -> list[tuple[int, Json]]:
    """Return the messages with calls, and their places."""
    return [(at, one) for at, one in enumerate(body["messages"]) if one.get("tool_calls")]


class OpenAI(ChatVendor):
    """A reasoning model that knows four efforts."""

    label = "openai, gpt-5-mini"
    model = "gpt-5-mini"
    most = 128_000
    longest_user = 64
    efforts = frozenset({"minimal", "low", "medium", "high"})

    def check_more(self, body: Json) -> None:
        refused = body.keys() & ({"max_tokens", "stop"} | _SAMPLING)
        expect(not refused, f"Unsupported parameter: {sorted(refused)} is not supported with this model.")
        _check_ids(body)


class OpenAIWithoutReasoning(ChatVendor):
    """A model that does not reason, with a small limit."""

    label = "openai, gpt-4o"
    model = "gpt-4o"
    most = 16_384
    longest_user = 64
    efforts = frozenset()

    def check_more(self, body: Json) -> None:
        known = body.get("verbosity") in {None, "medium"}
        expect(known, "Unsupported value: 'verbosity' does not support this value with this model.")
        _check_ids(body)


def _check_ids(body: Json) -> None:
    for at, message in list_call_messages(body):
        for call in message["tool_calls"]:
            expect(
                len(call["id"]) <= MAX_ID,
                f"Invalid 'messages[{at}].tool_calls[0].id': string too long. Expected a maximum length of {MAX_ID}",
            )


class Custom(ChatVendor):
    """A server of open models: it counts its calls anew in each answer, and wants the system message in front."""

    label = slug = "custom"
    model = "org/thinker"
    extra = frozenset({"reasoning_content"})
    aloud = True
    call_id = "call_{at}"
    roles = frozenset(_ROLES)

    def check_more(self, body: Json) -> None:
        system = [at for at, message in enumerate(body["messages"]) if message["role"] == "system"]
        expect(system in ([], [0]), "System message must be at the beginning.")


_MISTRAL = re.compile(r"[a-zA-Z0-9]{9}")


class Mistral(ChatVendor):
    """Fields, ids and roles are checked closely."""

    label = slug = "mistral"
    model = "mistral-medium-3-5"
    fields = frozenset(
        {
            "model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed", "metadata",
            "response_format", "tools", "tool_choice", "presence_penalty", "frequency_penalty", "n", "prediction",
            "parallel_tool_calls", "prompt_mode", "reasoning_effort", "safe_prompt", "guardrails", "prompt_cache_key",
        }
    )  # fmt: skip
    efforts = frozenset({"none", "high"})
    roles = frozenset(_ROLES)
    call_id = "a{turn:04d}{at:04d}"
    extra = frozenset({"prefix"})
    after: ClassVar[Mapping[str, frozenset[str]]] = {
        "None": frozenset({"system", "user"}),
        "system": frozenset({"system", "user", "assistant"}),
        "user": frozenset({"system", "user", "assistant"}),
        "assistant": frozenset({"user", "assistant", "tool"}),
        "tool": frozenset({"assistant", "tool"}),
    }

    def check_more(self, body: Json) -> None:
        for at, message in enumerate(body["messages"]):
            for call in message.get("tool_calls") or ():
                expect(_MISTRAL.fullmatch(call["id"]), "Tool call id has to be defined in [a-zA-Z0-9]{9}")
            allowed = {"role", "content", "tool_calls", "prefix", *(("tool_call_id", "name") if at else ())}
            unknown = message.keys() - allowed
            if unknown:
                raise Refused(f"body.messages.{at}: Extra inputs are not permitted {sorted(unknown)}", 422)
        last = body["messages"][-1]["role"]
        prefix = body["messages"][-1].get("prefix") is True
        expect(prefix or last in {"user", "tool"}, f"Expected last role User or Tool for serving but got {last}")

    def write_error(self, fails: Any) -> Json:
        return {"object": "error", "message": fails.message, "type": "invalid_request_message_order", "code": "3230"}


class Thinker(ChatVendor):
    """A model that thinks unless told not to, and wants its thoughts back beside its calls."""

    extra = frozenset({"reasoning_content"})
    fields = frozenset(FIELDS | {"thinking", "enable_thinking", "thinking_budget", "preserve_thinking"})
    aloud = True
    roles = frozenset(_ROLES)
    wants_thoughts: ClassVar[bool] = True

    def thinks(self, body: Json) -> bool:
        """Whether the model thinks for this request."""
        return (body.get("thinking") or {}).get("type") != "disabled"

    def check_more(self, body: Json) -> None:
        if not self.thinks(body):
            return
        forced = body.get("tool_choice") not in {None, "auto", "none"} if _is_word(body) else True
        expect(not forced, "tool_choice 'specified' is incompatible with thinking enabled")
        for at, message in list_call_messages(body) if self.wants_thoughts else ():
            answer = message.get("reasoning_content")
            expect(
                answer, f"thinking is enabled but reasoning_content is missing in assistant tool call message at {at}"
            )


def _is_word(body: Json) -> bool:
    return not isinstance(body.get("tool_choice"), dict)


_KIMI_NAME = re.compile(r"[a-zA-Z][\w-]*")


class Moonshot(Thinker):
    """Kimi: no effort beside ``thinking``, fixed sampling, names that begin with a letter."""

    label = slug = "moonshot"
    model = "kimi-k2.6"
    most = 262_144
    call_id = "functions.{name}:{turn}{at}"

    def check_more(self, body: Json) -> None:
        super().check_more(body)
        both = "thinking" in body and "reasoning_effort" in body
        expect(not both, "cannot specify both 'thinking' and 'reasoning_effort'")
        for name in _SAMPLING & body.keys():
            expect(False, f"invalid {name}: only the default is allowed for this model")
        for tool in body.get("tools") or ():
            function = tool["function"]
            expect(_KIMI_NAME.fullmatch(function["name"]), "Invalid request: function name is invalid")
            _check_any_of(function.get("parameters"), function["name"])


def _check_any_of(schema: Any, name: str) -> None:
    if isinstance(schema, list):
        for one in schema:
            _check_any_of(one, name)
    elif isinstance(schema, dict):
        bad = isinstance(schema.get("anyOf"), list) and isinstance(schema.get("type"), str)
        expect(not bad, f"At path '{name}': when using anyOf, type should be defined in anyOf items instead")
        for one in schema.values():
            _check_any_of(one, name)


class DashScope(Thinker):
    """Qwen3, open weights: thinks only in streams."""

    label = slug = "dashscope"
    model = "qwen3-235b-a22b"
    most = 16_384
    too_much = "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, {most}]"
    wants_thoughts = False

    def thinks(self, body: Json) -> bool:
        return body.get("enable_thinking") is not False

    def check_more(self, body: Json) -> None:
        super().check_more(body)
        streamed = body.get("stream") is True or not self.thinks(body)
        expect(streamed, "parameter.enable_thinking must be set to false for non-streaming calls")


class DeepSeek(Thinker):
    """Reads JSON into closed types: an unknown word is an error of its parser."""

    label = slug = "deepseek"
    root = ""
    model = "deepseek-v4-pro"
    most = 393_216
    too_much = "Invalid max_tokens value, the valid range of max_tokens is [1, {most}]"
    efforts = frozenset({"low", "medium", "high", "xhigh", "max"})

    def check_more(self, body: Json) -> None:
        super().check_more(body)
        names = [tool["function"]["name"] for tool in body.get("tools") or ()]
        expect(len(names) == len(set(names)), "Tool names must be unique.")

    def read(self, received: Received) -> list[Step]:
        if received.path != "/anthropic/v1/messages":
            return super().read(received)
        expect(received.headers.get("authorization") == f"Bearer {KEY}", "Authentication Fails", 401)
        headers = {**received.headers, "x-api-key": KEY}
        return DeepSeekMessages().read(attrs.evolve(received, path="/v1/messages", headers=headers))


class DeepSeekMessages(Anthropic):
    """The same in Anthropic's format (api-docs.deepseek.com/api/create-message): its roles and blocks."""

    def read(self, received: Received) -> list[Step]:
        body = received.json
        for at, message in enumerate(body["messages"]):
            role = message["role"]
            expect(role in {"user", "assistant"}, f"messages[{at}].role: unknown variant `{role}`")
        for block in list_blocks(body["messages"]):
            kind = block.get("type", "text")
            expect(kind in _DEEPSEEK_BLOCKS, f"messages: unknown variant `{kind}`")
            if kind == "thinking":
                block["signature"] = sign(block["thinking"])  # this server reads no signatures
        return super().read(attrs.evolve(received, body=orjson.dumps(body)))


_DEEPSEEK_BLOCKS = {"text", "image", "thinking", "tool_use", "tool_result", "server_tool_use", "web_search_tool_result"}
