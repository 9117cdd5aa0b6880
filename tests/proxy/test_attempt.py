"""An attempt that is ended from outside: in whatever moment that comes, nothing comes after it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.deadlines import DeadlineTimer
from gateway.domain.channel import Channel
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout, RequestCancelled
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.providers.base import Endpoint
from gateway.proxy.failover import Proxy, make_cancellation_error
from gateway.proxy.forward import open_response
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.target import Attempt, Target
from tests.support.table_rows import table_rows
from tests.support.video_services import VideoServices, play, run, task

CALL = InferenceRequest("chat", "m", {}, prompt_chars=2)
IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1)


def make_attempt() -> Attempt:
    board = LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None)
    board.set_channels([Channel("up", "custom", "http://up/v1", ("key",), ("m",))])
    target = Target(board.channels["up"], Endpoint("openai_chat", "/chat/completions"), "m")
    slot = board.acquire(target.state, target.endpoint_key, 1, retry=False)
    return Attempt(target, target.channel, slot, make_translator(CALL, "openai_chat", IDENTITY))


class Answering:
    """An upstream that answers at once, and something else happens at that very moment."""

    def __init__(self, happen: Any) -> None:
        self.happen = happen
        self.status = 200
        self.headers: dict[str, str] = {}
        self.aborted: list[ProviderError] = []

    async def send(self, _plan: object) -> "Answering":
        self.happen()
        return self

    def abort(self, error: ProviderError) -> None:
        self.aborted.append(error)

    def close(self) -> None: ...


@pytest.mark.parametrize("error", [make_cancellation_error(), ProviderTimeout("too slow")])
async def test_an_answer_that_comes_at_the_very_moment_of_the_end_is_none(error: ProviderError) -> None:
    attempt = make_attempt()
    end = attempt.cancel if isinstance(error, RequestCancelled) else attempt.abort
    up: Any = Answering(lambda: end(error))  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        await open_response(
            Proxy(up, LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None), clock=lambda: 0.0), attempt
        )
    await asyncio.sleep(0)
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_timer_that_fires_afterwards_does_not_make_another_attempt_of_it() -> None:
    attempt = make_attempt()

    async def wait() -> None:
        await asyncio.sleep(60)

    waiting = asyncio.create_task(attempt.wait_for(wait(), 60, DeadlineTimer()))
    await asyncio.sleep(0)
    attempt.cancel(make_cancellation_error())
    attempt.abort(ProviderTimeout("too slow"))
    with pytest.raises(RequestCancelled):
        await waiting


async def test_a_reply_under_way_is_aborted_and_whoever_waits_for_the_caller_is_woken() -> None:
    woken: list[bool] = []
    client_stream: Any = SimpleNamespace(wake=lambda: woken.append(True))
    attempt, up = make_attempt(), Answering(lambda: None)
    attempt.response = up  # type: ignore[assignment]
    attempt.client = client_stream
    cancelled = make_cancellation_error()
    attempt.cancel(cancelled)
    assert (up.aborted, woken, attempt.cancelled) == ([cancelled], [True], cancelled)


@table_rows("cancelled", [True, False])
def test_a_failure_at_the_very_moment_of_a_cancel_is_not_tried_elsewhere(*, cancelled: bool) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()), "custom", "custom")
        ctx = services.order()
        tried: list[str] = []

        async def fail(attempt: Attempt) -> None:
            tried.append(attempt.channel.name)
            if cancelled:
                assert services.proxy.cancel(ctx)
            raise ProviderBadResponse("broken")

        with pytest.raises(RequestCancelled if cancelled else ProviderBadResponse):
            await services.proxy.with_failover(ctx, fail)
        assert tried == (["up"] if cancelled else ["up", "up1"])
        failure = ctx.attempts[0].failure
        assert failure is not None
        assert failure.code == ("request_cancelled" if cancelled else "upstream_error")
        assert not services.proxy.cancel(ctx), "it is over"
        assert services.proxy.running == 0

    run(scene())
