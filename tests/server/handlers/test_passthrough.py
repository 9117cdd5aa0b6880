"""Completions, moderations, rerank and responses: what passes through as it lies, and what it costs."""

from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.token_estimate import estimate_text
from tests.support.fault_scene import PRICE, UNHURRIED
from tests.support.gateway import RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    STALL,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    event,
)
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"


def text(words: str, finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
    """One frame of a stream of completions; whole answers look the same."""
    choice = {"index": 0, "text": words, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], **extra}


def response(status: str = "completed", **extra: Any) -> dict[str, Any]:
    """A whole response."""
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    content = [{"type": "output_text", "text": "good words", "annotations": []}]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "m",
        "output": [{**message, "content": content}],
        "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
        **extra,
    }


def named(kind: str, **fields: Any) -> bytes:
    """One event of a stream of a response, named as OpenAI names them."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
COMPLETED = [event(text("good")), event(text(" words", "stop"))]
USAGE_FRAME = event({**text(""), "choices": [], "usage": USAGE})
BEGUN = named("response.created", response=response("in_progress", output=[], usage=None))
RESPONDED = [
    BEGUN,
    named("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="good"),
    named("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=" words"),
    named("response.completed", response=response()),
]


@attrs.frozen
class Path:
    """One of these paths: how it is asked, how it answers, and what that used."""

    operation: str
    body: dict[str, Any]
    answer: dict[str, Any]
    used: tuple[int, int, str]
    stream: tuple[bytes, ...] = ()
    """What the provider says in a stream, its end included."""
    heard: tuple[bytes, ...] = ()
    """What of that the caller hears."""

    @property
    def path(self) -> str:
        return f"/v1/{self.operation}"


MORE = {"of_tomorrow": {"deep": [None, 1.5, "é\u2028"]}}
"""A field that nobody here knows."""
PATHS = (
    Path(
        "completions",
        {"model": "m", "prompt": "once upon", "max_tokens": 7, **MORE},
        text("good words", "stop", usage=USAGE),
        (5, 7, "upstream"),
        (*COMPLETED, USAGE_FRAME, DONE),
        (*COMPLETED, DONE),
    ),
    Path(
        "moderations",
        {"model": "m", "input": ["x" * 40, {"type": "text", "text": "y" * 40}], **MORE},
        {"id": "modr-1", "model": "m", "results": [{"flagged": False, "categories": {}, "category_scores": {}}]},
        (estimate_text("x" * 40 + "\n" + "y" * 40), 0, "estimate"),
    ),
    Path(
        "rerank",
        {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, **MORE},
        {"results": [{"index": 1, "relevance_score": 0.9}], "usage": {"total_tokens": 11}},
        (11, 0, "upstream"),
    ),
    Path(
        "responses",
        {"model": "m", "input": "hi", "max_output_tokens": 7, **MORE},
        response(),
        (5, 7, "upstream"),
        tuple(RESPONDED),
        tuple(RESPONDED),
    ),
)
STREAMED = tuple(path for path in PATHS if path.stream)
every_path = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.operation)
every_untranslated = pytest.mark.parametrize(
    "path", [path for path in PATHS if path.operation != "responses"], ids=lambda path: path.operation
)
every_stream = pytest.mark.parametrize("path", STREAMED, ids=lambda path: path.operation)


async def post(gateway: RunningGateway, path: Path, **more: Any) -> tuple[int, bytes]:
    async with gateway.post({**path.body, **more}, path=path.path) as found:
        return found.status, await found.read()


def error_of(raw: bytes) -> dict[str, Any]:
    (error,) = orjson.loads(raw).values()
    assert error.keys() - {"doc_url"} == {"message", "type", "param", "code"}
    return dict(error)


def check_cost(row: Any, path: Path) -> None:
    prompt, completion, source = path.used
    assert (row.operation, row.outcome, row.status) == (path.operation, "completed", 200)
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (prompt, completion, source)
    assert row.cost_nanos == prompt * 1_000 + completion * 2_000
    assert row.reserved_nanos >= row.cost_nanos


@every_path
async def test_an_answer_passes_both_ways_as_it_lies_and_is_charged(standing_with: StartGateway, path: Path) -> None:
    raw = orjson.dumps(path.answer, option=orjson.OPT_INDENT_2)
    async with ScriptedUpstream([answer(raw)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, model_map={"m": "theirs"})], "price": [PRICE]})
        status, body = await post(gateway, path)
        assert (status, body) == (200, raw)
        (sent,) = up.received
        assert (sent.method, sent.path) == ("POST", path.path)
        assert sent.headers["authorization"] == "Bearer provider-key"
        assert sent.json == {**path.body, "model": "theirs"}
        (row,) = await gateway.rows(1)
        check_cost(row, path)


@every_stream
async def test_a_stream_passes_byte_for_byte_and_is_charged(standing_with: StartGateway, path: Path) -> None:
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, path.stream), LAST_CHUNK]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)], "price": [PRICE]})
        async with gateway.post({**path.body, "stream": True}, path=path.path) as found:
            assert found.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert await found.read() == b"".join(path.heard)
        asked = dict(up.received[0].json)
        options = asked.pop("stream_options", None)
        assert asked == {**path.body, "stream": True}
        assert options == ({"include_usage": True} if path.operation == "completions" else None)
        (row,) = await gateway.rows(1)
        check_cost(row, path)
        assert row.stream


async def test_who_asks_for_the_usage_of_a_completion_hears_it(standing_with: StartGateway) -> None:
    path = PATHS[0]
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, path.stream), LAST_CHUNK]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        _, body = await post(gateway, path, stream=True, stream_options={"include_usage": True})
        assert body == b"".join(path.stream)


@every_untranslated
async def test_where_no_channel_takes_the_operation_the_sentence_says_so(
    standing_with: StartGateway, path: Path
) -> None:
    async with ScriptedUpstream([answer(path.answer)]) as up:
        gateway = await standing_with(
            {
                "channel": [
                    channel(up.base_url, "claude", provider="anthropic"),
                    channel(up.base_url, "google", provider="gemini"),
                ]
            }
        )
        status, body = await post(gateway, path)
        error = error_of(body)
        assert (status, error["code"], error["param"]) == (400, "unsupported_operation", "model")
        hint = f"The endpoint {path.path} does not serve the model 'm'; POST /v1/chat/completions does (request id:"
        assert error["message"].startswith(hint)
        status, body = await post(gateway, path, model="nobody-has-it")
        assert error_of(body)["message"].startswith("The model 'nobody-has-it' is not available")
        assert not up.received
        rows = await gateway.rows(2)
        assert {(row.operation, row.status, row.channel, row.cost_nanos) for row in rows} == {
            (path.operation, 400, None, 0),
            (path.operation, 404, None, 0),
        }


ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"input": "hi"},
    "/v1/images/generations": {"prompt": "a cat"},
    "/v1/audio/speech": {"input": "hi", "voice": "alloy"},
    "/v1/videos": {"prompt": "a cat"},
}


async def test_every_endpoint_names_the_one_that_serves_the_model(standing_with: StartGateway) -> None:
    films = channel(NOWHERE, "films", provider="minimax", models=["MiniMax-Hailuo-2.3"])
    talks = channel(NOWHERE, "talks", provider="anthropic", models=["claude"])
    gateway = await standing_with({"channel": [films, talks]})
    for path, body in ASKS.items():
        film = path != "/v1/videos"
        model, hint = ("MiniMax-Hailuo-2.3", "/v1/videos") if film else ("claude", "/v1/chat/completions")
        async with gateway.post({**body, "model": model}, path=path) as response:
            reported = await response.text()
            assert (response.status, response.headers["x-should-retry"]) == (400, "false"), reported
            assert f"The endpoint {path} does not serve the model '{model}'; POST {hint} does" in reported
            assert "unsupported_operation" in reported or path.startswith("/v1/messages")


NO_PATH = {"detail": "Not Found"}
NO_MODEL = {"error": {"message": "The model `m` does not exist", "type": "t", "param": None, "code": "model_not_found"}}
IMAGES, SPEECH = "/v1/images/generations", "/v1/audio/speech"
NO_URL = {"error": {"message": "Invalid URL (POST /v1/images/generations)", "type": "t", "param": None, "code": None}}
NO_MEDIA: list[Any] = [
    (IMAGES, "m", NO_URL, 404, (400, "'m' does not make images; models that do: gpt-image-9, my-flux (")),
    (
        IMAGES,
        "m",
        b"<h1>Not Found</h1>",
        404,
        (400, "'m' does not make images; models that do: gpt-image-9, my-flux ("),
    ),
    (IMAGES, "m", NO_PATH, 405, (400, "'m' does not make images; models that do: gpt-image-9, my-flux (")),
    (SPEECH, "m", NO_PATH, 404, (400, "'m' does not make speech; models that do: my-tts (")),
    (IMAGES, "m", NO_MODEL, 404, (404, "The model `m` does not exist")),
    (IMAGES, "m", NO_PATH, 400, (400, "Not Found")),
    (IMAGES, "my-flux", NO_PATH, 404, (404, "Provider returned 404 Not Found for /images/generations")),
    (IMAGES, "unknown", NO_PATH, 404, (404, "Provider returned 404 Not Found for /images/generations")),
]
"""Who is asked for which model, what a provider answers, and what its client gets."""


async def test_a_chat_model_at_a_server_without_the_path_gets_the_names_of_models_that_do(
    standing_with: StartGateway,
) -> None:
    async with ScriptedUpstream(*[[answer(body, status)] for _, _, body, status, _ in NO_MEDIA]) as up:
        models = ["m", "unknown", "gpt-image-9", "my-flux", "my-tts"]
        image = {"model": "my-flux", "usd_per_image": 0.01}
        gateway = await standing_with({"channel": [channel(up.base_url, models=models)], "price": [PRICE, image]})
        for path, model, _, _, (status, words) in NO_MEDIA:
            async with gateway.post({**ASKS[path], "model": model}, path=path) as response:
                error = (await response.json())["error"]
            assert (response.status, words in error["message"]) == (status, True), (path, model, error)
        rows = await gateway.rows(len(NO_MEDIA))
        assert {row.cost_nanos for row in rows} == {0}


@every_untranslated
async def test_a_channel_that_takes_the_operation_is_asked_whatever_others_have_a_higher_priority(
    standing_with: StartGateway, path: Path
) -> None:
    async with ScriptedUpstream([answer(path.answer)]) as up:
        first = channel(NOWHERE, "claude", provider="anthropic", priority=9)
        gateway = await standing_with({"channel": [first, channel(up.base_url)]})
        assert (await post(gateway, path))[0] == 200
        (row,) = await gateway.rows(1)
        assert (row.channel, row.attempts) == ("up", 1)


@every_path
@pytest.mark.parametrize(
    ("script", "status", "code", "words"),
    [
        ([answer(b"down", 500)], 502, "upstream_error", "Provider returned 500"),
        (
            [answer(b"no", 401)],
            502,
            "upstream_error",
            "The provider refused the gateway's credentials (401 Unauthorized)",
        ),
        ([answer(b"<html>")], 502, "upstream_error", "The provider"),
        ([answer({})], 502, "upstream_error", "The provider"),
        ([answer({"error": {"message": "oops"}})], 502, "upstream_error", "The provider"),
        ([RST], 502, "upstream_error", "The provider"),
        ([STALL], 504, "upstream_timeout", "The provider"),
        ([answer({"error": {"message": "bad", "param": "x", "code": "c", "type": "t"}}, 400)], 400, "c", "bad"),
        ([answer({"detail": "Not Found"}, 404)], 404, "not_found", "Provider returned 404 Not Found for /"),
    ],
    ids=["500", "401", "html", "empty", "error", "reset", "silence", "400", "404"],
)
async def test_a_fault_of_the_provider_is_answered_and_costs_no_more_than_a_prompt_in_vain(  # noqa: PLR0917 - a table
    standing_with: StartGateway, path: Path, script: list[Step], status: int, code: str, words: str
) -> None:
    async with ScriptedUpstream(script) as up:
        timers = {"total_timeout_s": 0.1} if script == [STALL] else UNHURRIED
        gateway = await standing_with({"channel": [channel(up.base_url, **timers)], "price": [PRICE]})
        found, body = await post(gateway, path)
        error = error_of(body)
        assert (found, error["code"]) == (status, code)
        assert error["message"].startswith(words)
        (row,) = await gateway.rows(1)
        assert (row.operation, row.status, row.completion_tokens) == (path.operation, status, 0)
        assert (row.cost_nanos > 0) is (script == [STALL]), "who is silent works"


@every_path
async def test_another_channel_may_do_better(standing_with: StartGateway, path: Path) -> None:
    async with ScriptedUpstream([answer(b"down", 500)]) as bad, ScriptedUpstream([answer(path.answer)]) as good:
        config = [channel(bad.base_url, "bad", priority=1), channel(good.base_url, "good")]
        gateway = await standing_with({"channel": config, "price": [PRICE]})
        assert (await post(gateway, path))[0] == 200
        (row,) = await gateway.rows(1)
        check_cost(row, path)
        assert (row.channel, row.attempts) == ("good", 2)


FAILED = named(
    "response.failed", response=response("failed", output=[], error={"code": "server_error", "message": "oops"})
)
ERROR = event({"error": {"message": "oops"}})


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        (STREAMED[0], [ERROR]),
        (STREAMED[1], [named("error", message="oops", code="server_error")]),
        (STREAMED[1], [BEGUN, FAILED]),
        (STREAMED[1], [BEGUN]),
    ],
    ids=["completion", "error", "failed", "cut"],
)
async def test_a_stream_that_fails_before_there_is_something_of_an_answer_goes_to_another_channel(
    standing_with: StartGateway, path: Path, bad: list[bytes]
) -> None:
    good: list[Step] = [SSE_HEAD, *map(chunk, path.stream), LAST_CHUNK]
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, bad), FIN]) as first, ScriptedUpstream(good) as second:
        config = [channel(first.base_url, "bad", priority=1), channel(second.base_url, "good")]
        gateway = await standing_with({"channel": config, "price": [PRICE]})
        assert await post(gateway, path, stream=True) == (200, b"".join(path.heard))
        (row,) = await gateway.rows(1)
        check_cost(row, path)
        assert (row.channel, row.attempts) == ("good", 2)


@every_stream
@pytest.mark.parametrize("end", [LAST_CHUNK, FIN, RST, STALL], ids=["no mark", "cut", "reset", "silence"])
async def test_a_stream_that_fails_after_its_first_byte_ends_in_an_error_and_is_charged_for_what_came(
    standing_with: StartGateway, path: Path, end: Step
) -> None:
    begun = path.stream[:2] if path.operation == "responses" else path.stream[:1]
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, begun), 0.02, end]) as up:
        timers: dict[str, Any] = UNHURRIED | ({"idle_timeout_s": 0.1} if end is STALL else {})
        gateway = await standing_with({"channel": [channel(up.base_url, **timers)], "price": [PRICE]})
        status, body = await post(gateway, path, stream=True)
        assert status == 200
        whole = b"".join(begun)
        head = whole + (b"event: error\ndata: " if path.operation == "responses" else b"data: ")
        assert body.startswith(head)
        error = orjson.loads(body[len(head) :].partition(b"\n\n")[0])["error"]
        assert error["code"] == ("upstream_timeout" if end is STALL else "upstream_error")
        assert b"[DONE]" not in body
        assert b"response.completed" not in body
        (row,) = await gateway.rows(1)
        assert (row.operation, row.outcome, row.usage_source) == (path.operation, "failed", "estimate")
        assert row.completion_tokens == estimate_text("good")
        assert row.cost_nanos == row.prompt_tokens * 1_000 + row.completion_tokens * 2_000


async def test_a_response_that_fails_after_its_first_byte_ends_as_its_provider_ended_it(
    standing_with: StartGateway,
) -> None:
    path, pieces = STREAMED[1], [*RESPONDED[:2], FAILED]
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, pieces), LAST_CHUNK]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        assert await post(gateway, path, stream=True) == (200, b"".join(pieces))


async def test_another_method_is_a_405(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE)]})
    for path in PATHS:
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            async with gateway.client.request(method, gateway.url + path.path) as found:
                assert (found.status, found.headers["Allow"]) == (405, "POST")
                assert error_of(await found.read())["code"] == "method_not_allowed"


REFUSALS: tuple[tuple[Path, dict[str, Any], str], ...] = (
    (PATHS[0], {"prompt": 5}, "prompt"),
    (PATHS[0], {"prompt": []}, "prompt"),
    (PATHS[0], {"prompt": ["a", 5]}, "prompt[1]"),
    (PATHS[0], {"n": 0}, "n"),
    (PATHS[0], {"max_tokens": -1}, "max_tokens"),
    (PATHS[0], {"stream": "yes"}, "stream"),
    (PATHS[0], {"stream_options": {"include_usage": True}}, "stream_options"),
    (PATHS[0], {"temperature": 101}, "temperature"),
    (PATHS[1], {"input": None}, "input"),
    (PATHS[1], {"input": [7]}, "input[0]"),
    (PATHS[1], {"model": 7}, "model"),
    (PATHS[2], {"query": None}, "query"),
    (PATHS[2], {"documents": []}, "documents"),
    (PATHS[2], {"documents": [1]}, "documents[0]"),
    (PATHS[2], {"top_n": 0}, "top_n"),
    (PATHS[3], {"input": 5}, "input"),
    (PATHS[3], {"input": ["x"]}, "input[0]"),
    (PATHS[3], {"max_output_tokens": 0}, "max_output_tokens"),
    (PATHS[3], {"stream": 1}, "stream"),
    (PATHS[3], {"conversation": 1}, "conversation"),
)


async def test_what_cannot_be_asked_is_a_400_that_names_the_field(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        for path, more, param in REFUSALS:
            status, body = await post(gateway, path, **more)
            error = error_of(body)
            assert (status, error["code"], error["param"]) == (400, "invalid_request", param)
        assert not up.received
        rows = await gateway.rows(len(REFUSALS))
        assert {(row.outcome, row.cost_nanos) for row in rows} == {("refused", 0)}
        assert [row.operation for row in rows] == [path.operation for path, _, _ in REFUSALS]


@every_path
async def test_a_cap_of_what_is_held_admits_the_call_and_a_nano_less_does_not(
    gateway_with: StartGateway, path: Path
) -> None:
    async with ScriptedUpstream([answer(path.answer)]) as up:
        config = {"channel": [channel(up.base_url)], "price": [PRICE]}
        gateway = await gateway_with(config)
        await post(gateway, path)
        (row,) = await gateway.rows(1)
        for cap, status in ((row.reserved_nanos, 200), (row.reserved_nanos - 1, 403)):
            account = {"name": "acme", "quota_usd": cap / 10**9}
            capped = await gateway_with({**config, "account": [account]})
            assert (await post(capped, path))[0] == status
        assert len(up.received) == 2
