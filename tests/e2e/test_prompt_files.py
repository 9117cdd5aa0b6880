"""Files of the gateway in prompts, by the ``openai`` library, at providers of every format."""

from typing import Any

import openai
import pytest

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.batch_calls import await_end, make_line, read_results, start
from tests.support.gateway import KEY
from tests.support.providers import Provider, Says
from tests.support.sdk_clients import MakeClient, ProviderType
from tests.support.started_gateways import StartGateway

OTHER = "sk-test-key-of-another-account"
ACCOUNTS: dict[str, Any] = {
    "account": [{"name": "ours"}, {"name": "theirs"}],
    "key": [
        {"name": "ours", "account": "ours", "secret": KEY},
        {"name": "theirs", "account": "theirs", "secret": OTHER},
    ],
}
PDF = b"%PDF-1.7\n" + b"x" * 40
WHERE = "messages[0].content[0].file.file_id"


def name_file(file_id: str) -> list[Any]:
    return [
        {"role": "user", "content": [{"type": "file", "file": {"file_id": file_id}}, {"type": "text", "text": "?"}]}
    ]


def find_documents(up: Provider) -> list[bytes | None]:
    return [one.data for one in up.heard[-1].images]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_kept_file_is_sent_with_the_prompt(
    provider_type: ProviderType, streamed: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("A door.")) as up:
        client = sdk(await standing_with({"channel": [up.channel()]}))
        file = await client.files.create(file=("a.pdf", PDF), purpose="user_data")
        asked: dict[str, Any] = {"model": "m", "messages": name_file(file.id)}
        if streamed:
            async for _ in await client.chat.completions.create(**asked, stream=True):
                pass
        else:
            await client.chat.completions.create(**asked)
        assert find_documents(up) == [PDF]
        assert file.id not in up.received[-1].body.decode()


async def test_a_response_is_made_from_a_kept_file(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with provider_type(Says("A door.")) as up:
        client = sdk(await standing_with({"channel": [up.channel()]}))
        file = await client.files.create(file=("a.pdf", PDF), purpose="user_data")
        parts: Any = [{"type": "input_file", "file_id": file.id}, {"type": "input_text", "text": "?"}]
        await client.responses.create(model="m", input=[{"role": "user", "content": parts}])
        assert find_documents(up) == [PDF]


async def test_a_file_that_the_account_has_not_is_refused_by_its_place(
    standing_with: StartGateway, sdk: MakeClient, provider_type: ProviderType
) -> None:
    async with provider_type(Says("A door.")) as up:
        gateway = await standing_with({**ACCOUNTS, "channel": [up.channel()]})
        file = await sdk(gateway).files.create(file=("a.pdf", PDF), purpose="user_data")
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk(gateway, api_key=OTHER).chat.completions.create(model="m", messages=name_file(file.id))
        assert caught.value.param == WHERE
        assert not up.received


async def test_a_prompt_with_its_files_has_the_size_of_a_body(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with({"server": {"max_body_mb": 1}})
    client = sdk(gateway)
    file = await client.files.create(file=("a.pdf", PDF + bytes(1024**2)), purpose="user_data")
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="demo-chat", messages=name_file(file.id))
    assert (caught.value.status_code, caught.value.param) == (413, WHERE)


async def test_a_line_of_a_batch_may_name_a_kept_file(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with AnthropicProvider(Says("A door.")) as up:
        client = sdk(await standing_with({"channel": [up.channel()]}))
        file = await client.files.create(file=("a.pdf", PDF), purpose="user_data")
        missing = f"file-{'0' * 32}"
        lines = [make_line(at, model="m", messages=name_file(one)) for at, one in enumerate((file.id, missing))]
        batch = await await_end(client, await start(client, lines))
        assert find_documents(up) == [PDF]
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
        (refused,) = (await read_results(client, batch.error_file_id)).values()
        assert refused["response"]["status_code"] == 404
        assert refused["response"]["body"]["error"]["param"] == WHERE
