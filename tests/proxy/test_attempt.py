"""A visit that is ended from outside: in whatever moment that comes, nothing comes after it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.deadlines import DeadlineTimer
from gateway.domain.channel import Timeouts
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout, RequestCancelled
from gateway.proxy.attempt import Visit
from gateway.proxy.failover import make_cancelled
from gateway.request_context import Delivery
from gateway.routing.target import Attempt
from tests.support.video_services import Stage, play, run, task

CALL = InferenceRequest("chat", "m", {}, prompt_chars=2)
ATTEMPT: Any = SimpleNamespace(timeouts=Timeouts(), channel=SimpleNamespace(secrets=()), plan=lambda _call: None)


class Answering:
    """An upstream that answers at once, and something else happens at that very moment."""

    def __init__(self, happen: Any) -> None:
        self.happen = happen
        self.status, self.headers = 200, {}
        self.aborted: list[ProviderError] = []

    async def send(self, _plan: object) -> "Answering":
        self.happen()
        return self

    def abort(self, fault: ProviderError) -> None:
        self.aborted.append(fault)

    def close(self) -> None: ...


@pytest.mark.parametrize("fault", [make_cancelled(), ProviderTimeout("too slow")])
async def test_an_answer_that_comes_at_the_very_moment_of_the_end_is_none(fault: ProviderError) -> None:
    visit = Visit(lambda: 0.0, DeadlineTimer())
    end = visit.cancel if isinstance(fault, RequestCancelled) else visit.abort
    up: Any = Answering(lambda: end(fault))  # type: ignore[arg-type]
    with pytest.raises(type(fault)):
        await visit.open(up, ATTEMPT, CALL)
    await asyncio.sleep(0)
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_timer_that_fires_afterwards_does_not_make_another_attempt_of_it() -> None:
    visit = Visit(lambda: 0.0, DeadlineTimer())

    async def wait() -> None:
        await asyncio.sleep(60)

    waiting = asyncio.create_task(visit.run(wait(), 60))
    await asyncio.sleep(0)
    visit.cancel(make_cancelled())
    visit.abort(ProviderTimeout("too slow"))
    with pytest.raises(RequestCancelled):
        await waiting


async def test_a_reply_under_way_is_aborted_and_whoever_waits_for_the_caller_is_woken() -> None:
    woken: list[bool] = []
    client_stream: Any = SimpleNamespace(wake=lambda: woken.append(True))
    visit, up = Visit(lambda: 0.0, DeadlineTimer()), Answering(lambda: None)
    visit.follow(up)  # type: ignore[arg-type]
    visit.attach_client(client_stream)
    cancelled = make_cancelled()
    visit.cancel(cancelled)
    assert (up.aborted, woken, visit.cancelled) == ([cancelled], [True], cancelled)


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_failure_at_the_very_moment_of_a_cancel_is_not_tried_elsewhere(*, cancelled: bool) -> None:
    async def scene() -> None:
        stage = Stage(play(task()), "custom", "custom")
        ticket = stage.order()
        tried: list[str] = []

        async def fail(_visit: Visit, attempt: Attempt) -> None:
            tried.append(attempt.channel.name)
            if cancelled:
                assert stage.relay.cancel(ticket.arrival.id)
            raise ProviderBadResponse("broken")

        delivery = Delivery()
        with pytest.raises(RequestCancelled if cancelled else ProviderBadResponse):
            await stage.relay.with_failover(delivery, ticket.route, ticket.arrival.id, fail)
        assert tried == (["up"] if cancelled else ["up", "up1"])
        assert delivery.tried[0].outcome == ("request_cancelled" if cancelled else "upstream_error")
        assert not stage.relay.cancel(ticket.arrival.id), "it is over"
        assert stage.relay.running == 0

    run(scene())
