"""How pictures are got: asked for in parts, waited for, given up, and given in the form that is wanted.

On a loop whose clock jumps, over a provider, a fetcher and a store of the test's own.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import orjson
import pytest
from structlog.testing import capture_logs

from gateway.domain.capability import Capability
from gateway.domain.channel import Timeouts
from gateway.domain.image import Image
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import (
    GatewayError,
    ImageBlocked,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderTimeout,
    SensitiveWords,
    ShuttingDown,
    StoreUnavailable,
    UnsupportedByProvider,
)
from gateway.formats.wire.sse import KEEPALIVE
from gateway.media.buffered_stream import BufferedPassthrough, BufferedStream
from gateway.media.images import ABANDON_TIMEOUT_S, CLOSE_TIMEOUT_S, MAX_FAILURES, MAX_WAIT_S, POLL_TIMEOUT_S, can_pass
from gateway.media.word_filter import WordList
from gateway.proxy.failover import Proxy
from gateway.request_context import RequestContext
from gateway.upstream.interface import PumpResult
from tests.support.billing_services import caller_of
from tests.support.contexts import make_context
from tests.support.image_providers import draw
from tests.support.image_services import (
    BEGUN,
    NOW_S,
    TASK,
    Answer,
    Answered,
    Asked,
    Clerk,
    ImageServices,
    ask,
    image_services,
    images,
    number,
    play,
    task,
)
from tests.support.skip_rules import run_skipping
from tests.support.table_rows import table_rows

IMAGE = base64.b64encode(draw()).decode()


DONE = task("succeeded", output=[f"data:image/png;base64,{IMAGE}"])
FAILED = Answered({"detail": "Internal server error"}, 500)


def openai(clerk: Clerk, **more: Any) -> ImageServices:
    return image_services(clerk, "custom", "org/painter", **more)


async def see(work: Awaitable[Any]) -> ProviderError:
    """The fault that it ends in."""
    with pytest.raises(ProviderError) as met:
        await work
    return met.value


async def leave(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(scene: Coroutine[Any, Any, None]) -> None:
    run_skipping(scene)


# Waiting for a task.


def test_a_task_is_asked_after_less_and_less_often() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, *[task("processing")] * 6, DONE))
        answer, usage, at = await up.answer()
        assert [round(poll, 2) for poll in up.provider.polls] == [0.5, 1.25, 2.38, 4.06, 6.59, 9.59, 12.59]
        assert at == pytest.approx(up.provider.polls[-1])
        assert answer["data"] == [{"b64_json": IMAGE}]
        assert usage == Usage(source="upstream", images=1)
        assert up.provider.cancels == []

    run(scene())


@table_rows(
    "trouble",
    [
        FAILED,
        Answered(b"<html>Bad gateway</html>", 502),
        Answered({"detail": "slow down"}, 429),
        Answered({"detail": "Prediction not found"}, 404),
        Answered({"detail": "what?"}, 400),
        ProviderBadResponse("The provider broke the connection"),
        ProviderTimeout("Connecting to the provider took too long"),
    ],
    ids=["500", "a page", "429", "404", "400", "broken", "timeout"],
)
def test_a_task_is_not_lost_because_some_answers_were(trouble: Answer) -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, *[trouble] * MAX_FAILURES, task("processing"), *[trouble] * MAX_FAILURES, DONE))
        answer, _, _ = await up.answer()
        assert len(answer["data"]) == 1
        waits = [round(after - before, 2) for before, after in pairwise(up.provider.polls)]
        assert waits == [0.5, 1, 2, 4, 8, 0.75, 0.5, 1, 2, 4, 8]
        assert up.provider.cancels == []

    run(scene())


def test_a_task_that_nobody_says_anything_of_is_given_up_and_cancelled() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, FAILED))
        error = await see(up.answer())
        assert isinstance(error, ProviderBadResponse)
        assert error.retryable
        assert len(up.provider.polls) == 1 + MAX_FAILURES
        await up.images.close()
        assert up.provider.cancels == [f"/predictions/{TASK}/cancel"]

    run(scene())


@table_rows("status", [400, 404, 422])
def test_what_is_said_against_a_poll_is_no_mistake_of_the_caller_s(status: int) -> None:
    async def scene() -> None:
        error = await see(image_services(play(BEGUN, Answered({"detail": "no such task"}, status))).answer())
        assert isinstance(error, ProviderBadResponse)
        assert (error.status, error.retryable, error.public_code) == (502, True, "upstream_error")

    run(scene())


def test_a_key_that_is_refused_is_not_tried_again() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, Answered({"detail": "Unauthenticated"}, 401)))
        assert isinstance(await see(up.answer()), ProviderAuthError)
        assert len(up.provider.polls) == 1

    run(scene())


def test_a_block_that_a_poll_is_answered_with_is_believed_at_once() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, Answered({"detail": "NSFW content detected."}, 400)))
        assert isinstance(await see(up.answer()), ImageBlocked)
        assert len(up.provider.polls) == 1

    run(scene())


@table_rows(("asked", "waited"), [("7", 7), ("300", MAX_WAIT_S), ("0", 0.5), ("soon", 0.5)])
def test_a_provider_that_wants_to_be_left_alone_is_as_far_as_is_reasonable(asked: str, waited: float) -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, Answered({}, 429, headers={"Retry-After": asked}), DONE))
        await up.answer()
        first, second = up.provider.polls
        assert second - first == pytest.approx(waited)

    run(scene())


@table_rows("mumbled", [b"<html>", b"", b"null", b"[1]", b'{"a', b"\xff\xfe"])
def test_answers_that_are_none_are_passed_over_a_few_times(mumbled: bytes) -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, *[Answered(mumbled)] * 3, task("processing"), *[Answered(mumbled)] * 3, DONE))
        assert (await up.answer())[0]["data"]
        lost = image_services(play(BEGUN, *[Answered(mumbled)] * 4, DONE))
        assert isinstance(await see(lost.answer()), ProviderBadResponse)
        await lost.images.close()
        assert len(lost.provider.cancels) == 1

    run(scene())


def test_an_answer_about_a_task_that_does_not_come_is_asked_for_again() -> None:
    """A poll is a small thing: it must not take the whole time of the call."""

    async def scene() -> None:
        up = image_services(play(BEGUN, attrs.evolve(DONE, wait_s=10_000), DONE))
        _, _, at = await up.answer()
        assert at == pytest.approx(0.5 + POLL_TIMEOUT_S + 0.5)
        assert len(up.provider.polls) == 2

    run(scene())


def test_what_begins_a_task_is_asked_once() -> None:
    async def scene() -> None:
        for trouble in (
            FAILED,
            ProviderBadResponse("broken"),
            Answered({}, 429),
            Answered(b"<html>"),
            Answered({"status": "starting"}),
        ):
            up = image_services(play(trouble))
            await see(up.answer())
            assert len(up.provider.asked) == 1

    run(scene())


# Giving up.


def test_whoever_leaves_takes_a_task_along() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, task("processing")))
        painting = asyncio.create_task(up.answer())
        await asyncio.sleep(100)
        await leave(painting)
        await up.images.close()
        assert up.provider.cancels == [f"/predictions/{TASK}/cancel"]

    run(scene())


def test_a_task_whose_id_comes_after_its_caller_has_left_is_cancelled_then() -> None:
    async def scene() -> None:
        up = image_services(play(attrs.evolve(BEGUN, wait_s=5), DONE))
        painting = asyncio.create_task(up.answer())
        await asyncio.sleep(1)
        await leave(painting)
        assert up.provider.cancels == []
        await asyncio.sleep(5)
        assert up.provider.cancels == [f"/predictions/{TASK}/cancel"]
        assert up.provider.asked[-1].at == pytest.approx(5)
        assert up.provider.polls == []
        await up.images.close()

    run(scene())


@table_rows("late", [FAILED, DONE, Answered(b"<html>"), ProviderBadResponse("broken")])
def test_what_came_to_nothing_or_has_ended_by_then_is_not_cancelled(late: Answer) -> None:
    async def scene() -> None:
        slow = attrs.evolve(late, wait_s=5) if isinstance(late, Answered) else late
        up = image_services(play(slow))
        painting = asyncio.create_task(up.answer())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await leave(painting)
        await up.images.close()
        assert up.provider.cancels == []
        assert len(up.provider.asked) <= 1

    run(scene())


def test_nobody_is_waited_for_longer_than_is_reasonable_once_a_caller_has_left() -> None:
    async def scene() -> None:
        up = image_services(play(attrs.evolve(BEGUN, wait_s=100_000)))
        painting = asyncio.create_task(up.answer())
        await asyncio.sleep(1)
        await leave(painting)
        await asyncio.sleep(ABANDON_TIMEOUT_S - 0.1)
        assert up.provider.running == 1
        await asyncio.sleep(0.2)
        assert up.provider.running == 0

    run(scene())


@table_rows("cancel", [FAILED, Answered({"detail": "already ended"}, 400), ProviderBadResponse("broken")])
def test_a_cancel_that_fails_is_a_line_in_the_log(cancel: Answer) -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, task("processing"), cancel=cancel))
        painting = asyncio.create_task(up.answer())
        await asyncio.sleep(3)
        with capture_logs() as lines:
            await leave(painting)
            await up.images.close()
        (line,) = lines
        assert (line["event"], line["channel"]) == ("provider_task_not_cancelled", "up")
        assert "key-of-up" not in str(line)
        assert len(up.provider.cancels) == 1

    run(scene())


def test_a_cancel_that_is_not_answered_is_not_waited_for() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, task("processing"), cancel=attrs.evolve(BEGUN, wait_s=100_000)))
        painting = asyncio.create_task(up.answer())
        await asyncio.sleep(3)
        with capture_logs() as lines:
            await leave(painting)
            await asyncio.sleep(ABANDON_TIMEOUT_S - 0.1)
            assert up.provider.running == 1
            await asyncio.sleep(0.2)
        assert [line["event"] for line in lines] == ["provider_task_not_cancelled"]
        assert up.provider.running == 0

    run(scene())


def test_a_cancel_that_a_stop_cannot_wait_for_is_a_line_in_the_log_too() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, task("processing"), cancel=attrs.evolve(BEGUN, wait_s=100_000)))
        painting = asyncio.create_task(up.answer())
        await asyncio.sleep(3)
        with capture_logs() as lines:
            await leave(painting)
            await up.images.close()
        assert [line["event"] for line in lines] == ["provider_task_not_cancelled"]
        assert asyncio.get_running_loop().time() == pytest.approx(3 + CLOSE_TIMEOUT_S)

    run(scene())


def test_a_caller_who_leaves_as_the_id_comes_cancels_once() -> None:
    """Whatever the order in which the two are heard of."""

    async def scene() -> None:
        for turns in range(12):
            up = image_services(play(BEGUN, task("processing")))
            painting = asyncio.create_task(up.answer())
            for _ in range(turns):
                await asyncio.sleep(0)
            await leave(painting)
            await up.images.close()
            begun = any(asked.method == "POST" and asked.body for asked in up.provider.asked)
            assert len(up.provider.cancels) == begun, turns

    run(scene())


# Parts.


def parts_of(up: ImageServices) -> list[int]:
    return [asked.body.get("n", 1) for asked in up.provider.asked]


def paint_as_reported(asked: Asked) -> Answered:
    """As many as are asked for, the later ones sooner; each says which request it is of."""
    shades = [asked.number * 16 + index for index in range(asked.body.get("n", 1))]
    data = [base64.b64encode(draw(shade=shade)).decode() for shade in shades]
    usage = {"input_tokens": 10, "output_tokens": 100, "input_tokens_details": {"image_tokens": 4, "text_tokens": 6}}
    return attrs.evolve(images(*data, usage=usage, size="64x64"), wait_s=10 - asked.number)


@table_rows(
    ("count", "most", "parts"), [(1, 1, [1]), (4, 4, [4]), (5, 2, [2, 2, 1]), (10, 4, [4, 4, 2]), (3, 1, [1, 1, 1])]
)
def test_what_a_model_does_not_make_at_a_time_is_asked_for_in_parts(count: int, most: int, parts: list[int]) -> None:
    async def scene() -> None:
        up = openai(paint_as_reported, models=[number(most)], fan_out=True)
        answer, usage, at = await up.answer(ask(n=count))
        assert parts_of(up) == parts
        wanted = [draw(shade=part * 16 + index) for part, size in enumerate(parts) for index in range(size)]
        assert [base64.b64decode(one["b64_json"]) for one in answer["data"]] == wanted
        assert attrs.evolve(usage, details=None) == Usage(10 * len(parts), 100 * len(parts), 0, "upstream", count)
        assert answer["usage"]["total_tokens"] == 110 * len(parts)
        assert at == pytest.approx(10)

    run(scene())


def test_no_more_parts_run_at_once_than_the_channel_may_be_asked() -> None:
    async def scene() -> None:
        up = openai(paint_as_reported, models=[number(1)], fan_out=True, max_concurrency=2)
        assert len((await up.answer(ask(n=6)))[0]["data"]) == 6
        assert up.provider.most == 2

    run(scene())


def test_a_part_that_fails_ends_the_others_at_once() -> None:
    async def scene() -> None:
        def fail_third(asked: Asked) -> Answer:
            return attrs.evolve(FAILED, wait_s=1) if asked.number == 2 else paint_as_reported(asked)

        up = openai(fail_third, models=[number(1)], fan_out=True)
        error = await see(up.answer(ask(n=4)))
        assert "status 500" in error.message
        assert asyncio.get_running_loop().time() == pytest.approx(1)
        assert up.provider.running == 0
        assert up.shelf.kept == []

    run(scene())


def test_a_part_that_brings_too_few_is_charged_as_what_it_brought() -> None:
    async def scene() -> None:
        up = openai(play(images(IMAGE)))
        answer, usage, _ = await up.answer(ask(n=3))
        assert (len(answer["data"]), usage.images) == (1, 1)

    run(scene())


def test_more_than_was_asked_for_is_neither_given_nor_charged() -> None:
    async def scene() -> None:
        up = openai(play(images(*[IMAGE] * 4)))
        answer, usage, _ = await up.answer(ask(n=2))
        assert (len(answer["data"]), usage.images) == (2, 2)

    run(scene())


def test_one_estimate_makes_the_whole_an_estimate() -> None:
    async def scene() -> None:
        def forget_once(asked: Asked) -> Answered:
            return images(IMAGE) if asked.number else paint_as_reported(asked)

        up = openai(forget_once, models=[number(1)], fan_out=True)
        answer, usage, _ = await up.answer(ask(n=2))
        assert (usage.source, usage.images) == ("estimate", 2)
        assert "usage" not in answer

    run(scene())


# What callers are given.


@table_rows(
    "data",
    ["no base64!", "QUJD", IMAGE[:-3], IMAGE[:40] + "\n" + IMAGE[40:], base64.b64encode(b"<html>").decode(), "é"],
    ids=["garbage", "text", "cut", "a line's end", "a page", "not ascii"],
)
@table_rows("form", ["url", "b64_json"])
def test_what_is_no_image_is_given_to_nobody(data: str, form: str) -> None:
    async def scene() -> None:
        up = openai(play(images(data)))
        error = await see(up.answer(ask(response_format=form)))
        assert isinstance(error, ProviderBadResponse)
        assert error.retryable
        assert up.shelf.kept == []

    run(scene())


def test_an_empty_image_is_none() -> None:
    async def scene() -> None:
        for answered in (
            images(""),
            images(),
            Answered({"data": [{"url": ""}]}),
            Answered({"data": [{}]}),
            Answered({}),
        ):
            assert isinstance(await see(openai(play(answered)).answer()), ProviderBadResponse)
        empty = openai(play(Answered({"data": [{"url": "http://files/1"}]})), files={"http://files/1": b""})
        assert isinstance(await see(empty.answer()), ProviderBadResponse)

    run(scene())


@table_rows("form", ["url", "b64_json"])
def test_an_address_is_fetched_over_the_guard_for_either_form(form: str) -> None:
    async def scene() -> None:
        answered = Answered({"data": [{"url": "http://files/1"}]})
        up = openai(play(answered), files={"http://files/1": draw()}, proxy="http://proxy:1")
        answer, _, _ = await up.answer(ask(response_format=form))
        (item,) = answer["data"]
        if form == "url":
            assert item == {"url": "https://gateway.example/media/0"}
            assert up.shelf.kept == [draw()]
        else:
            assert item == {"b64_json": IMAGE}
            assert up.shelf.kept == []
        (fetched,) = up.files.asked
        assert (fetched["trusted_origin"], fetched["proxy"]) == ("http://up", "http://proxy:1")
        assert fetched["limit_bytes"] == 32 * 1024 * 1024

    run(scene())


def test_an_address_passes_where_it_may_and_only_to_those_who_want_addresses() -> None:
    async def scene() -> None:
        answered = Answered({"data": [{"url": "http://10.0.0.1/secret.png?sig=1", "b64_json": "no base64!"}]})
        up = openai(play(answered), pass_urls=True)
        answer, _, _ = await up.answer(ask(response_format="url"))
        assert answer["data"] == [{"url": "http://10.0.0.1/secret.png?sig=1"}]
        assert up.files.asked == []
        addressed = Answered({"data": [{"url": "http://10.0.0.1/secret.png"}]})
        up = openai(play(addressed), pass_urls=True)
        await see(up.answer())
        assert len(up.files.asked) == 1

    run(scene())


def test_one_file_that_cannot_be_had_fails_the_whole() -> None:
    async def scene() -> None:
        answered = Answered({"data": [{"url": "http://files/1"}, {"url": "http://files/2"}]})
        up = openai(play(answered), files={"http://files/1": draw()})
        error = await see(up.answer(ask(n=2, response_format="url")))
        assert (error.status, error.public_code) == (502, "upstream_error")

    run(scene())


# Before anything is held.


def test_words_and_room_are_looked_at_before_anything_else() -> None:
    async def scene() -> None:
        up = openai(play(images(IMAGE)))
        up.images.find_words = lambda: WordList({"forbidden fruit": "forbidden fruit"})
        up.shelf.full = True
        for form, prompt, stream, refused in (
            ("url", "a pear", False, StoreUnavailable),
            ("b64_json", "a forbidden fruit", False, SensitiveWords),
            ("url", "a forbidden fruit", True, SensitiveWords),
            ("b64_json", "a pear", False, None),
            ("url", "a pear", True, None),
        ):
            inference = ask(prompt=prompt, response_format=form, stream=stream)
            if refused is None:
                up.images.check(inference)
                continue
            with pytest.raises(refused):
                up.images.check(inference)

    run(scene())


def test_a_submit_that_is_never_answered_holds_no_stop_up_for_long() -> None:
    async def scene() -> None:
        up = image_services(play(Answered(BEGUN.body, wait_s=3_600)))
        calling = asyncio.create_task(up.answer())
        await asyncio.sleep(1)
        calling.cancel()
        await asyncio.wait({calling})
        await up.images.close()
        assert asyncio.get_running_loop().time() == 1 + CLOSE_TIMEOUT_S
        assert len(asyncio.all_tasks()) == 1

    run(scene())


def test_what_a_language_has_no_words_for_is_no_attempt_of_the_provider_s() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, DONE))
        error = await see(up.answer(ask(background="transparent")))
        assert isinstance(error, UnsupportedByProvider)
        assert error.param == "background"
        assert up.provider.asked == []

    run(scene())


# Streams.


def wait(seconds: float, answered: Answered) -> Answered:
    return attrs.evolve(answered, wait_s=seconds)


class RecordingClient:
    """``flow.client_stream.Outlet`` that hears everything, and when."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, bytes]] = []
        self.opened_at: float | None = None
        self.finished = False
        self.full = False

    def add_doc_url(self, error: GatewayError) -> None:
        """Nothing: no request has an address here."""

    def open(self, media_type: str, data: bytes) -> None:
        assert media_type.startswith("text/event-stream")
        self.opened_at = asyncio.get_running_loop().time()
        self.write(data)

    def write(self, data: bytes, framed: bytes | None = None) -> bool:  # noqa: ARG002 - the port's
        if data:
            self.heard.append((asyncio.get_running_loop().time(), data))
        return False

    async def drain(self) -> None: ...

    def wake(self) -> None: ...

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None: ...

    async def finish(self, data: bytes) -> None:
        self.write(data)
        self.finished = True

    def abort(self) -> None:
        raise AssertionError("a stream of events is not cut")


@attrs.define
class Listening:
    """One call for a stream, through the relay."""

    up: ImageServices
    inference: InferenceRequest
    ear: RecordingClient = attrs.Factory(RecordingClient)
    settled: list[GatewayError | None] = attrs.Factory(list)
    ctx: RequestContext = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ctx = make_context(caller_of(), self.inference, operation=self.inference.operation)

    def relay(self) -> Proxy:
        return Proxy(self.up.provider, self.up.board, clock=lambda: float(NOW_S))

    async def run(self, relay: Proxy | None = None) -> ProviderError | None:
        self.ctx.target_list = self.up.route(self.inference)
        relay = relay or self.relay()
        return await self.up.images.fetch_stream(relay, self.ctx, self.ear, settle=self.settled.append)


def test_a_painting_that_takes_its_time_is_kept_alive_and_then_told() -> None:
    async def scene() -> None:
        up = openai(play(wait(50, images(IMAGE))), models=[Capability("m", streams=False)])
        listening = Listening(up, ask(stream=True))
        assert await listening.run() is None
        *comments, (at, last) = listening.ear.heard
        assert [(round(when), answered) for when, answered in comments] == [
            (15, KEEPALIVE),
            (30, KEEPALIVE),
            (45, KEEPALIVE),
        ]
        assert at == pytest.approx(50)
        assert last.startswith(b"event: image_generation.completed\ndata: ")
        assert last.endswith(b"data: [DONE]\n\n")
        assert (listening.settled, listening.ear.finished) == ([None], True)
        assert listening.ctx.usage.images == 1
        assert "stream" not in up.provider.asked[0].body

    run(scene())


def test_a_painting_that_is_done_at_once_has_no_comment() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, DONE))
        listening = Listening(up, ask(stream=True))
        assert await listening.run() is None
        ((at, answered),) = listening.ear.heard
        assert at == listening.ear.opened_at == pytest.approx(0.5)
        assert answered.startswith(b"event: image_generation.completed")

    run(scene())


def test_a_painting_that_fails_after_a_comment_ends_in_one_error_event() -> None:
    async def scene() -> None:
        up = openai(play(wait(20, FAILED)), models=[Capability("m", streams=False)])
        listening = Listening(up, ask(stream=True))
        error = await listening.run()
        assert isinstance(error, ProviderBadResponse)
        (_, comment), (_, last) = listening.ear.heard
        assert comment == KEEPALIVE
        assert orjson.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
        assert listening.settled == [error]
        assert listening.ctx.usage == NO_USAGE
        assert len(up.provider.asked) == 1

    run(scene())


def test_a_painting_that_fails_before_a_comment_is_the_next_channel_s_to_make() -> None:
    async def scene() -> None:
        listening = Listening(openai(play(wait(14, FAILED))), ask(stream=True))
        await see(listening.run())
        assert listening.ear.opened_at is None
        assert listening.settled == []

    run(scene())


@table_rows("total_s", [10.0, 40.0])
def test_a_painting_has_the_channel_s_whole_time_and_no_more(total_s: float) -> None:
    async def scene() -> None:
        timeouts = Timeouts(first_byte_s=1, idle_s=1, total_s=total_s)
        up = image_services(play(BEGUN, task("processing")), timeouts=timeouts)
        listening = Listening(up, ask(stream=True))
        met = await see(listening.run()) if total_s < 15 else await listening.run()
        assert isinstance(met, ProviderTimeout)
        assert asyncio.get_running_loop().time() == pytest.approx(total_s)
        await up.images.close()
        assert len(up.provider.cancels) == 1

    run(scene())


def test_a_caller_who_leaves_a_painted_stream_stops_the_painting() -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, task("processing")))
        listening = Listening(up, ask(stream=True))
        relaying = asyncio.create_task(listening.run())
        await asyncio.sleep(20)
        await leave(relaying)
        await up.images.close()
        assert len(up.provider.cancels) == 1
        assert listening.ctx.usage == NO_USAGE

    run(scene())


@table_rows("after_s", [5, 20])
def test_a_stop_of_the_gateway_ends_a_painted_stream(after_s: int) -> None:
    async def scene() -> None:
        up = image_services(play(BEGUN, task("processing")))
        listening = Listening(up, ask(stream=True))
        relay = listening.relay()
        relaying = asyncio.create_task(listening.run(relay))
        await asyncio.sleep(after_s)
        relay.abort()
        error = await relaying if after_s > 15 else await see(relaying)
        assert isinstance(error, ShuttingDown)
        await up.images.close()
        assert len(up.provider.cancels) == 1

    run(scene())


def make_reply(work: Callable[[], Coroutine[Any, Any, tuple[bytes, Usage]]]) -> BufferedStream:
    return BufferedStream(work())


async def paint(seconds: float = 1.0) -> tuple[bytes, Usage]:
    await asyncio.sleep(seconds)
    return b"events", Usage(images=1)


def test_a_painted_reply_gives_its_one_piece_once() -> None:
    async def scene() -> None:
        response = make_reply(paint)
        transform, heard = BufferedPassthrough(response), list[bytes]()

        def sink(data: bytes, _raw: bytes | None) -> bool:
            heard.append(transform.feed(data))
            return transform.closed

        assert (response.status, dict(response.headers), transform.parse_usage()) == (200, {}, NO_USAGE)
        assert await response.pump(sink) is PumpResult.PAUSED
        assert (heard, transform.events, transform.closed, transform.finish()) == ([b"events"], 1, True, b"")
        assert transform.parse_usage() == Usage(images=1)
        assert await response.pump(sink) is PumpResult.ENDED
        assert heard == [b"events"]
        response.finish()
        response.close()

    run(scene())


def test_a_painted_reply_goes_on_while_nobody_pumps_it() -> None:
    async def scene() -> None:
        response = make_reply(partial(paint, 20))
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await response.read(100)
        assert await response.read(100) == b"events"
        assert asyncio.get_running_loop().time() == pytest.approx(20)

    run(scene())


def test_a_painted_reply_that_is_too_long_is_refused_as_any_other() -> None:
    async def scene() -> None:
        assert isinstance(await see(make_reply(paint).read(5)), ProviderBadResponse)

    run(scene())


def test_a_painted_reply_ends_with_the_first_word_of_whoever_breaks_it_off() -> None:
    async def scene() -> None:
        response = make_reply(partial(paint, 20))
        reading = asyncio.create_task(response.read(100))
        await asyncio.sleep(1)
        first, second = ProviderTimeout("slow"), ShuttingDown("stopped")
        response.abort(first)
        response.abort(second)
        assert await see(reading) is first
        assert response.task.cancelled()

    run(scene())


# Who streams.


@table_rows(
    ("place", "entry", "count", "passes"),
    [
        (("openai", "gpt-image-1"), Capability("m"), 1, True),
        (("openai", "gpt-image-1"), Capability("m", streams=False), 1, False),
        (("openai", "gpt-image-1"), Capability("m"), 4, True),
        (("openai", "gpt-image-1"), Capability("m", max_n=2), 4, False),
        (("custom", "org/painter"), Capability("m"), 1, False),
        (("custom", "org/painter"), Capability("m", streams=True), 1, True),
        (("replicate", "black-forest-labs/flux-schnell"), Capability("m", streams=True), 1, False),
    ],
)
def test_a_stream_passes_where_it_is_known_that_there_is_one(
    place: tuple[str, str], entry: Capability, count: int, *, passes: bool
) -> None:
    async def scene() -> None:
        up = image_services(play(DONE), *place, models=[entry], fan_out=True)
        inference = ask(stream=True, n=count)
        assert can_pass(up.begin(inference), inference) is passes

    run(scene())


def test_a_image_says_nothing_of_itself_where_it_is_printed() -> None:
    assert "secret" not in repr(Image("secret", "http://secret/", "secret"))


def test_a_limit_met_by_every_poll_is_the_provider_s_limit() -> None:
    async def scene() -> None:
        error = await see(image_services(play(BEGUN, Answered({"detail": "slow down"}, 429))).answer())
        assert isinstance(error, ProviderRateLimited)

    run(scene())
