"""A coding agent's conversation, as such agents send it, over every language: what can be said of it is not lost."""

import base64
from hashlib import sha256
from typing import Any

import pytest
from anthropic import NotFoundError

from tests.support.anthropic_provider import AnthropicProvider, sign
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import OpenAIProvider, ThinkingProvider
from tests.support.providers import Call, Fails, ReceivedImage, Says
from tests.support.sdk_clients import MakeClaude, ProviderType, name_provider
from tests.support.started_gateways import StartGateway

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
MARK = {"type": "ephemeral"}
BETA = "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14"
SCHEMA_OF = "http://json-schema.org/draft-07/schema#"


def make_tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    """A tool as schema generators write one, with keywords that hardly any provider reads."""
    schema = {
        "$schema": SCHEMA_OF,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "input_schema": schema}


TODO = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "minLength": 1},
        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
        "after": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["content", "status"],
    "additionalProperties": False,
}
TOOLS = [
    make_tool(
        "Bash",
        "Runs a command.\n\nUsage: …",
        ["command"],
        command={"type": "string"},
        timeout={"type": "number", "exclusiveMinimum": 0, "maximum": 600000},
    ),
    make_tool("Read", "Reads a file", ["file_path"], file_path={"type": "string", "format": "uri-reference"}),
    make_tool("TodoWrite", "Keeps the list", ["todos"], todos={"type": "array", "items": TODO, "minItems": 1}),
    make_tool("mcp__browser__screenshot", "Takes an image of the page", []) | {"cache_control": MARK},
]


def use(name: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def result(name: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **more}


def think(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": sign(text)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 32000,
    "system": [
        text("You are a coding agent.", cache_control=MARK),
        text("Working directory: /srv/app\nToday: Saturday", cache_control=MARK),
    ],
    "tools": TOOLS,
    "metadata": {
        "user_id": '{"device_id":"8f3a5c0e9b7d4f21a6c8e3b5d7f90123",'
        '"account_uuid":"2f1d9c3e-7b64-4a58-9e0d-1c2b3a495867","session_id":"b2c19f04-55ad-4e6e-8c7f-90ab12cd34ef"}'
    },
    "thinking": {"type": "enabled", "budget_tokens": 10000},
    "messages": [
        {"role": "user", "content": [text("<reminder>Be careful.</reminder>"), text("Why does the page look odd?")]},
        {
            "role": "assistant",
            "content": [
                think("I should look at the page and at the tests."),
                text("I'll look at the page first."),
                use("toolu_01A", "mcp__browser__screenshot"),
                use("toolu_01B", "Bash", command="make test", timeout=120000),
            ],
        },
        {
            "role": "user",
            "content": [
                result("toolu_01A", [text("1 image"), IMAGE]),
                result("toolu_01B", "Exit code 2\nmake: *** No rule to make target 'test'", is_error=True),
                text("<reminder>The list is empty.</reminder>"),
            ],
        },
        {
            "role": "assistant",
            "content": [
                think("No such target."),
                {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"},
                use("toolu_01C", "TodoWrite", todos=[{"content": "Fix", "status": "pending"}, {"content": "ünï ✓"}]),
            ],
        },
        {"role": "user", "content": [result("toolu_01C", [text("Kept.")], cache_control=MARK)]},
    ],
}
NEXT = Says(
    "Now the file.", thought="Where is it?", calls=(Call("Read", {"file_path": "/srv/app/ünï.py"}), Call("Bash"))
)


async def ask(client: Any, body: dict[str, Any], *, streamed: bool) -> Any:
    how = {"extra_query": {"beta": "true"}, "extra_headers": {"anthropic-beta": BETA}}
    async with client.messages.stream(**body, **how) as stream:
        if streamed:
            return await stream.get_final_message()
    return await client.messages.create(**body, **how, timeout=9)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_conversation_arrives_and_goes_on(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with provider_type(NEXT) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        message = await ask(claude(gateway), BODY, streamed=streamed)
        made = [block for block in message.content if block.type == "tool_use"]
        assert [(block.name, block.input) for block in made] == [
            ("Read", {"file_path": "/srv/app/ünï.py"}),
            ("Bash", {}),
        ]
        assert message.stop_reason == "tool_use"
        assert not up.refusals
        heard = up.heard[-1]
        assert heard.system == "You are a coding agent.\n\nWorking directory: /srv/app\nToday: Saturday"
        assert heard.tools == tuple(tool["name"] for tool in TOOLS)
        assert [name for name, _ in heard.results] == ["mcp__browser__screenshot", "Bash", "TodoWrite"]
        assert heard.results[0][1].startswith("1 image")
        assert "No rule to make target" in heard.results[1][1]
        assert heard.results[2][1] == "Kept."
        assert heard.images == (ReceivedImage("image/png", PNG),)
        assert "assistant: I'll look at the page first." in heard.messages
        reported = "\n".join(heard.messages)
        for words in ("<reminder>Be careful.</reminder>", "Why does the page look odd?", "The list is empty."):
            assert words in reported


async def test_its_own_provider_gets_the_body_and_the_features_as_they_were(
    standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with AnthropicProvider(NEXT) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        await claude(gateway).messages.create(**BODY, extra_headers={"anthropic-beta": BETA}, timeout=9)
        assert up.received[0].json == BODY | {"model": up.model}
        assert up.received[0].headers["anthropic-beta"] == BETA
        assert up.received[0].path == "/v1/messages"


async def test_what_is_not_for_others_is_not_told_to_them(gateway_with: StartGateway, claude: MakeClaude) -> None:
    """Cache marks, signatures and sealed thoughts are Anthropic's; thinking is asked for in each one's own words."""
    for kind in (OpenAIProvider, GeminiProvider):
        async with kind(NEXT) as up:
            gateway = await gateway_with({"channel": [up.channel()]})
            await ask(claude(gateway), BODY, streamed=True)
            sent, headers = up.received[0].body.decode(), up.received[0].headers
            for word in ("cache_control", "ephemeral", "EqQBCgIYAhIM", "EmwKAhgBEgy3va3p"):
                assert word not in sent
            assert kind is not GeminiProvider or SCHEMA_OF not in sent
            assert "anthropic-beta" not in headers
            body = up.received[0].json
            if kind is OpenAIProvider:
                assert "reasoning_effort" not in body  # its model does not think
                assert body["user"] == sha256(BODY["metadata"]["user_id"].encode()).hexdigest()
            else:
                assert body["generationConfig"]["thinkingConfig"] == {"thinkingLevel": "HIGH", "includeThoughts": True}


async def test_the_conversation_can_be_counted(
    provider_type: ProviderType, standing_with: StartGateway, claude: MakeClaude
) -> None:
    async with provider_type() as up:
        gateway = await standing_with({"channel": [up.channel()]})
        names = ("model", "system", "tools", "messages", "thinking")
        counted = await claude(gateway).messages.count_tokens(**{name: BODY[name] for name in names})
        assert counted.input_tokens == 42 or provider_type is OpenAIProvider
        assert 0 < counted.input_tokens < 1000


@pytest.mark.parametrize("convention", [ThinkingProvider, OpenAIProvider], ids=name_provider)
async def test_three_turns_by_three_providers_are_one_conversation(
    convention: ProviderType, standing_with: StartGateway, claude: MakeClaude
) -> None:
    """Each answers once and is then overloaded; the next one takes over what all before it have answered."""
    busy = Fails(529, "Overloaded")
    async with (
        GeminiProvider(NEXT, busy) as gemini,
        convention(NEXT, busy) as openai,
        AnthropicProvider(NEXT, busy) as anthropic,
    ):
        order = [up.channel(up.slug, priority=-at) for at, up in enumerate((gemini, openai, anthropic))]
        gateway = await standing_with({"channel": order})
        client = claude(gateway)
        messages = list(BODY["messages"])
        for _ in range(3):
            asked = {**BODY, "messages": messages}
            async with client.messages.stream(**asked) as stream:
                message = await stream.get_final_message()
            made = [block.id for block in message.content if block.type == "tool_use"]
            assert len(made) == 2
            messages += [
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": [result(name, "ok") for name in made]},
            ]
        assert not [*gemini.refusals, *openai.refusals, *anthropic.refusals]
        assert len(anthropic.heard[0].results) == 7


async def test_a_server_without_the_endpoint_for_messages_gets_chats(
    gateway_with: StartGateway, claude: MakeClaude
) -> None:
    """A vendor that has no other endpoint keeps it: there a 404 is about what the request names."""
    gone = Fails(404, "Not found: an expired container")
    hello: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    async with OpenAIProvider() as up, AnthropicProvider(gone, Says("Hello")) as anthropic:
        gateway = await gateway_with({"channel": [up.channel(provider="lm_studio")]})
        for _ in range(2):
            assert (await claude(gateway).messages.create(**hello)).content[0].text == "Hello"
        assert [one.path for one in up.received] == ["/v1/messages", *["/v1/chat/completions"] * 2]
        gateway = await gateway_with({"channel": [anthropic.channel()]})
        with pytest.raises(NotFoundError):
            await claude(gateway).messages.create(**hello)
        assert (await claude(gateway).messages.create(**hello)).content[0].text == "Hello"
