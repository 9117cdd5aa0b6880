"""U12: a provider that has no room, no credit or no trust in our key says so, and is left alone as long as it asks."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from gateway.domain.rate_limit import compute_smooth_burst
from gateway.routing.channel_state import INSISTING_RPM, ChannelState
from gateway.server.context import SERVICES
from tests.support.fast_provider import SwiftUpstream, by_key, failing, well
from tests.support.fault_scene import (
    audit,
    call,
    check_error,
    check_row_of_failure,
    check_row_of_success,
    check_trail,
    healthy,
    read_word,
    site,
)
from tests.support.gateway import RunningGateway, channel
from tests.support.outcome_table import Channels, Notes
from tests.support.started_gateways import StartGateway

COOLDOWN_S, CAP_S = 20, 150
ROUTING = {"cooldown_s": COOLDOWN_S, "max_cooldown_s": CAP_S}
USED_UP = {"error": {"message": "You have nothing left", "type": "insufficient_quota", "code": "insufficient_quota"}}
TELLTALE = {
    "error": {"message": "of org-aB3dE6gH9: provider-key and sk-proj-abcdefghijklmnop", "type": "t", "code": "c"}
}
NEVER_SHOWN = (b"provider-key", b"org-aB3dE6gH9", b"sk-proj", b"acct_")
KEYS = ("provider-key-1", "provider-key-2", "provider-key-3")
TODAY = datetime(2026, 5, 4, 12, tzinfo=UTC)


def line_of(gateway: RunningGateway, name: str = "bad") -> ChannelState:
    return gateway.app[SERVICES].routing.load_balancer.channels[name]  # type: ignore[no-any-return]


def find_rest(gateway: RunningGateway) -> float:
    """For how many seconds nothing can be asked of the channel."""
    found = line_of(gateway).find_obstacle(("openai_chat", "m"), 1, time.monotonic())
    return 0.0 if found is None else found[1]


REFUSALS = [(401, TELLTALE), (402, TELLTALE), (403, TELLTALE), (429, USED_UP), (429, TELLTALE), (503, TELLTALE),
            (529, TELLTALE)]  # fmt: skip


@pytest.mark.parametrize("channels", ["one", "two"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda it: f"{it[0]}{' used up' if it[1] is USED_UP else ''}")
async def test_a_refusal_is_another_channels_chance(
    standing_with: StartGateway, notes: Notes, refusal: tuple[int, dict[str, Any]], stream: bool, channels: Channels
) -> None:
    """Alone, a rate limit is passed on for the caller to wait; all else is the gateway's own trouble."""
    status, body = refusal
    async with SwiftUpstream(failing(status, body)) as bad, SwiftUpstream() as good:
        ups = [channel(bad.base_url, "bad"), *([healthy(good)] if channels == "two" else ())]
        gateway = await standing_with(site(*ups))
        heard = await call(gateway, stream=stream)
        notes.add_cell("U12", read_word(heard), stream=stream, when="before", channels=channels)
        assert not any(secret in heard.body for secret in NEVER_SHOWN)
        row = await audit(gateway, status=heard.status, stream=stream)
        limited = status == 429 and body is TELLTALE
        code = "c" if limited else "upstream_error"
        if channels == "two":
            check_row_of_success(row, "healthy", attempts=2)
            check_trail(heard, row, ("bad", code), ("healthy", "ok"))
            return
        attempts = 2 if status in {503, 529} else 1  # a bad moment, perhaps: once more
        check_trail(heard, row, *[("bad", code)] * attempts)
        if limited:
            assert (heard.status, heard.headers["Retry-After"]) == (429, "1")
            assert (row.outcome, row.error_code, row.cost_nanos) == ("refused", code, 0)
        else:
            check_error(heard, code)
            check_row_of_failure(row, code, attempts=attempts)
            # Ours to mend where it is our key, and no use to try again.
            assert heard.headers.get("x-should-retry") == (None if status in {503, 529} else "false")


def in_s(seconds: int) -> Callable[[], str]:
    return lambda: format_datetime(TODAY + timedelta(seconds=seconds), usegmt=True)


RESTS: list[tuple[str | Callable[[], str] | None, float | None]] = [
    ("100", 100),
    ("  100 ", 100),
    ("99.5", 99.5),
    (in_s(100), 100),
    ("1000000000", CAP_S),
    (in_s(10**8), CAP_S),
    ("9" * 400, CAP_S),
    (in_s(-100), None),
    ("-100", None),
    ("0", None),
    ("1e9", None),
    ("NaN", None),
    ("inf", None),
    ("soon", None),
    ("", None),
    ("Mon, 99 May 2026 25:00:00 GMT", None),
    (None, None),
]
"""What a provider says, and for how many seconds it is believed; None is as if it had said nothing."""


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(("text", "provider_retry_after_s"), RESTS)
async def test_a_provider_is_left_alone_as_long_as_it_asks_within_reason(
    standing_with: StartGateway, status: int, text: str | Callable[[], str] | None, provider_retry_after_s: float | None
) -> None:
    """One that is overloaded and does not say for how long may have had a bad moment: three of them trip it."""
    headers: dict[str, Any] = {} if text is None else {"Retry_After": text() if callable(text) else text}
    async with SwiftUpstream(failing(status, TELLTALE, **headers)) as bad:
        gateway = await standing_with(
            site(channel(bad.base_url, "bad"), routing=ROUTING),
            clock=TODAY.timestamp,  # what a date is read against; the rest itself is measured by another clock
        )
        heard = await call(gateway, stream=False)
        assert not any(secret in heard.body for secret in NEVER_SHOWN)
        rested = find_rest(gateway)
        if status == 429:
            wanted = COOLDOWN_S if provider_retry_after_s is None else provider_retry_after_s
            assert wanted - 10 < rested <= wanted
            assert heard.headers["Retry-After"] == str(min(math.ceil(provider_retry_after_s or 1), 120))
        elif provider_retry_after_s is None:
            assert rested == 0
        else:
            assert provider_retry_after_s - 10 < rested <= provider_retry_after_s
        before = len(bad.seen)
        again = await call(gateway, stream=False)
        if status == 429:
            check_error(again, "rate_limit_exceeded")
            assert 0 < int(again.headers["Retry-After"]) <= 120
            assert "x-should-retry" not in again.headers
            assert len(bad.seen) == before
        else:  # nobody else serves the model
            assert again.status == 502
            assert len(bad.seen) == before + (1 if rested else 2)


async def test_a_rate_limit_is_of_one_model_and_an_overload_is_too(standing_with: StartGateway) -> None:
    async with SwiftUpstream(failing(429, TELLTALE, Retry_After="100")) as up:
        gateway = await standing_with(site(channel(up.base_url, models=["m", "other"]), routing=ROUTING))
        assert (await call(gateway, stream=False)).status == 429
        up.behaviour = well
        assert (await call(gateway, stream=False)).status == 429
        assert (await call(gateway, stream=False, model="other")).status == 200
        up.behaviour = failing(503, TELLTALE, Retry_After="100")
        assert (await call(gateway, stream=False, model="other")).status == 502
        up.behaviour = well
        (((_, model), _, _),) = line_of(gateway, "up").list_tripped()
        assert model == "other"
        assert (await call(gateway, stream=False)).status == 429
        assert len(up.seen) == 3


def keyed(up: SwiftUpstream, keys: tuple[str, ...], **more: Any) -> dict[str, Any]:
    declared = channel(up.base_url, "bad", api_keys=list(keys), **more)
    del declared["api_key"]
    return declared


async def test_keys_take_turns(standing_with: StartGateway) -> None:
    async with SwiftUpstream() as up:
        gateway = await standing_with(site(keyed(up, KEYS)))
        for _ in range(9):
            assert (await call(gateway, stream=False)).status == 200
        assert [seen.key for seen in up.seen] == list(KEYS * 3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [401, 402, 403])
async def test_a_key_that_is_refused_rests_and_the_others_go_on(
    standing_with: StartGateway, status: int, stream: bool
) -> None:
    """The caller whose call met it hears nothing of it: the next key is another try."""
    async with SwiftUpstream(by_key({KEYS[1]: failing(status, TELLTALE)})) as up:
        gateway = await standing_with(site(keyed(up, KEYS)))
        heard = [await call(gateway, stream=stream) for _ in range(8)]
        assert [one.status for one in heard] == [200] * 8
        assert [one.headers["x-gateway-attempts"] for one in heard[:4]] == ["1", "2", "1", "1"]
        assert heard[1].headers["x-gateway-tried"].startswith("upstream_error;ms=")
        one, two, three = KEYS
        asked = [seen.key for seen in up.seen]
        assert asked[:3] == [one, two, three]
        assert asked.count(two) <= 2, "it is tried again after a second"
        rows = await gateway.rows(8)
        assert {row.channel for row in rows} == {"bad"}
        assert {row.cost_nanos for row in rows} == {19_000}
        refused = [[breaker.state for *_, breaker in key.circuits.list_tripped()] for key in line_of(gateway).keys]
        assert (refused, line_of(gateway).state) == ([[], ["open"], []], "closed")


@pytest.mark.parametrize("keys", [KEYS[:1], KEYS], ids=["one", "three"])
@pytest.mark.parametrize("status", [401, 402, 403])
async def test_where_every_key_is_refused_the_channel_is_tried_at_a_bounded_rate(
    standing_with: StartGateway, status: int, keys: tuple[str, ...]
) -> None:
    """Callers hear that the gateway's credentials were refused, and beyond that rate that there is no channel."""
    telltale = {"error": {"message": f"of org-aB3dE6gH9: {' or '.join(keys)} and sk-proj-abcdefghijklmnop"}}
    async with SwiftUpstream(failing(status, telltale)) as up:
        gateway = await standing_with(site(keyed(up, keys), routing=ROUTING))
        heard = await call(gateway, stream=False)
        check_error(heard, "upstream_error")
        assert f"The provider refused the gateway's credentials ({status} ".encode() in heard.body
        assert b"of [masked]: [masked]" in heard.body
        assert not any(secret in heard.body for secret in NEVER_SHOWN)
        row = await audit(gateway)
        check_row_of_failure(row, "upstream_error", attempts=len(keys))
        check_trail(heard, row, *[("bad", "upstream_error")] * len(keys))
        assert [seen.key for seen in up.seen] == list(keys)
        heard_after = [await call(gateway, stream=False) for _ in range(compute_smooth_burst(INSISTING_RPM) + 8)]
        words = [one.status for one in heard_after]
        assert set(words) == {502, 503}
        assert words.count(502) >= compute_smooth_burst(INSISTING_RPM)
        check_error(heard_after[words.index(503)], "no_available_channel")


async def test_a_rate_limit_of_one_key_is_the_next_keys_call(standing_with: StartGateway) -> None:
    one, two, three = KEYS
    limits: Mapping[str, Any] = {one: failing(429, TELLTALE, Retry_After="100"), two: failing(429, TELLTALE)}
    async with SwiftUpstream(by_key(limits)) as up:
        gateway = await standing_with(site(keyed(up, KEYS), routing=ROUTING))
        heard = await call(gateway, stream=False)
        row = await audit(gateway)
        check_row_of_success(row, "bad", attempts=3)
        check_trail(heard, row, ("bad", "c"), ("bad", "c"), ("bad", "ok"))
        assert (await call(gateway, stream=False)).status == 200
        assert [seen.key for seen in up.seen] == [one, two, three, three]
