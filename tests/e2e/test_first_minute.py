"""What README promises, against a gateway with no configuration: every model that is listed does what it is for."""

from functools import partial
from typing import Any

import aiohttp
import httpx2
import orjson
import pytest
import pytest_asyncio
from openai import APIStatusError, BadRequestError

from tests.support.gateway import RunningGateway
from tests.support.sdk_clients import MakeClaude, MakeClient
from tests.support.started_gateways import StartGateway

HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
DEPRECATED = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the SDK's word on translations


@pytest_asyncio.fixture(loop_scope="session")
async def fresh(gateway_with: StartGateway) -> RunningGateway:
    return await gateway_with({})


async def test_responses_are_made_and_streamed(fresh: RunningGateway, sdk: MakeClient) -> None:
    client = sdk(fresh)
    made = await client.responses.create(model="demo-chat", input="Hello")
    assert "Hello" in made.output_text
    async with client.responses.stream(model="demo-chat", input="Hello") as stream:
        kinds = [event.type async for event in stream]
        assert (await stream.get_final_response()).output_text == made.output_text
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    rows = await fresh.rows(2)
    assert made.usage is not None
    for row in rows:
        assert (row.operation, row.usage_source) == ("responses", "upstream")
        assert row.completion_tokens == made.usage.output_tokens


async def test_texts_are_completed(fresh: RunningGateway, sdk: MakeClient) -> None:
    client = sdk(fresh)
    whole = await client.completions.create(model="demo-chat", prompt="Once", max_tokens=5)
    stream = await client.completions.create(model="demo-chat", prompt="Once", max_tokens=5, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    await fresh.rows(2)


async def test_json_is_written_in_the_form_of_a_schema(fresh: RunningGateway, sdk: MakeClient) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": WEATHER["parameters"]}}
    made = await sdk(fresh).chat.completions.create(model="demo-chat", messages=HELLO, response_format=form)
    assert orjson.loads(made.choices[0].message.content or "") == {"city": "Hello"}


async def test_messages_are_answered_streamed_and_counted(fresh: RunningGateway, claude: MakeClaude) -> None:
    asked: Any = {"model": "demo-chat", "messages": HELLO, "max_tokens": 500}
    client = claude(fresh)
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        assert (await stream.get_final_message()).content[0].text == whole.content[0].text  # type: ignore[union-attr]
    tools: Any = [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]
    called = await client.messages.create(
        **asked | {"messages": [{"role": "user", "content": "weather in Oslo"}]}, tools=tools
    )
    assert called.stop_reason == "tool_use"


@DEPRECATED
async def test_what_is_no_recording_is_refused(fresh: RunningGateway, sdk: MakeClient) -> None:
    file = ("hello.mp3", b"no sound at all")
    for audio in (sdk(fresh).audio.transcriptions, sdk(fresh).audio.translations):
        with pytest.raises(BadRequestError) as caught:
            await audio.create(model="demo-transcribe", file=file)
        assert caught.value.param == "file"


async def open_session(gateway: RunningGateway, model: str) -> Any:
    """The first event of a realtime session; the SDK's error of the same status if the handshake is refused."""
    url = f"{gateway.url}/v1/realtime?model={model}"
    try:
        async with gateway.client.ws_connect(url) as socket:
            return await socket.receive_json()
    except aiohttp.WSServerHandshakeError as refused:
        request = httpx2.Request("GET", url)
        raise APIStatusError("refused", response=httpx2.Response(refused.status, request=request), body=None) from None


@pytest.mark.filterwarnings("ignore:The Sora API is:DeprecationWarning")  # the SDK's word on one provider's videos
async def test_every_listed_model_answers_and_only_where_it_belongs(fresh: RunningGateway, sdk: MakeClient) -> None:
    client = sdk(fresh)
    listed = {model.id async for model in client.models.list()}
    spoken = await client.audio.speech.create(model="demo-speech", voice="alloy", input="Hi", response_format="wav")
    calls: dict[str, Any] = {
        "demo-chat": lambda model: client.chat.completions.create(model=model, messages=HELLO),
        "demo-embedding": lambda model: client.embeddings.create(model=model, input="Hello"),
        "demo-image": lambda model: client.images.generate(model=model, prompt="a tree", size="256x256"),
        "demo-speech": lambda model: client.audio.speech.create(model=model, voice="alloy", input="Hi"),
        "demo-transcribe": lambda model: client.audio.transcriptions.create(
            model=model, file=("a.wav", spoken.content)
        ),
        "demo-video": lambda model: client.videos.create(model=model, prompt="a tree"),
        "demo-realtime": partial(open_session, fresh),
    }
    assert set(calls) == {model for model in listed if not model.startswith("demo-video-")}
    for model, call in calls.items():
        assert await call(model)
        for other in calls.keys() - {model}:
            with pytest.raises(APIStatusError) as caught:
                await call(other)
            assert caught.value.status_code in {400, 404}, (model, other)
