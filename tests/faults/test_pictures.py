"""Pictures of every kind of provider: what is no picture, a block, a limit, a part that fails, and what tells secrets.

Told of each vendor in its own shapes; those of what it refuses and blocks are in ``tests/fakes``.
"""

import base64
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import product
from typing import Any
from urllib.parse import quote

import attrs
import orjson
import pytest
from structlog.testing import capture_logs

from gateway.media.images import MAX_ANSWER_BYTES
from gateway.server.context import SERVICES
from tests.support.chat_images import ChatImages
from tests.support.dashscope_images import DashScopeImages
from tests.support.fault_scene import check_charged_once, check_error, until
from tests.support.gateway import RunningGateway, channel
from tests.support.gemini_images import GeminiImages
from tests.support.image_providers import ImageProvider
from tests.support.image_scene import (
    A_IMAGE,
    DATA,
    DATA_URL,
    PAINTED,
    ask,
    audit,
    audit_books,
    check_images,
    check_row,
    healthy,
    site,
)
from tests.support.openai_images import BLOCKED, CustomImages, OpenAiImages
from tests.support.replicate_images import ReplicateImages
from tests.support.scripted_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    Flood,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    event,
)
from tests.support.started_gateways import StartGateway

MB = 1024 * 1024
PROVIDERS: tuple[type[ImageProvider], ...] = (
    OpenAiImages,
    CustomImages,
    GeminiImages,
    ChatImages,
    DashScopeImages,
    ReplicateImages,
)
ALL = pytest.mark.parametrize("vendor", PROVIDERS, ids=lambda vendor: vendor.slug)
BROKEN_BASE64 = "iVBORw0KGgo=!!"
TASK = "gm3qorzdhgbfurvjtvhg6dck00"
BEGUN = answer({"id": TASK, "status": "starting"}, 201)


def talk(**message: Any) -> dict[str, Any]:
    """A chat model's answer."""
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}]}


def generate(*parts: dict[str, Any]) -> dict[str, Any]:
    """Gemini's."""
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}]}


def ended(output: Any) -> dict[str, Any]:
    """A prediction of Replicate's."""
    return {"id": TASK, "status": "succeeded", "output": output}


def made(*content: dict[str, Any]) -> dict[str, Any]:
    """DashScope's, of a model that answers at once."""
    return {"output": {"choices": [{"message": {"role": "assistant", "content": content}}]}}


@attrs.frozen
class Kind:
    """A kind of provider, and its good answers without a picture: ``empty``, with ``broken`` base64, in ``words``."""

    slug: str
    model: str
    empty: Any
    broken: Any
    words: Any
    task: bool = False

    def channel(self, up: ScriptedUpstream, **more: Any) -> dict[str, Any]:
        """Where a script is played in this vendor's place."""
        return channel(up.base_url, self.slug, provider=self.slug, **{"model_map": {"m": self.model}, **more})

    def play(self, body: Any) -> list[Script]:
        """The scripts of one answer to one call."""
        return [[BEGUN], [answer(body)]] if self.task else [[answer(body)]]


SORRY = "I am sorry, I cannot draw that."
KINDS = (
    Kind("openai", "gpt-image-1", {"created": 1, "data": []}, {"data": [{"b64_json": BROKEN_BASE64}]},
         talk(content=SORRY)),
    Kind("custom", "org/painter", {"data": [], "images": []}, {"images": [{"url": "data:image/png;base64,!"}]},
         {"data": [{"text": SORRY}]}),
    Kind("gemini", "gemini-2.5-flash-image", {"candidates": []},
         generate({"inlineData": {"mimeType": "image/png", "data": BROKEN_BASE64}}), generate({"text": SORRY})),
    Kind("openrouter", "google/gemini-2.5-flash-image", talk(content=None, images=[]),
         talk(images=[{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BROKEN_BASE64}"}}]),
         talk(content=SORRY)),
    Kind("dashscope", "qwen-image-max", {"output": {"choices": []}}, made({"image": "data:image/png;base64,!"}),
         made({"text": SORRY})),
    Kind("replicate", "black-forest-labs/flux-schnell", ended([]), ended([f"data:image/png;base64,{BROKEN_BASE64}"]),
         ended(SORRY), task=True),
)  # fmt: skip
DEEP = b"[" * 500_000


def count_asked(up: ScriptedUpstream) -> int:
    """How often it was asked for a picture."""
    return sum(received.method == "POST" and not received.path.endswith("/cancel") for received in up.received)


def find_line(gateway: RunningGateway, name: str) -> Any:
    return gateway.app[SERVICES].routing.load_balancer.channels[name]


async def start_chain(
    stack: AsyncExitStack, standing_with: StartGateway, scripts: Sequence[Sequence[Script]]
) -> tuple[RunningGateway, list[ScriptedUpstream]]:
    """A gateway over a channel of every kind, asked one after the other, and one that is well behind them."""
    ups = [await stack.enter_async_context(ScriptedUpstream(*played)) for played in scripts]
    good = await stack.enter_async_context(ScriptedUpstream([PAINTED]))
    channels = [
        kind.channel(up, priority=10 - number, weight=1)
        for number, (kind, up) in enumerate(zip(KINDS, ups, strict=True))
    ]
    routing = {"max_attempts": 10, "trip_failures": 1000}
    return await standing_with(site(*channels, healthy(good), routing=routing)), ups


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["empty", "broken", "words", "deep"])
async def test_what_is_no_image_is_somebody_else_s_to_paint(
    standing_with: StartGateway, name: str, *, stream: bool
) -> None:
    """Whichever kind of provider said it: each is asked once, and the one picture is charged once."""
    scripts = [kind.play(DEEP if name == "deep" else getattr(kind, name)) for kind in KINDS]
    async with AsyncExitStack() as stack:
        gateway, ups = await start_chain(stack, standing_with, scripts)
        heard = await ask(gateway, stream=stream)
        assert heard.status == 200, heard
        tried = [one.partition(";")[0] for one in heard.headers["x-gateway-tried"].split(", ")]
        assert tried == ["upstream_error"] * len(KINDS)
        assert [count_asked(up) for up in ups] == [1] * len(KINDS)
        await audit(gateway, outcome="completed", channel="healthy", attempts=len(KINDS) + 1, images=1)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.slug in {"gemini", "openrouter"}], ids=lambda it: it.slug
)
async def test_a_model_that_talks_instead_is_told_as_such_and_not_held_against_its_channel(
    standing_with: StartGateway, kind: Kind
) -> None:
    """It depends on what it was asked for: the next call finds the channel as it was."""
    async with ScriptedUpstream([answer(kind.words)]) as up:
        gateway = await standing_with(site(kind.channel(up), routing={"trip_failures": 1}))
        for _ in range(3):
            heard = await ask(gateway)
            check_error(heard, "upstream_error")
            assert SORRY in orjson.loads(heard.body)["error"]["message"]
        assert find_line(gateway, kind.slug).breaker.state == "closed"
        for row in await gateway.rows(3):
            check_row(row, outcome="failed", images=0, attempts=1)
        await audit_books(gateway)


# Blocks.


@ALL
async def test_a_block_is_final_and_nobody_s_fault(standing_with: StartGateway, vendor: type[ImageProvider]) -> None:
    """No other channel is asked, nothing is charged, and the channel paints the next picture as if nothing had been."""
    async with vendor("block", "block", "ok") as provider, ScriptedUpstream([PAINTED]) as good:
        gateway = await standing_with(site(provider.channel(), healthy(good), routing={"trip_failures": 1}))
        for stream in (False, True):
            blocked = await ask(gateway, stream=stream)
            error = orjson.loads(blocked.body)["error"]
            assert (blocked.status, error["code"], error["type"]) == (400, "sensitive_words_detected", "new_api_error")
            assert (blocked.headers["x-should-retry"], blocked.headers["x-gateway-attempts"]) == ("false", "1")
        assert (await ask(gateway)).status == 200
        assert (find_line(gateway, "up").breaker.state, good.received) == ("closed", [])
        for row in await gateway.rows(3):
            code = None if row.images else "sensitive_words_detected"
            check_row(row, outcome="blocked" if code else "completed", error_code=code, attempts=1, channel="up")
        await audit_books(gateway)
        check_charged_once(gateway, A_IMAGE)


async def test_a_part_that_is_blocked_ends_the_others_and_nobody_else_is_asked(standing_with: StartGateway) -> None:
    scripts: list[Script] = [[STALL], [0.05, answer(BLOCKED, 400)], [STALL]]
    async with ScriptedUpstream(*scripts) as up, ScriptedUpstream([PAINTED]) as good:
        config = site(channel(up.base_url, fan_out=True), healthy(good), model=[{"name": "m", "max_n": 1}])
        gateway = await standing_with(config)
        blocked = await ask(gateway, n=3)
        assert orjson.loads(blocked.body)["error"]["code"] == "sensitive_words_detected"
        await until(up.hung_up.is_set)
        await until(lambda: up.open_connections <= 1)  # the one that was answered is kept
        await audit(gateway, outcome="blocked", cost_nanos=0, images=0, attempts=1)
        assert (len(up.received), good.received) == (3, [])


# Limits.


def limited(kind: Kind) -> Script:
    """Too many requests, as the vendor says it."""
    message = "Rate limit reached, please slow down"
    body: dict[str, Any] = {"error": {"message": message, "type": "rate_limit", "code": "rate_limit_exceeded"}}
    if kind.slug == "dashscope":
        body = {"code": "Throttling.RateQuota", "message": message, "request_id": "r-1"}
    if kind.slug == "replicate":
        body = {"title": "Too Many Requests", "detail": message, "status": 429}
    return [answer(body, 429, retry_after="7")]


async def test_a_limit_of_every_kind_of_provider_is_another_channel_s_chance(standing_with: StartGateway) -> None:
    async with AsyncExitStack() as stack:
        gateway, ups = await start_chain(stack, standing_with, [[limited(kind)] for kind in KINDS])
        heard = await ask(gateway, n=1)
        check_images(orjson.loads(heard.body)["data"], 1)
        assert [len(up.received) for up in ups] == [1] * len(KINDS)
        await audit(gateway, outcome="completed", channel="healthy", attempts=len(KINDS) + 1, images=1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda it: it.slug)
async def test_a_limit_is_told_to_whoever_has_nobody_else_to_ask(standing_with: StartGateway, kind: Kind) -> None:
    async with ScriptedUpstream(limited(kind)) as up:
        gateway = await standing_with(site(kind.channel(up)))
        heard = await ask(gateway)
        assert heard.status == 429, heard
        assert b"Rate limit reached" in heard.body
        await audit(gateway, outcome="refused", status=429, images=0, attempts=1)


async def test_a_part_that_meets_a_limit_has_the_next_channel_paint_all(standing_with: StartGateway) -> None:
    """What was painted till then is given to nobody, and the caller pays what it got once."""
    scripts: list[Script] = [[PAINTED], limited(KINDS[1]), [STALL]]
    async with ScriptedUpstream(*scripts) as up, CustomImages() as good:
        channels = (channel(up.base_url, fan_out=True), good.channel("healthy", priority=-1, fan_out=True))
        gateway = await standing_with(site(*channels, model=[{"name": "m", "max_n": 1}]))
        heard = await ask(gateway, n=3)
        check_images(orjson.loads(heard.body)["data"], 3)
        await until(up.hung_up.is_set)
        row = await audit(gateway, outcome="completed", channel="healthy", attempts=2, images=3)
        assert row.reserved_nanos == 3 * A_IMAGE
        assert [one.count for one in good.heard] == [1, 1, 1]


# Sizes.


async def test_an_answer_without_an_end_is_not_read_to_it(standing_with: StartGateway) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    flood = Flood(chunk(b'{"data":[{"b64_json":"' + b"A" * 4 * MB), 1_000)
    async with ScriptedUpstream([head, flood]) as up, ScriptedUpstream([PAINTED]) as good:
        gateway = await standing_with(site(channel(up.base_url, total_timeout_s=60), healthy(good)))
        check_images(orjson.loads((await ask(gateway)).body)["data"], 1)
        assert up.flooded < MAX_ANSWER_BYTES + 32 * MB
        await audit(gateway, up, outcome="completed", channel="healthy", attempts=2, images=1)


async def test_more_images_than_anybody_asked_for_are_neither_looked_at_nor_charged(gateway_with: StartGateway) -> None:
    """And what lies at the addresses of those that are too many is not fetched."""
    async with ScriptedUpstream([STALL]) as victim:
        item = {"url": f"{victim.base_url}/1.png"}
        crowds = (
            {"data": [{"url": DATA_URL}] + [item] * 2_000},
            talk(images=[{"image_url": {"url": item["url"]}}] * 2_000 + [{"image_url": {"url": DATA_URL}}]),
        )
        for kind, crowd in zip((KINDS[1], KINDS[3]), crowds, strict=True):
            async with ScriptedUpstream([answer(crowd)]) as up:
                gateway = await gateway_with(site(kind.channel(up), egress={"allow": ["127.0.0.1"]}))
                check_images(orjson.loads((await ask(gateway)).body)["data"], 1)
                await audit(gateway, outcome="completed", images=1)
        assert victim.connections == 0


# Secrets.

SECRET = "CANARY/key+0a1b2c3d=&4e5f"
ECHOES = (SECRET, quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode())
ECHO = f"it was {' or '.join(ECHOES)} at https://x.example/v1?key={SECRET}"


def list_telltales(kind: Kind) -> list[list[Script]]:
    """Everything of a kind's that has words in it for the caller or the log: its errors, blocks and states."""
    error: dict[str, Any] = {"message": ECHO, "type": ECHO, "param": ECHO, "code": ECHO, "status": ECHO}
    flat = {"code": ECHO, "message": ECHO, "detail": ECHO, "title": ECHO, "request_id": ECHO}
    blocked = {"error": {"message": f"Blocked by the safety system, {ECHO}", "code": "content_policy_violation"}}
    plain = [*(answer({"error": error, **flat}, status) for status in (400, 401, 403, 404, 429, 500)),
             answer(flat, 422), answer(ECHO.encode(), 502), answer({"error": error}), answer(flat),
             answer(blocked, 400), answer({"error": ECHO})]  # fmt: skip
    scripts: list[list[Script]] = [[[one]] for one in plain]
    if kind.slug == "openai":
        partial = {"type": "image_generation.partial_image", "b64_json": DATA, "partial_image_index": 0}
        for begun in (b"", chunk(event(partial))):
            scripts += [[[SSE_HEAD, begun, chunk(event({"type": "error", "error": error, **flat})), LAST_CHUNK]]]
    body: dict[str, list[Any]] = {
        "openai": [{"data": [{"url": ECHO}]}],
        "custom": [{"data": [{"url": f"http://127.0.0.1:9/{quote(SECRET, safe='')}"}]}],
        "gemini": [generate({"text": ECHO}), {"promptFeedback": {"blockReason": ECHO}},
                   {"candidates": [{"finishReason": "IMAGE_SAFETY", "finishMessage": ECHO}]}],
        "openrouter": [talk(content=ECHO), talk(content=None, refusal=ECHO), {"choices": [{"error": error}]}],
        "dashscope": [{"output": {"task_status": "FAILED", "code": ECHO, "message": ECHO}},
                      {"output": {"task_status": ECHO}}, made({"image": ECHO})],
        "replicate": [],
    }  # fmt: skip
    scripts += [[[answer(one)]] for one in body[kind.slug]]
    if kind.task:
        tales = ({"status": "failed", "error": ECHO}, {"status": "failed", "error": f"NSFW content, {ECHO}"},
                 {"status": ECHO}, {"status": "succeeded", "output": [ECHO]})  # fmt: skip
        scripts += [[[BEGUN], [answer({"id": TASK, **tale})]] for tale in tales]
    return scripts


@pytest.mark.parametrize("kind", KINDS, ids=lambda it: it.slug)
async def test_no_key_is_in_what_is_said_of_images_that_failed(standing_with: StartGateway, kind: Kind) -> None:
    """In no answer, log line or row, in whatever form the provider repeats it."""
    tales = list_telltales(kind)
    async with AsyncExitStack() as stack:
        channels, ups = [], []
        for number, scripts in enumerate(tales):
            up = await stack.enter_async_context(ScriptedUpstream(*scripts, *scripts))
            more = {"models": [f"m{number}"], "model_map": {f"m{number}": kind.model}, "name": f"c{number}"}
            channels.append({**kind.channel(up, api_key=SECRET), **more})
            ups.append(up)
        with capture_logs() as lines:
            gateway = await standing_with(site(*channels))
            seen = []
            for number, stream in product(range(len(tales)), (False, True)):
                heard = await ask(gateway, model=f"m{number}", stream=stream)
                assert heard.status >= 400 or b'"error"' in heard.body, (number, heard)
                seen.append(f"{heard.headers} {heard.body.decode()}")
        rows = await gateway.rows(2 * len(tales))
        assert all(SECRET in str(up.received[0].headers) for up in ups)
        shown = "\n".join([*seen, str(lines), str(rows)])
        assert "[masked]" in shown
        assert [echo for echo in ECHOES if echo.rstrip("=") in shown] == []
        assert {row.cost_nanos for row in rows} == {0}
        await audit_books(gateway)
