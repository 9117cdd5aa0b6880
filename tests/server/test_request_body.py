"""Bad input: the right status, code and param, never a 5xx, and never a provider asked."""

import asyncio
import gzip
import io
import tracemalloc
import zlib
from typing import Any

import orjson
import pytest

from tests.support.compressed_runs import compress_run
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channels
from tests.support.raw_client import RawAnswer, connect, hello, post, read_answer
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.started_gateways import ReadLog, StartGateway

EMBEDDINGS = "/v1/embeddings"
JSON = {"Content-Type": "application/json"}


def chat(fields: str) -> bytes:
    """A chat body with raw JSON after its good fields."""
    return b'{"model":"m","messages":[{"role":"user","content":"hi"}],' + fields.encode() + b"}"


def embed(fields: str) -> bytes:
    return b'{"model":"m",' + fields.encode() + b"}"


BAD_JSON: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "an array": b"[]",
    "a string": b'"hi"',
    "null": b"null",
    "a half": b'{"model":',
    "two values": b"{}{}",
    "NaN": b'{"model":"m","temperature":NaN}',
    "infinity": b'{"model":"m","temperature":-Infinity}',
    "a lone surrogate": b'{"model":"m\\ud800"}',
    "broken UTF-8": b'{"model":"\xff"}',
    "UTF-16": '{"model":"m"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"model":"m"}',
    "a depth bomb of arrays": b"[" * 100_000,
    "a depth bomb of objects": b'{"a":' * 50_000,
    "deep but closed": b'{"model":"m","x":' + b"[" * 500 + b"]" * 500 + b"}",
    "700,000 empty objects": b'{"model":"m","x":[' + b",".join([b"{}"] * 700_000) + b"]}",
    "a trailing comma": b'{"model":"m",}',
    "a duplicate key deep down": b'{"model":"m","messages":[{"role":"user","role":"system","content":"x"}]}',
}
BAD_CHAT: dict[str, tuple[bytes, str]] = {
    "no model": (b'{"messages":[{"role":"user","content":"hi"}]}', "model"),
    "a null model": (b'{"model":null,"messages":[{"role":"user","content":"hi"}]}', "model"),
    "a number for a model": (b'{"model":1,"messages":[{"role":"user","content":"hi"}]}', "model"),
    "an endless model": (orjson.dumps({**HELLO, "model": "m" * 257}), "model"),
    "a line feed in the model": (orjson.dumps({**HELLO, "model": "m\nx"}), "model"),
    "no messages": (b'{"model":"m"}', "messages"),
    "messages as text": (b'{"model":"m","messages":"hi"}', "messages"),
    "a message as text": (b'{"model":"m","messages":["hi"]}', "messages[0]"),
    "a message without a role": (b'{"model":"m","messages":[{"content":"hi"}]}', "messages[0].role"),
    "an unknown role": (b'{"model":"m","messages":[{"role":"root","content":"hi"}]}', "messages[0].role"),
    "a list for a role": (b'{"model":"m","messages":[{"role":["user"],"content":"hi"}]}', "messages[0].role"),
    "an object for a role": (b'{"model":"m","messages":[{"role":{},"content":"hi"}]}', "messages[0].role"),
    "a number for content": (b'{"model":"m","messages":[{"role":"user","content":1}]}', "messages[0].content"),
    "a part as text": (b'{"model":"m","messages":[{"role":"user","content":["x"]}]}', "messages[0].content[0]"),
    "2**70 tokens": (chat(f'"max_tokens":{2**70}'), "max_tokens"),
    "true tokens": (chat('"max_tokens":true'), "max_tokens"),
    "a float of tokens": (chat('"max_tokens":1.0'), "max_tokens"),
    "no tokens": (chat('"max_tokens":0'), "max_tokens"),
    "negative tokens": (chat('"max_completion_tokens":-1'), "max_completion_tokens"),
    "negative choices": (chat('"n":-1'), "n"),
    "true choices": (chat('"n":true'), "n"),
    "2**70 choices": (chat(f'"n":{2**70}'), "n"),
    "a stream of text": (chat('"stream":"true"'), "stream"),
    "a stream of one": (chat('"stream":1'), "stream"),
    "options without a stream": (chat('"stream_options":{"include_usage":true}'), "stream_options"),
    "options as a list": (chat('"stream":true,"stream_options":[]'), "stream_options"),
    "usage asked in words": (
        chat('"stream":true,"stream_options":{"include_usage":"yes"}'),
        "stream_options.include_usage",
    ),
    "a temperature of 1e400": (chat('"temperature":1e400'), ""),
    "a hot temperature": (chat('"temperature":100.1'), "temperature"),
    "a true temperature": (chat('"top_p":true'), "top_p"),
    "tools as an object": (chat('"tools":{}'), "tools"),
    "a user of one": (chat('"user":1'), "user"),
    "a second model": (chat('"model":"other"'), "model"),
}
BAD_EMBEDDINGS: dict[str, tuple[bytes, str]] = {
    "no model": (b'{"input":"a"}', "model"),
    "no input": (b'{"model":"m"}', "input"),
    "an empty input": (embed('"input":""'), "input"),
    "an empty list": (embed('"input":[]'), "input"),
    "a number": (embed('"input":1'), "input"),
    "an object inside": (embed('"input":["a",{}]'), "input[1]"),
    "booleans for token ids": (embed('"input":[true,false]'), "input[0]"),
    "floats for token ids": (embed('"input":[[1.5]]'), "input[0]"),
    "an empty list inside": (embed('"input":["a",[]]'), "input[1]"),
    "2**70 dimensions": (embed(f'"input":"a","dimensions":{2**70}'), "dimensions"),
    "true dimensions": (embed('"input":"a","dimensions":true'), "dimensions"),
    "no dimensions": (embed('"input":"a","dimensions":0'), "dimensions"),
    "an unknown encoding": (embed('"input":"a","encoding_format":"hex"'), "encoding_format"),
    "an encoding of one": (embed('"input":"a","encoding_format":1'), "encoding_format"),
    "a second model": (embed('"input":"a","model":"other"'), "model"),
}


async def send(gateway: RunningGateway, body: bytes, path: str = CHAT, **headers: str) -> tuple[int, Any]:
    """The status and the error object of an answer."""
    async with gateway.client.post(gateway.url + path, data=io.BytesIO(body), headers={**JSON, **headers}) as r:
        value = await r.json()
        assert r.headers["X-Request-Id"]
        return r.status, value.get("error", value)


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
async def test_a_body_that_is_no_good_json_is_a_400(standing_with: StartGateway, path: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        for case, body in BAD_JSON.items():
            status, error = await send(gateway, body, path)
            assert (status, error["code"]) == (400, "invalid_request"), case
            assert len(error["message"]) < 500, case
        assert not up.received
        rows = await gateway.rows(len(BAD_JSON))
        assert {(row.status, row.outcome, row.attempts) for row in rows} == {(400, "refused", 0)}


@pytest.mark.parametrize(("path", "table"), [(CHAT, BAD_CHAT), (EMBEDDINGS, BAD_EMBEDDINGS)])
async def test_a_bad_field_is_a_400_that_names_it(
    standing_with: StartGateway, path: str, table: dict[str, tuple[bytes, str]]
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        found = {}
        for case, (body, _) in table.items():
            status, error = await send(gateway, body, path)
            found[case] = (status, error.get("code"), error.get("param"))
        assert found == {case: (400, "invalid_request", param or None) for case, (_, param) in table.items()}
        assert not up.received


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)],
)
async def test_a_compressed_body_is_read(standing_with: StartGateway, encoding: str, pack: Any) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        status, value = await send(gateway, pack(hello()), **{"Content-Encoding": encoding})
        assert (status, value) == (200, COMPLETION)
        assert up.received[0].json == HELLO
        assert "content-encoding" not in up.received[0].headers


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "gzip, gzip", "compress", "nonsense", "x-gzip"])
async def test_another_content_encoding_is_a_415(standing_with: StartGateway, encoding: str) -> None:
    gateway = await standing_with({})
    status, error = await _exchange(gateway, post(hello(), f"Content-Encoding: {encoding}"))
    assert (status, error["code"]) == (415, "unsupported_media_type")


async def _exchange(gateway: RunningGateway, raw: bytes) -> tuple[int, Any]:
    reader, writer = await connect(gateway.url)
    try:
        writer.write(raw)
        found: RawAnswer = await read_answer(reader)
        return found.status, found.error
    finally:
        writer.close()


async def test_a_gzip_bomb_is_too_large(standing_with: StartGateway) -> None:
    bomb = compress_run(b" ", 200)
    assert len(bomb) < 2**20
    gateway = await standing_with({"server": {"max_body_mb": 1}})
    status, error = await _exchange(gateway, post(bomb, "Content-Encoding: gzip"))
    assert (status, error["code"]) == (413, "request_too_large")
    assert "1 MB" in error["message"]


async def test_a_gzip_bomb_unpacks_to_no_more_than_a_body_may_be(standing_with: StartGateway) -> None:
    """Many at once come from one small file each; aiohttp by itself keeps three times the limit of each in memory."""
    gateway, bomb = await standing_with({"server": {"max_body_mb": 8}}), compress_run(b" ", 32)
    tracemalloc.start()
    try:
        status, _ = await _exchange(gateway, post(bomb, "Content-Encoding: gzip"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 413
    assert most < 2 * 8 * 2**20


async def test_compressed_bodies_borrow_the_memory_that_they_unpack_to(standing_with: StartGateway) -> None:
    may_answer = asyncio.Event()

    async def hold(_: Received) -> None:
        await may_answer.wait()

    bomb = gzip.compress(orjson.dumps({**HELLO, "user": "x" * 4 * 2**20}))
    async with ScriptedUpstream([hold, answer(COMPLETION)]) as up:
        gateway = await standing_with({**channels([up]), "server": {"max_body_mb": 5, "max_loaded_mb": 10}})

        async def post_one() -> tuple[int, Any]:
            return await send(gateway, bomb, **{"Content-Encoding": "gzip"})

        asked = asyncio.as_completed([post_one() for _ in range(3)])
        status, refused = await next(asked)
        assert (status, refused["code"]) == (503, "overloaded")
        assert "compressed bodies of other requests" in refused["message"]
        may_answer.set()
        assert [(await served)[0] for served in asked] == [200, 200]
        assert (await post_one())[0] == 200  # all was given back


async def test_a_change_in_the_office_is_a_small_thing(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    for size, expected in ((2**20 - 1000, 400), (2**20, 413)):
        body = orjson.dumps({"name": "x" * size})
        status, error = await _exchange(gateway, post(body, path="/admin/v1/accounts", key=gateway.admin_token))
        assert status == expected
        assert expected == 400 or "larger than 1 MB" in error["message"]


async def test_a_body_that_is_not_what_its_encoding_says_is_a_400_and_no_log_of_a_bug(
    standing_with: StartGateway, read_log: ReadLog
) -> None:
    gateway = await standing_with({})
    status, error = await _exchange(gateway, post(hello(), "Content-Encoding: gzip"))
    assert (status, error["code"]) == (400, "invalid_request")
    await gateway.rows(1)
    logged = read_log()
    assert '"request_settled"' in logged
    assert '"exception"' not in logged


async def test_a_body_over_the_limit_is_a_413_and_at_the_limit_is_not(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({**channels([up]), "server": {"max_body_mb": 1}})
        size = 2**20 - len(chat('"user":""'))
        assert (await send(gateway, chat(f'"user":"{"x" * size}"')))[0] == 200
        status, error = await send(gateway, chat(f'"user":"{"x" * (size + 1)}"'))
        assert (status, error["code"]) == (413, "request_too_large")
        assert len(up.received) == 1


@pytest.mark.parametrize("path", [EMBEDDINGS, "/v1/completions", "/v1/moderations", "/v1/rerank", "/v1/audio/speech"])
async def test_texts_alone_may_have_a_quarter(standing_with: StartGateway, path: str) -> None:
    gateway = await standing_with({"server": {"max_body_mb": 8}})
    for size, expected in ((2 * 2**20, {400, 404}), (2 * 2**20 + 1, {413})):
        body = b'{"model":"m","x":"' + b"x" * (size - 20) + b'"}'
        status, error = await send(gateway, body, path)
        assert status in expected
        assert status != 413 or "2 MB" in error["message"]


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
async def test_another_content_type_is_a_415(standing_with: StartGateway, kind: str) -> None:
    gateway = await standing_with({})
    status, error = await send(gateway, hello(), **{"Content-Type": kind})
    assert (status, error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json", "APPLICATION/JSON"])
async def test_every_name_of_json_is_json(standing_with: StartGateway, kind: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        assert (await send(gateway, hello(), **{"Content-Type": kind}))[0] == 200


async def test_fields_that_look_like_routing_never_change_where_a_request_goes(standing_with: StartGateway) -> None:
    lures = ("api_base", "base_url", "callback_url", "api_key", "proxy", "channel", "provider", "webhook")
    async with ScriptedUpstream([answer(COMPLETION)]) as up, ScriptedUpstream([answer(COMPLETION)]) as lure:
        gateway = await standing_with(channels([up], allow_fields=["provider"]))
        fields = dict.fromkeys(lures, lure.base_url) | {"headers": {"Authorization": "Bearer x", "Host": "evil"}}
        hidden = {name: value for name, value in fields.items() if name != "provider"}  # refused: it changes the price
        for body in ({**HELLO, **fields}, {**HELLO, "extra_body": hidden, "metadata": fields}):
            status, _ = await send(gateway, orjson.dumps(body))
            assert status == 200
        assert not lure.received
        assert [received.headers["authorization"] for received in up.received] == ["Bearer provider-key"] * 2
        assert {received.headers["host"] for received in up.received} == {f"127.0.0.1:{up.port}"}
        assert up.received[0].json == {**HELLO, **fields}


async def test_what_was_checked_is_what_is_forwarded(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        raw = (
            b' {"model" :\t"m", "messages":[{"role":"user","content":"h\\u0069 \\ud83d\\ude00"}] , "big":12345678901}\n'
        )
        assert (await send(gateway, raw))[0] == 200
        assert up.received[0].body == (
            '{"model":"m","messages":[{"role":"user","content":"hi 😀"}],"big":12345678901}'.encode()
        )


async def test_a_body_of_several_megabytes_reaches_the_provider_whole(standing_with: StartGateway) -> None:
    image = "data:image/png;base64," + "QUJD" * 750_000
    part = {"type": "image_url", "image_url": {"url": image}}
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        assert (await send(gateway, orjson.dumps(body)))[0] == 200
        assert up.received[0].json == body


async def test_a_body_in_small_pieces_is_put_together(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        reader, writer = await connect(gateway.url)
        head, body = post(hello(), key=KEY).split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        for index in range(0, len(body), 7):
            writer.write(body[index : index + 7])
            await writer.drain()
        assert (await read_answer(reader)).status == 200
        writer.close()
