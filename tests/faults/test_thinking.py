"""A provider that thinks for a long time, on a loop whose clock jumps: what the caller hears meanwhile, and when."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import attrs
import orjson
import pytest

from gateway.domain.channel import Channel, QueueSettings, Timeouts
from gateway.domain.circuit_breaker import BreakerSettings
from gateway.domain.http_request import HttpRequest
from gateway.errors import (
    ClientDisconnected,
    GatewayError,
    NoHealthyChannel,
    ProviderBadResponse,
    ProviderError,
    ProviderTimeout,
)
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.wire.sse import KEEPALIVE
from gateway.providers.base import CHAT
from gateway.proxy import forward
from gateway.proxy.failover import RETRY_WAIT_S, Proxy
from gateway.routing.channel_queue import Ticket
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer, RetrySettings
from gateway.routing.target import Target
from gateway.routing.target_list import TargetList
from gateway.upstream.interface import PumpResult, Sink
from tests.support.billing_services import caller_of
from tests.support.contexts import make_context
from tests.support.gateway import HELLO
from tests.support.scripted_upstream import COMPLETION, DONE, delta, event
from tests.support.skip_rules import run_skipping

ONE, TWO = event(delta("one")), event(delta("two", "stop"))
COMMENT = b": provider ping\n\n"
Pieces = Sequence[float | bytes]


class RecordingStream:
    """An outlet that keeps what was written, each time with the second."""

    full = False

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.written: list[tuple[int, bytes]] = []

    def _note(self, data: bytes) -> None:
        self.written.append((round(self._loop.time() - self._began), data))

    def add_doc_url(self, error: GatewayError) -> None:
        """Nothing: no request has an address here."""

    def open(self, media_type: str, data: bytes) -> None:
        assert media_type.startswith("text/event-stream")
        if not self.written:
            self._note(b"200")
        self.write(data)

    def write(self, data: bytes, framed: bytes | None = None) -> bool:  # noqa: ARG002 - the port's
        if data:
            self._note(data)
        return False

    async def drain(self) -> None:
        return

    def wake(self) -> None:
        return

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        raise NotImplementedError

    async def finish(self, data: bytes) -> None:
        self.write(data)
        self._note(b"end")

    def abort(self) -> None:
        self._note(b"cut")


class Thinker:
    """A reply of ``pieces``: bytes to say, or seconds to think before."""

    status = 200
    headers: Mapping[str, str] = {"Content-Type": "text/event-stream"}

    def __init__(self, pieces: Pieces) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces = list(pieces)
        self._ready_at = 0.0
        self._aborted: asyncio.Future[None] = self._loop.create_future()

    async def pump(self, sink: Sink) -> PumpResult:
        while self._pieces:
            piece = self._pieces[0]
            if not isinstance(piece, bytes):
                self._ready_at = self._ready_at or self._loop.time() + piece
                await asyncio.wait([self._aborted], timeout=self._ready_at - self._loop.time())
                if self._aborted.done():
                    self._aborted.result()
                self._ready_at = 0.0
            self._pieces.pop(0)
            if isinstance(piece, bytes) and sink(piece, None):
                return PumpResult.PAUSED
        return PumpResult.ENDED

    async def read(self, limit: int) -> bytes:  # noqa: ARG002 - the port's signature
        raise ProviderBadResponse("This is not a whole answer")

    def abort(self, error: ProviderError) -> None:
        if not self._aborted.done():
            self._aborted.set_exception(error)

    def finish(self) -> None:
        return

    def close(self) -> None:
        self._aborted.cancel()


@attrs.frozen
class Thinkers:
    """The way out to one provider after the other; each takes ``head_s`` seconds for its headers."""

    replies: list[Pieces]
    head_s: float = 0.0

    async def send(self, http_request: HttpRequest) -> Thinker:  # noqa: ARG002 - the port's signature
        await asyncio.sleep(self.head_s)
        return Thinker(self.replies.pop(0))

    async def close(self) -> None:
        return


class Broken(Thinkers):
    """The way out to providers that cannot be reached."""

    async def send(self, http_request: HttpRequest) -> Thinker:  # noqa: ARG002 - the port's signature
        raise ProviderBadResponse("The provider could not be reached")


def relay(
    replies: Sequence[Pieces], timeouts: Timeouts, head_s: float = 0.0, *, on_trial: bool = False
) -> tuple[list[tuple[int, bytes]], ProviderError | None]:
    """What the caller heard and when, and the fault that ended it."""

    async def scene() -> tuple[list[tuple[int, bytes]], ProviderError | None]:
        paper = RecordingStream()
        inference = parse_chat_inference({**HELLO, "stream": True})
        ctx = make_context(caller_of(), inference)
        load_balancer = LoadBalancer(asyncio.get_running_loop().time, settings=DEFAULT_SETTINGS, shared=None)
        load_balancer.set_channels(
            Channel(f"up{index}", "custom", "http://up.invalid/v1", priority=-index, timeouts=timeouts)
            for index in range(len(replies))
        )
        first = load_balancer.channels["up0"]
        if on_trial:
            for _ in range(load_balancer.settings.rules.failures):
                slot = load_balancer.acquire(first, (CHAT.wire, "m"), 0, retry=False)
                load_balancer.record_failure(slot, ProviderBadResponse("it broke"))
                load_balancer.release(slot)
            ((_, _, breaker),) = first.list_tripped()
            breaker.until = 0.0
        targets = [Target(line, CHAT, "m") for line in load_balancer.channels.values()]
        ctx.target_list = TargetList(targets, inference, load_balancer)
        going = Proxy(Thinkers(list(replies), head_s), load_balancer, clock=lambda: 0.0)
        error = await forward.stream(going, ctx, paper, settle=lambda _: None)
        assert (going.running, load_balancer.running) == (0, 0)
        assert not on_trial or breaker.state == ("open" if error else "closed")
        return paper.written, error

    return run_skipping(scene())


class LeavingStream(RecordingStream):
    """The outlet of a caller that leaves when it should hear the end."""

    async def finish(self, data: bytes) -> None:  # noqa: ARG002 - the port's
        raise ClientDisconnected


class Watched(TargetList):
    """A route that counts how often it is looked at in waiting."""

    looks = 0

    @property
    def is_open(self) -> bool:
        self.looks += 1
        return True


PATIENT = Timeouts(first_byte_s=100, idle_s=50, total_s=1000)


def test_while_the_provider_thinks_the_caller_hears_a_comment_every_fifteen_seconds() -> None:
    heard, error = relay([[50.0, ONE, 1.0, TWO, DONE]], PATIENT)
    assert error is None
    comments = [(0 + second, KEEPALIVE) for second in (15, 30, 45)]
    assert heard == [(15, b"200"), *comments, (50, ONE), (51, TWO), (51, DONE), (51, b"end")]


@pytest.mark.parametrize("pieces", [[1.0, ONE, TWO, DONE], [50.0, ONE, 1.0, TWO, DONE], [50.0, ONE + TWO + DONE]])
def test_a_channel_on_trial_that_thinks_for_long_and_answers_is_well_again(pieces: Pieces) -> None:
    _, error = relay([pieces], PATIENT, on_trial=True)
    assert error is None


def test_a_channel_on_trial_that_breaks_in_mid_stream_is_not_well() -> None:
    _, error = relay([[50.0, ONE, 1.0]], PATIENT, on_trial=True)
    assert error is not None


@attrs.define
class QueuedStream:
    """A stream that waits behind another request for a place on a channel; ``heard`` is what its client got, and when.

    ``settled``: the error of each settlement.
    """

    wait_s: float
    heard: list[tuple[int, bytes]] = attrs.Factory(list)
    settled: list[GatewayError | None] = attrs.Factory(list)

    async def wait(self, *pauses_s: float) -> ProviderError | None:
        """Free the place after the first of ``pauses_s``, for the other request, and again after the second."""
        paper, inference = RecordingStream(), parse_chat_inference({**HELLO, "stream": True})
        self.heard = paper.written
        load_balancer = LoadBalancer(asyncio.get_running_loop().time, settings=DEFAULT_SETTINGS, shared=None)
        queue = QueueSettings(wait_s=self.wait_s)
        load_balancer.set_channels(
            [Channel("up", "custom", "http://up.invalid/v1", max_concurrency=1, queue=queue, timeouts=PATIENT)]
        )
        state = load_balancer.channels["up"]
        targets = TargetList([Target(state, CHAT, "m")], inference, load_balancer)
        slot = load_balancer.acquire(state, (CHAT.wire, "m"), 0, retry=False)
        other = Ticket((CHAT.wire, "m"), 2, 2, is_batch=False, entered_at=0.0, wake=lambda: None)
        assert load_balancer.enter_queue(state, other)
        ctx = make_context(caller_of(), inference, target_list=targets)
        going = Proxy(Thinkers([[ONE, DONE]]), load_balancer, clock=lambda: 0.0)
        task = asyncio.create_task(forward.stream(going, ctx, paper, settle=self.settled.append))
        for number, pause_s in enumerate(pauses_s):
            await asyncio.sleep(pause_s)
            if number:
                load_balancer.leave_queue(state, other)
            else:
                load_balancer.release(slot)
        try:
            return await task
        finally:
            assert (going.running, len(state.queue or ())) == (0, 1 - bool(pauses_s))


def test_a_stream_that_waits_is_told_its_place_after_fifteen_seconds_and_whenever_it_changes() -> None:
    stream = QueuedStream(100)
    assert run_skipping(stream.wait(20.4, 20.2)) is None
    places = [(15, b": queued 2\n\n"), (21, b": queued 1\n\n"), (36, b": queued 1\n\n")]
    assert stream.heard == [(15, b"200"), *places, (41, ONE), (41, DONE), (41, b"end")]
    assert stream.settled == [None]


def test_an_error_after_the_place_was_told_is_an_event() -> None:
    stream = QueuedStream(25)
    assert isinstance(run_skipping(stream.wait()), ProviderBadResponse)
    assert stream.heard[:2] == [(15, b"200"), (15, b": queued 2\n\n")]
    assert b"no_available_channel" in stream.heard[-2][1]
    assert stream.heard[2:] == [stream.heard[2], (25, b"end")]
    (error,) = stream.settled
    assert isinstance(error, NoHealthyChannel)


def test_a_short_wait_is_not_told_and_its_error_keeps_its_status() -> None:
    stream = QueuedStream(10)
    with pytest.raises(NoHealthyChannel):
        run_skipping(stream.wait())
    assert stream.heard == []


def test_a_pause_in_mid_stream_is_filled_with_comments() -> None:
    heard, error = relay([[ONE, 40.0, TWO, DONE]], PATIENT)
    assert error is None
    assert heard == [(0, b"200"), (0, ONE), (15, KEEPALIVE), (30, KEEPALIVE), (40, TWO), (40, DONE), (40, b"end")]


def test_no_comment_is_sent_before_the_providers_headers() -> None:
    heard, error = relay([[ONE, TWO, DONE]], PATIENT, head_s=60)
    assert error is None
    assert KEEPALIVE not in [data for _, data in heard]
    assert heard[0] == (60, b"200")


def test_a_provider_that_fails_before_a_comment_was_due_is_replaced() -> None:
    heard, error = relay([[10.0], [ONE, TWO, DONE]], PATIENT)
    assert error is None
    assert [data for _, data in heard] == [b"200", ONE, TWO, DONE, b"end"]


def test_after_a_comment_there_is_no_second_attempt() -> None:
    heard, error = relay([[20.0], [ONE, TWO, DONE]], PATIENT)
    assert isinstance(error, ProviderBadResponse)
    assert heard[:2] == [(15, b"200"), (15, KEEPALIVE)]
    assert heard[2][1].startswith(b'data: {"error":')
    assert heard[3:] == [(20, b"end")]


@pytest.mark.parametrize(
    ("pieces", "second"),
    [([1000.0], 100), ([COMMENT, 1000.0], 100), ([ONE, 1000.0], 50), ([ONE, *[40.0, TWO] * 100], 1000)],
    ids=["first event", "first event after a comment", "idle", "total"],
)
def test_comments_of_ours_do_not_hold_off_the_timers(pieces: Pieces, second: int) -> None:
    heard, error = relay([pieces], PATIENT)
    assert isinstance(error, ProviderTimeout)
    assert heard[-1] == (second, b"end")
    assert heard[-2][1].startswith(b'data: {"error":')


def test_a_comment_never_lands_inside_an_event() -> None:
    half, rest = ONE[:20], ONE[20:]
    heard, error = relay([[TWO, half, 40.0, rest, DONE]], PATIENT)
    assert error is None
    body = b"".join(data for _, data in heard[1:-1])
    assert body == TWO + KEEPALIVE + KEEPALIVE + ONE + DONE


def test_a_stream_that_breaks_is_held_against_its_channel_though_the_caller_leaves_too() -> None:
    async def scene() -> int:
        load_balancer = LoadBalancer(asyncio.get_running_loop().time, settings=DEFAULT_SETTINGS, shared=None)
        load_balancer.set_channels([Channel("up", "custom", "http://up.invalid/v1")])
        inference = parse_chat_inference({**HELLO, "stream": True})
        route = TargetList([Target(load_balancer.channels["up"], CHAT, "m")], inference, load_balancer)
        ctx = make_context(caller_of(), inference, target_list=route)
        going = Proxy(Thinkers([[ONE]]), load_balancer, clock=lambda: 0.0)
        with pytest.raises(ClientDisconnected):
            await forward.stream(going, ctx, LeavingStream(), settle=lambda _: None)
        return load_balancer.channels["up"].circuits[CHAT.wire, "m"].accounts[0].failures

    assert run_skipping(scene()) == 1


def test_a_thousand_that_wait_for_their_turn_look_hardly_more_often_than_a_hundred() -> None:
    async def scene(crowd: int) -> tuple[int, float]:
        load_balancer = LoadBalancer(asyncio.get_running_loop().time, settings=DEFAULT_SETTINGS, shared=None)
        load_balancer.set_channels([Channel(name, "custom", "http://up.invalid/v1") for name in ("one", "two")])
        load_balancer.settings = RetrySettings(BreakerSettings(failures=10**6, min_calls=10**6))
        load_balancer.retrying = 10**6  # it is never anybody's turn
        inference = parse_chat_inference(HELLO)
        routes = [
            Watched([Target(line, CHAT, "m") for line in load_balancer.channels.values()], inference, load_balancer)
            for _ in range(crowd)
        ]
        failing = Proxy(Broken([]), load_balancer, clock=lambda: 0.0)
        began = asyncio.get_running_loop().time()
        reported = await asyncio.gather(
            *(forward.fetch(failing, make_context(caller_of(), inference, target_list=route)) for route in routes),
            return_exceptions=True,
        )
        assert all(isinstance(error, ProviderBadResponse) for error in reported)
        return sum(route.looks for route in routes), asyncio.get_running_loop().time() - began

    few, _ = run_skipping(scene(100))
    many, took_s = run_skipping(scene(1_000))
    assert many < 4 * few
    assert took_s < 2 * RETRY_WAIT_S


@pytest.mark.parametrize("answered_s", [1.0, 200.0])
def test_a_whole_answer_may_take_as_long_as_any_and_its_caller_hears_comments(answered_s: float) -> None:
    """The first bytes of it say that there will be no event before its end."""
    raw = orjson.dumps(COMPLETION)
    heard, error = relay([[answered_s * 0.4, raw[:9], answered_s * 0.6, raw[9:]]], PATIENT)
    assert error is None
    comments = [piece for _, piece in heard if piece == KEEPALIVE]
    assert len(comments) == int(answered_s // 15)
    assert heard[-2][0] == round(answered_s)
    assert b'"content":"hello"' in heard[-2][1]
    assert heard[-2][1].endswith(DONE)


def test_a_whole_answer_that_breaks_after_comments_ends_in_an_error_event() -> None:
    heard, error = relay([[20.0, b'{"error": {"message": "no GPU is free"}}']], PATIENT)
    assert error is not None
    assert [second for second, _ in heard] == [15, 15, 20, 20]
    assert b"no GPU is free" in heard[-2][1]
